#include "grammar/char_set.h"

#include <algorithm>
#include <string>

#include "base/utf8.h"

namespace llmb::grammar {

namespace {

constexpr char32_t kSurrogates = 0xD800, kBehindSurrogates = 0xE000, kLast = 0x10FFFF;

// REQUIRES: characters of one UTF-8 length. Bytes that differ only at the end need one range each; otherwise the first
// and the last leading byte are taken apart.
ExprId utf8_range(char32_t first, char32_t last, ExprArena* arena) {
  std::string low, high;
  append_utf8(&low, first);
  append_utf8(&high, last);
  const auto bytes_between = [&](auto&& self, size_t i, std::string_view a, std::string_view b) -> ExprId {
    const auto byte = [](std::string_view s, size_t at) { return static_cast<uint8_t>(s[at]); };
    if (i + 1 == a.size()) return arena->byte_range(byte(a, i), byte(b, i));
    const std::string least(a.size(), '\x80'), most(a.size(), '\xBF');
    if (byte(a, i) == byte(b, i)) return arena->concat(arena->byte(byte(a, i)), self(self, i + 1, a, b));
    uint8_t from = byte(a, i), to = byte(b, i);
    std::vector<ExprId> parts;
    if (a.substr(i + 1) != std::string_view(least).substr(i + 1))
      parts.push_back(arena->concat(arena->byte(from++), self(self, i + 1, a, most)));
    if (b.substr(i + 1) != std::string_view(most).substr(i + 1))
      parts.push_back(arena->concat(arena->byte(to--), self(self, i + 1, least, b)));
    if (from <= to) parts.push_back(arena->concat(arena->byte_range(from, to), self(self, i + 1, least, most)));
    return arena->either(std::move(parts));
  };
  return bytes_between(bytes_between, 0, low, high);
}

}  // namespace

CharSet::CharSet(std::initializer_list<CharRange> ranges) : ranges_(ranges) { normalise(); }

CharSet CharSet::of(std::u32string_view characters) {
  CharSet set;
  for (const char32_t c : characters) set.ranges_.push_back({c, c});
  set.normalise();
  return set;
}

void CharSet::normalise() {
  std::vector<CharRange> apart;
  for (const auto& [first, last] : ranges_) {
    if (first < kSurrogates) apart.push_back({first, std::min<char32_t>(last, kSurrogates - 1)});
    if (last >= kBehindSurrogates) apart.push_back({std::max(first, kBehindSurrogates), std::min(last, kLast)});
  }
  std::sort(apart.begin(), apart.end(), [](const CharRange& a, const CharRange& b) { return a.first < b.first; });
  ranges_.clear();
  for (const CharRange& range : apart) {
    if (range.first > range.last) continue;
    if (!ranges_.empty() && range.first <= ranges_.back().last + 1)
      ranges_.back().last = std::max(ranges_.back().last, range.last);
    else ranges_.push_back(range);
  }
}

void CharSet::add(char32_t first, char32_t last) {
  ranges_.push_back({first, last});
  normalise();
}

void CharSet::add(const CharSet& other) {
  ranges_.insert(ranges_.end(), other.ranges_.begin(), other.ranges_.end());
  normalise();
}

CharSet CharSet::complement() const {
  CharSet out;
  char32_t next = 0;
  for (const auto& [first, last] : ranges_) {
    if (first > next) out.ranges_.push_back({next, first - 1});
    next = last + 1;
  }
  if (next <= kLast) out.ranges_.push_back({next, kLast});
  out.normalise();
  return out;
}

CharSet CharSet::intersect(const CharSet& other) const {
  CharSet outside = complement();
  outside.add(other.complement());
  return outside.complement();
}

ExprId utf8_char(const CharSet& set, ExprArena* arena) {
  constexpr CharRange kLengths[] = {{0, 0x7F}, {0x80, 0x7FF}, {0x800, 0xFFFF}, {0x10000, kLast}};
  std::vector<ExprId> parts;
  for (const auto& [first, last] : set.ranges())
    for (const CharRange& same_length : kLengths) {
      const char32_t from = std::max(first, same_length.first), to = std::min(last, same_length.last);
      if (from <= to) parts.push_back(utf8_range(from, to, arena));
    }
  return arena->either(std::move(parts));
}

}  // namespace llmb::grammar
