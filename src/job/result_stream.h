// Completions on their way out: counted, formatted, put in order if asked, and written by a thread of its own, so that
// a slow disk or reader never holds up a step until the queue is full.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "base/bounded_queue.h"
#include "base/status.h"
#include "engine/completion_sink.h"
#include "io/result_writer.h"
#include "job/error_file.h"
#include "job/held_records.h"
#include "job/output_sink.h"
#include "job/request_metrics.h"

namespace llmb {

enum class OutputOrder { kCompletion, kInput };

// Invariants: every item put is written exactly once, unless writing failed or drain() came first; with kInput records
// are written by increasing ordinal, as long as is_in_order().
//
// With kInput a record waits for those of earlier lines. Where the sink is a stream, all that wait are held back, on disk
// beyond kMaxHeldBytes. A file can be put in order at its end: there at most kMaxHeld wait, so that a crash costs no more
// answers, and none where the order of computing is another one than the input's anyway. Beyond that records are written as
// they come.
class ResultStream {
 public:
  static constexpr size_t kMaxHeld = 4096;                // records
  static constexpr size_t kMaxHeldBytes = size_t{32} << 20;
  static constexpr size_t kQueueLength = 1024;            // records

  // is_planned: rows are computed in another order than that of the input.
  ResultStream(ResultFormatter formatter, OutputOrder order, bool is_planned, const SloTargets& slo);
  ~ResultStream();
  ResultStream(const ResultStream&) = delete;
  ResultStream& operator=(const ResultStream&) = delete;

  // Starts to write. Both outlive the stream; `errors` (may be null) gets a copy of every error record. Call once at
  // most.
  void begin(OutputSink& sink, ErrorFile* errors, const JobStamp& stamp = {});

  // Ordinals count input lines from 0 without gaps. Blocks while the writer is far behind, or has not begun; drops the
  // item where writing has failed. From any thread, as what follows.
  void put(FinishedItem item) { queue_.push(std::move(item)); }
  // put() blocks no longer, and drops.
  void close() { queue_.close(); }
  // Records, and those of them that are errors.
  int64_t num_written() const { return num_written_.load(std::memory_order_relaxed); }
  int64_t num_failed_written() const { return num_failed_written_.load(std::memory_order_relaxed); }
  // The sink has not taken the record yet that it was given last.
  bool is_writing() const { return is_writing_.load(std::memory_order_relaxed); }
  // With kInput: every record was written behind those of earlier lines.
  bool is_in_order() const { return is_in_order_.load(std::memory_order_relaxed); }
  bool has_failed() const { return has_failed_.load(std::memory_order_relaxed); }
  // The first error of writing, or ok.
  Status status() const;

  // For one thread only: waits until everything put is written (held-back records too, in order); the sink stays open.
  Status drain();
  // The same, for no longer than timeout_ms. False: writing is still held up.
  bool drain_within(double timeout_ms);
  // REQUIRES: drained.
  const RequestMetrics& metrics() const { return metrics_; }

 private:
  void run();
  void write_all();
  Status write_queue();
  Status write(const FinishedItem& item);
  Status write_in_order(int64_t ordinal, FormattedRecord record);
  Status append_held();
  Status append(const FormattedRecord& record);
  void fail(Status status);

  ResultFormatter formatter_;
  const OutputOrder order_;
  const bool is_planned_;
  BoundedQueue<FinishedItem> queue_{kQueueLength};
  OutputSink* sink_ = nullptr;   // null before begin()
  ErrorFile* errors_ = nullptr;  // null: none
  // The writer thread's.
  RequestMetrics metrics_;
  HeldRecords held_{kMaxHeldBytes};
  int64_t next_ordinal_ = 0;  // kInput: the next to be written

  std::atomic<int64_t> num_written_{0}, num_failed_written_{0};
  std::atomic<bool> has_failed_{false}, is_writing_{false}, is_in_order_{true};
  mutable std::mutex mutex_;
  std::condition_variable ended_;
  Status status_;           // guarded by mutex_
  bool has_ended_ = false;  // guarded by mutex_: the writer thread
  std::thread thread_;
};

}  // namespace llmb
