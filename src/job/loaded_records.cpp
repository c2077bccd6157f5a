#include "job/loaded_records.h"

#include <sys/mman.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <new>
#include <optional>

namespace llmb {

namespace {

// A native record begins with its index; every other is parsed.
std::optional<int64_t> first_index(std::string_view record) {
  constexpr std::string_view kBegin = "{\"index\":";
  if (!record.starts_with(kBegin)) return std::nullopt;
  int64_t index = 0;
  const auto [end, error] = std::from_chars(record.data() + kBegin.size(), record.data() + record.size(), index);
  return error == std::errc() && *end == ',' ? std::optional(index) : std::nullopt;
}

}  // namespace

// The order of the input leads from chunk to chunk with every record: few pages, few misses.
void LoadedRecords::reserve(size_t num_bytes) {
  if (capacity >= num_bytes) return;
  const size_t alignment = num_bytes > kHugePage / 2 ? kHugePage : 64;
  const size_t rounded = (num_bytes + alignment - 1) / alignment * alignment;
  bytes.reset(static_cast<char*>(std::aligned_alloc(alignment, rounded)));
  capacity = bytes ? rounded : 0;
  if (!bytes) throw std::bad_alloc();
  if (alignment == kHugePage) ::madvise(bytes.get(), capacity, MADV_HUGEPAGE);  // a hint
}

bool LoadedRecords::find_records(RecordParser* parser) {
  places.clear();
  next = 0;
  text = bytes.get();
  for (size_t at = 0; at < size;) {
    const void* const newline = std::memchr(text + at, '\n', size - at);
    if (newline == nullptr) return false;
    const size_t length = static_cast<size_t>(static_cast<const char*>(newline) - text) + 1 - at;
    std::optional<int64_t> index = first_index({text + at, length});
    if (!index)
      if (const auto summary = parser->parse({text + at, length})) index = summary->index;
    if (!index) return false;
    places.push_back({*index, static_cast<uint32_t>(at), static_cast<uint32_t>(length)});
    at += length;
  }
  const auto is_before = [](const Place& a, const Place& b) { return a.index < b.index; };
  if (!std::is_sorted(places.begin(), places.end(), is_before)) std::sort(places.begin(), places.end(), is_before);
  return !places.empty();
}

void LoadedRecords::apply(const std::function<void(std::string_view, std::string*)>& change) {
  changed.clear();
  for (Place& place : places) {
    const size_t begin = changed.size();
    change({text + place.begin, place.size}, &changed);
    place = {place.index, static_cast<uint32_t>(begin), static_cast<uint32_t>(changed.size() - begin)};
  }
  text = changed.data();
}

}  // namespace llmb
