#include "job/shard.h"

#include <charconv>
#include <optional>
#include <string_view>

#include "base/mix.h"

namespace llmb {

namespace {

// Digits alone, no sign, no leading zero.
std::optional<int64_t> parse_count(std::string_view text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 0) return std::nullopt;
  if (text.size() > 1 && text[0] == '0') return std::nullopt;
  return value;
}

}  // namespace

Result<Shard> parse_shard(const std::string& text) {
  const std::string_view view = text;
  const size_t slash = view.find('/');
  const auto index = parse_count(view.substr(0, slash));
  const auto count = slash == view.npos ? std::nullopt : parse_count(view.substr(slash + 1));
  if (!index || !count || *count < 1 || *count > kMaxShards || *index >= *count)
    return invalid_argument("'" + text + "' is not a shard I/N with I from 0 to N - 1, such as 0/8, and N up to " +
                            std::to_string(kMaxShards));
  return Shard{*index, *count};
}

std::string shard_text(const Shard& shard) { return std::to_string(shard.index) + "/" + std::to_string(shard.count); }

int64_t shard_of_row(int64_t line_index, int64_t count) {
  const auto block = static_cast<uint64_t>(line_index / count);
  const uint64_t shift = mix(mix(block + 1) + static_cast<uint64_t>(count)) % static_cast<uint64_t>(count);
  return (line_index % count + static_cast<int64_t>(shift)) % count;
}

}  // namespace llmb
