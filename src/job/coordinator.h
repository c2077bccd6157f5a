// One side of a run: reads the input, numbers its lines, hands requests out, takes completions back and sees to their
// records. The other side, a worker, meets it in two bounded queues of values, requests out and completions back.
//
//   lines → RequestIntake → RowPlanner ──work items──► worker ──finished items──► ResultStream → records
//                 └──────────────── lines that are errors, equal rows ────────────────┘
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

#include "base/bounded_queue.h"
#include "base/status.h"
#include "engine/completion_sink.h"
#include "engine/request_source.h"
#include "io/input_tally.h"
#include "job/equal_rows.h"
#include "job/error_tally.h"
#include "job/input_forecast.h"
#include "job/request_intake.h"
#include "job/result_stream.h"
#include "job/row_planner.h"
#include "job/row_reader.h"
#include "planner/forecast.h"

namespace llmb {

struct CoordinatorOptions {
  size_t window = 256;                  // requests read ahead of the workers at most, without a plan
  Schedule schedule = Schedule::kFile;  // else rows are read ahead and planned, and equal ones computed once
  size_t plan_bytes = 0;                // for that; not with kFile
  int32_t num_slots = 1;                // rows that run at one time
  bool shares_prefixes = true;          // what prompts have in common is computed once
  bool packs_input = false;             // WorkItem::packed_input
  std::shared_ptr<RowReader> reader;    // of rows beyond plan_bytes; null: they are planned window by window
  OutputOrder order = OutputOrder::kCompletion;
  ResultFormat format;
  std::optional<int64_t> max_errors;  // error records that the run may produce; one more ends it
  SloTargets slo;
  std::function<void(const ErrorCount&)> on_new_error;  // ErrorTally; from any of the coordinator's threads
};

// Invariants:
//  1. Ordinals count the lines that need an answer from 0, without gaps, in input order.
//  2. Every line with an ordinal is given to the engine once, or put as an error record once, or gets the answer to an
//     equal one, unless stop() came first.
//  3. At most max_errors + 1 error records are put, and none where max_errors < 0.
//
// Threads of its own: one that reads, one that plans, one that writes. RequestSource and CompletionSink may be used by any
// thread, so by several workers, which then share the requests; the rest belongs to the thread that runs the job.
// stop() ends reading for all of them.
class Coordinator final : public RequestSource, public CompletionSink {
 public:
  // Begins to read.
  Coordinator(std::unique_ptr<RequestIntake> intake, const CoordinatorOptions& options);
  ~Coordinator() override;
  Coordinator(const Coordinator&) = delete;
  Coordinator& operator=(const Coordinator&) = delete;

  // Waits up to timeout_ms for a line that needs an answer; false: none yet, or no more (see has_read_all()).
  bool wait_for_line(double timeout_ms);
  bool has_read_all() const;
  // Why reading ended, as RequestIntake::run(); ok while it goes on.
  Status input_status() const;
  // Fields that records were to repeat and that no line of this run has; none while reading goes on.
  std::vector<std::string> fields_never_kept() const;
  // Over all lines of the inputs. REQUIRES: has_read_all()
  const InputTally& input_tally() const { return intake_->input_tally(); }
  std::optional<int64_t> total_bytes() const { return intake_->total_bytes(); }

  // Begins to write items, those already put included. Both outlive this; `errors` may be null. Call once at most.
  void begin_output(OutputSink& sink, ErrorFile* errors, const JobStamp& stamp = {}) {
    results_.begin(sink, errors, stamp);
  }

  // RequestSource
  std::optional<WorkItem> next(double timeout_ms) override;
  bool at_end() const override { return work_.drained(); }
  void stop() override;

  // CompletionSink. Closed where writing has failed or there are too many errors.
  void put(FinishedItem item) override;
  bool is_closed() const override { return results_.has_failed() || has_too_many_errors(); }

  bool has_too_many_errors() const { return max_errors_ && num_failed_.load() > *max_errors_; }
  // From any thread: lines with an ordinal, bytes of the inputs as stored that they take, items put, errors of them.
  int64_t num_read() const { return num_read_.load(std::memory_order_relaxed); }
  int64_t input_bytes() const { return input_bytes_.load(std::memory_order_relaxed); }
  int64_t num_done() const { return num_done_.load(std::memory_order_relaxed); }
  int64_t num_failed() const { return num_failed_.load(std::memory_order_relaxed); }
  int64_t num_equal_rows() const { return equal_rows_ ? equal_rows_->num_found() : 0; }  // answered with another one
  // Covers all rows that were read so far.
  const InputForecast& input_forecast() const { return input_forecast_; }
  void set_running(int64_t num_answers, int64_t num_tokens) { input_forecast_.set_running(num_answers, num_tokens); }
  Forecast forecast() const { return input_forecast_.forecaster().forecast(); }
  // Tokens of the rows that an engine has finished, prompts included.
  int64_t num_finished_tokens() const { return num_finished_tokens_.load(std::memory_order_relaxed); }
  const ErrorTally& errors() const { return errors_; }  // of items put
  ResultStream& results() { return results_; }

 private:
  void read();
  bool take(IntakeItem item);
  bool answer(int64_t ordinal, IntakeItem item);
  bool hand_on(WorkItem item);
  void put_one(FinishedItem item);

  const std::unique_ptr<RequestIntake> intake_;
  const std::optional<int64_t> max_errors_;
  ResultStream results_;
  ErrorTally errors_;
  BoundedQueue<WorkItem> work_;
  const std::shared_ptr<RowReader> reader_of_rows_;
  InputForecast input_forecast_;
  std::optional<EqualRows> equal_rows_;  // both but with Schedule::kFile
  std::optional<RowPlanner> planner_;
  std::atomic<int64_t> num_read_{0}, input_bytes_{0}, num_done_{0}, num_failed_{0};
  std::atomic<int64_t> num_finished_tokens_{0};
  std::atomic<int64_t> num_error_turns_{0};  // errors that were to be put, within the budget or not
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool has_line_ = false, has_read_all_ = false;  // guarded by mutex_
  Status input_status_;                           // guarded by mutex_
  std::vector<std::string> fields_never_kept_;    // guarded by mutex_
  std::thread reader_;
};

}  // namespace llmb
