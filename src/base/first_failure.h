// The first failure of several processes, in memory that they share.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>

#include "base/status.h"

namespace llmb {

// Zeros are one that nobody has told. Any thread of any process may tell and ask. A failure is written whole before it is
// told, in a place of its own: one who dies meanwhile keeps nobody else from telling.
class FirstFailure {
 public:
  // In two parts, as its process may end in between. A long message is cut.
  void tell(const Status& error) {
    if (const auto place = is_told() ? std::nullopt : write(error)) tell_written(*place);
  }
  // Nothing: there is no room, as so many others are about to tell.
  std::optional<uint32_t> write(const Status& error) {
    const uint32_t place = num_taken_.fetch_add(1);
    if (place >= kMost) return {};
    Written& written = written_[place];
    written.code = static_cast<int32_t>(error.code());
    const std::string& message = error.message();
    const size_t size = std::min(message.size(), sizeof written.message - 1);
    std::memcpy(written.message, message.data(), size);
    written.message[size] = '\0';
    return place;
  }
  void tell_written(uint32_t place) {
    uint32_t none = 0;
    first_.compare_exchange_strong(none, place + 1);
  }
  bool is_told() const { return first_.load() > 0; }
  // Ok: nobody has told any.
  Status status() const {
    const uint32_t first = first_.load();
    if (first == 0) return {};
    return Status(static_cast<StatusCode>(written_[first - 1].code), written_[first - 1].message);
  }

 private:
  static constexpr uint32_t kMost = 32;
  struct Written {
    int32_t code;
    char message[1024];
  };
  std::atomic<uint32_t> first_ = 0;  // its place + 1
  std::atomic<uint32_t> num_taken_ = 0;
  Written written_[kMost];
};

}  // namespace llmb
