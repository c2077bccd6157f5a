#include "base/stderr_writer.h"

#include <poll.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <climits>
#include <cstdio>
#include <system_error>
#include <utility>

#include "base/check.h"

namespace llmb {

namespace {

constexpr size_t kCapacity = 256 << 10;
std::atomic<StderrWriter*> g_writer{nullptr};

// Whole lines in one write where a pipe takes them so: lines of several processes do not mix.
std::string_view first_piece(std::string_view text) {
  if (text.size() <= PIPE_BUF) return text;
  const size_t newline = text.substr(0, PIPE_BUF).rfind('\n');
  return text.substr(0, newline == std::string_view::npos ? PIPE_BUF : newline + 1);
}

void write_to(int fd, std::string_view text) {
  while (!text.empty()) {
    const std::string_view piece = first_piece(text);
    const ssize_t count = ::write(fd, piece.data(), piece.size());
    if (count > 0) {
      text.remove_prefix(static_cast<size_t>(count));
    } else if (count < 0 && errno == EAGAIN) {  // someone who shares it made it non-blocking
      pollfd entry{fd, POLLOUT, 0};
      ::poll(&entry, 1, -1);
    } else if (count == 0 || errno != EINTR) {
      return;
    }
  }
}

}  // namespace

void write_stderr(std::string_view text) {
  if (StderrWriter* const writer = g_writer.load(std::memory_order_acquire)) writer->put(text, false);
  else write_to(STDERR_FILENO, text);
}

void write_stderr_if_idle(std::string_view text) {
  if (StderrWriter* const writer = g_writer.load(std::memory_order_acquire)) writer->put(text, true);
  else write_to(STDERR_FILENO, text);
}

StderrWriter::StderrWriter(int fd) : fd_(fd) {
  LLMB_CHECK(g_writer.load() == nullptr);
  pending_.reserve(kCapacity);
  writing_.reserve(kCapacity);
  try {
    thread_ = std::thread([this] { run(); });
  } catch (const std::system_error&) {
    return;
  }
  g_writer.store(this, std::memory_order_release);
}

StderrWriter::~StderrWriter() {
  if (!thread_.joinable()) return;
  g_writer.store(nullptr, std::memory_order_release);
  {
    std::lock_guard lock(mutex_);
    is_closing_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

bool StderrWriter::flush_within(double timeout_ms) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, std::chrono::duration<double, std::milli>(timeout_ms),
                           [&] { return pending_.empty() && !is_writing_; });
}

void StderrWriter::put(std::string_view text, bool only_if_idle) {
  {
    std::lock_guard lock(mutex_);
    if (only_if_idle && (is_writing_ || !pending_.empty())) return;
    if (text.size() > kCapacity - pending_.size()) {
      ++num_lost_;
      return;
    }
    pending_ += text;
  }
  changed_.notify_all();
}

void StderrWriter::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return !pending_.empty() || is_closing_; });
    if (pending_.empty()) return;
    std::swap(writing_, pending_);
    const int64_t num_lost = std::exchange(num_lost_, 0);  // they came after what is written now
    is_writing_ = true;
    lock.unlock();
    write_to(fd_, writing_);
    if (num_lost > 0) {
      char line[96];
      std::snprintf(line, sizeof line, "llm-batch: warning: %lld messages were dropped here: nobody read stderr\n",
                    static_cast<long long>(num_lost));
      write_to(fd_, line);
    }
    writing_.clear();
    lock.lock();
    is_writing_ = false;
    changed_.notify_all();
  }
}

}  // namespace llmb
