// With records written in input order, one slow request holds back all that come after it. This bounds how many.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>

namespace llmb {

// Thread-safe. Invariant: wait_for(n) has returned true only for n < written + size, where written is the number of
// records that advance() has counted.
class OrderWindow {
 public:
  explicit OrderWindow(int64_t size) : size_(size) {}

  // Blocks until the record of `ordinal` may be produced. False: closed.
  bool wait_for(int64_t ordinal) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return is_closed_ || ordinal < num_written_ + size_; });
    return !is_closed_;
  }

  // The next record in order is written.
  void advance() {
    {
      std::lock_guard lock(mutex_);
      ++num_written_;
    }
    changed_.notify_all();
  }

  // Wakes whoever waits: nothing more is to be produced.
  void close() {
    {
      std::lock_guard lock(mutex_);
      is_closed_ = true;
    }
    changed_.notify_all();
  }

 private:
  const int64_t size_;
  std::mutex mutex_;
  std::condition_variable changed_;
  int64_t num_written_ = 0;
  bool is_closed_ = false;
};

}  // namespace llmb
