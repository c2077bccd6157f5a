// Text on stderr. A reader that is slow, or has stopped reading, must not hold up the run: a thread of its own writes
// the text.
#pragma once

#include <unistd.h>

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>

namespace llmb {

// Both are thread-safe and take no memory. While a StderrWriter exists they return at once, and text reaches stderr
// later, in order; without one they write it themselves. Text that cannot be written is dropped: a closed stderr must
// not end a job.
void write_stderr(std::string_view text);
// For text that the next one makes worthless, as a progress bar's: dropped where earlier text is not yet written.
void write_stderr_if_idle(std::string_view text);

// At most one at a time. Holds up to 256 KiB that are not yet written; text beyond that is dropped, and counted in a
// line of its own once there is room. Where no thread can be started it writes as if it did not exist.
class StderrWriter {
 public:
  explicit StderrWriter(int fd = STDERR_FILENO);
  ~StderrWriter();  // waits until all is written
  StderrWriter(const StderrWriter&) = delete;
  StderrWriter& operator=(const StderrWriter&) = delete;

  // True: all is written. False after timeout_ms.
  bool flush_within(double timeout_ms);

 private:
  friend void write_stderr(std::string_view text);
  friend void write_stderr_if_idle(std::string_view text);
  void put(std::string_view text, bool only_if_idle);
  void run();

  const int fd_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::string pending_, writing_;  // of a fixed capacity, so that they never grow; writing_ is the thread's
  int64_t num_lost_ = 0;
  bool is_writing_ = false, is_closing_ = false;
  std::thread thread_;
};

}  // namespace llmb
