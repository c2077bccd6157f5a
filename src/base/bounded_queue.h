// A blocking multi-producer multi-consumer queue of bounded length; closing it wakes everybody.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <mutex>
#include <optional>
#include <utility>

namespace llmb {

// Thread-safe. Invariant: size() <= capacity; after close() pushes are refused and pops drain what is left.
//
// A producer that found the queue full sleeps until it is half empty: to be woken for each place costs both sides more
// than most items do.
template <typename T>
class BoundedQueue {
 public:
  explicit BoundedQueue(size_t capacity) : capacity_(capacity) {}

  // Blocks while full, and then until it is half empty. False when the queue is closed: the item is dropped.
  bool push(T item) {
    std::unique_lock lock(mutex_);
    not_full_.wait(lock, [&] { return closed_ || items_.size() < capacity_; });
    if (closed_) return false;
    items_.push_back(std::move(item));
    not_empty_.notify_one();
    return true;
  }

  // Blocks while empty and open. nullopt: closed and drained.
  std::optional<T> pop() {
    std::unique_lock lock(mutex_);
    not_empty_.wait(lock, [&] { return closed_ || !items_.empty(); });
    return take();
  }

  // As pop(), but gives up after `timeout_ms` (0: at once).
  std::optional<T> pop_for(double timeout_ms) {
    std::unique_lock lock(mutex_);
    not_empty_.wait_for(lock, std::chrono::duration<double, std::milli>(timeout_ms),
                        [&] { return closed_ || !items_.empty(); });
    return take();
  }

  void close() {
    std::lock_guard lock(mutex_);
    closed_ = true;
    not_empty_.notify_all();
    not_full_.notify_all();
  }

  // Closed and nothing left to pop.
  bool drained() const {
    std::lock_guard lock(mutex_);
    return closed_ && items_.empty();
  }

  size_t size() const {
    std::lock_guard lock(mutex_);
    return items_.size();
  }

 private:
  std::optional<T> take() {
    if (items_.empty()) return std::nullopt;
    std::optional<T> item(std::move(items_.front()));
    items_.pop_front();
    if (items_.size() == capacity_ / 2) not_full_.notify_all();
    return item;
  }

  const size_t capacity_;
  mutable std::mutex mutex_;
  std::condition_variable not_empty_, not_full_;
  std::deque<T> items_;
  bool closed_ = false;
};

}  // namespace llmb
