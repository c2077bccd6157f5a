// Pages of one part of the device's memory. Any pages that are free serve any number of them: nothing fragments.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "base/check.h"

namespace llmb {

// Not thread-safe. Owns no memory. Invariant: each page is free or has been taken once.
class DevicePages {
 public:
  DevicePages() = default;
  DevicePages(uint8_t* begin, int32_t num_pages, int64_t page_bytes)
      : begin_(begin), page_bytes_(page_bytes), is_taken_(static_cast<size_t>(num_pages)) {
    for (int32_t i = num_pages; i-- > 0;) free_.push_back(i);
  }

  int32_t num_pages() const { return static_cast<int32_t>(is_taken_.size()); }
  int32_t num_free() const { return static_cast<int32_t>(free_.size()); }
  uint8_t* address(int32_t page) const { return begin_ + page * page_bytes_; }

  // nullopt, and none taken: there are not so many.
  std::optional<std::vector<int32_t>> take(int32_t count) {
    if (count > num_free()) return std::nullopt;
    std::vector<int32_t> pages(free_.end() - count, free_.end());
    free_.resize(free_.size() - static_cast<size_t>(count));
    for (const int32_t page : pages) is_taken_[static_cast<size_t>(page)] = true;
    return pages;
  }
  void give_back(const std::vector<int32_t>& pages) {
    for (const int32_t page : pages) {
      LLMB_CHECK(is_taken_[static_cast<size_t>(page)]);
      is_taken_[static_cast<size_t>(page)] = false;
      free_.push_back(page);
    }
  }

 private:
  uint8_t* begin_ = nullptr;
  int64_t page_bytes_ = 0;
  std::vector<bool> is_taken_;
  std::vector<int32_t> free_;
};

}  // namespace llmb
