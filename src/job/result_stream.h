// Completions on their way out: formatted, put in order if asked, and written by a thread of its own, so that a slow
// disk or reader never holds up a step until the window is full.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "base/bounded_queue.h"
#include "base/status.h"
#include "core/completion.h"
#include "io/result_writer.h"
#include "job/error_file.h"
#include "job/output_sink.h"

namespace llmb {

enum class OutputOrder { kCompletion, kInput };

// put(), has_room() and finish() belong to one thread. Invariants: every completion put is written exactly once, unless
// writing failed; with kInput records are written by increasing ordinal, and at most kOrderWindow are held back.
class ResultStream {
 public:
  static constexpr int64_t kOrderWindow = 4096;  // records
  static constexpr size_t kQueueLength = 1024;   // records

  // Both sinks outlive the stream; `errors` (may be null) gets a copy of every error record.
  ResultStream(OutputSink& sink, ErrorFile* errors, ResultFormatter formatter, OutputOrder order);
  ~ResultStream();
  ResultStream(const ResultStream&) = delete;
  ResultStream& operator=(const ResultStream&) = delete;

  // With kInput: whether the record of `ordinal` may be produced without holding back too many others.
  bool has_room(int64_t ordinal) const;
  // Ordinals count input lines from 0 without gaps. Blocks while the writer is far behind.
  Status put(int64_t ordinal, Completion completion);
  // Records, and those of them that are errors. From any thread.
  int64_t num_written() const { return num_written_.load(std::memory_order_relaxed); }
  int64_t num_failed_written() const { return num_failed_written_.load(std::memory_order_relaxed); }
  // The first error of writing, or ok.
  Status status() const;
  // Waits until everything put is written (held-back records too, in order); the sink stays open.
  Status drain();
  // The same, for no longer than timeout_ms. False: writing is still held up.
  bool drain_within(double timeout_ms);

 private:
  struct Item {
    int64_t ordinal;
    Completion completion;
  };
  struct FormattedRecord {
    std::string text;
    bool is_error;
  };
  void run();
  void write_all();
  Status write_queue();
  Status write(Item item);
  Status append(const FormattedRecord& record);
  void fail(Status status);

  OutputSink& sink_;
  ErrorFile* const errors_;
  ResultFormatter formatter_;
  const OutputOrder order_;
  BoundedQueue<Item> queue_{kQueueLength};
  std::map<int64_t, FormattedRecord> held_;  // writer thread: formatted records that wait for an earlier one
  std::atomic<int64_t> next_ordinal_{0};     // kInput: the next to be written
  std::atomic<int64_t> num_written_{0}, num_failed_written_{0};
  mutable std::mutex mutex_;
  std::condition_variable ended_;
  Status status_;           // guarded by mutex_
  bool has_ended_ = false;  // guarded by mutex_: the writer thread
  std::thread thread_;
};

}  // namespace llmb
