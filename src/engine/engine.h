// The main loop: admit → schedule → run a step → hand tokens to their requests → emit what is finished. Where the
// backend holds two plans, step N+1 is planned and submitted while N runs, and N's output is handed on while N+1 runs.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "backend/backend.h"
#include "base/clock.h"
#include "base/status.h"
#include "core/step_plan.h"
#include "engine/active_request.h"
#include "engine/run_metrics.h"
#include "job/request_intake.h"
#include "job/result_stream.h"
#include "scheduler/scheduler.h"

namespace llmb {

// A look at the running engine, for progress lines.
struct EngineProgress {
  double now_ms = 0;  // since the start of the run
  int64_t num_done = 0, num_failed = 0;
  int64_t num_input_tokens = 0, num_output_tokens = 0;  // of the tokens computed so far
  int64_t num_running = 0, num_waiting = 0;
  double kv_use = 0;        // of the pool, [0, 1]
  int64_t num_seen = 0;     // lines taken from the intake
  int64_t input_bytes = 0;  // of the inputs, as stored, that these lines take
};

struct EngineOptions {
  SchedulerConfig scheduler;
  double grace_ms = 30000;            // after an interrupt, how long running requests may take to finish
  std::optional<int64_t> max_errors;  // error records that the run may produce; one more ends it
  double virtual_token_ms = 0;        // > 0: requests' times are counted, not measured (active_request.h)
};

// Driven by one thread. Invariants:
//  1. Every item taken from the intake is answered by exactly one completion, unless the run is interrupted.
//  2. active_ holds exactly the sequences that the scheduler knows.
//  3. plans_ holds the plans in flight unchanged; none is in flight when run() returns.
class Engine {
 public:
  // Everything outlives the engine. `interrupted` counts requests to stop: from 1 on nothing is admitted and what
  // never ran is left; from 2 on running requests are left too. on_progress is called after every step and when idle.
  Engine(const EngineOptions& options, Backend& backend, const Tokenizer* tokenizer, Clock& clock,
         RequestIntake& intake, ResultStream& results, RunMetrics& metrics, const std::atomic<int>& interrupted,
         std::function<void(const EngineProgress&)> on_progress);
  ~Engine();

  // Ok: every line is answered, or the run was interrupted or has too many errors (metrics.num_unanswered counts what
  // is left of the window).
  Status run();
  bool has_too_many_errors() const { return options_.max_errors && metrics_.num_failed > *options_.max_errors; }

 private:
  Status run_steps();
  Status admit();
  Status admit_item(IntakeItem item);
  bool hold_until_arrival(IntakeItem& item);
  Status submit_steps();
  void begin_step(double now_ms);
  Status finish_step();
  Status process_output(double now_ms);
  Status complete(const SequenceUpdate& update, FinishReason reason);
  Status emit(int64_t ordinal, Completion completion, const std::vector<float>& itl_ms);
  bool more_may_arrive() const { return held_.has_value() || !intake_.at_end(); }
  Status wait_for_event();
  void leave(bool running_too);
  void report_progress();

  const EngineOptions options_;
  Backend& backend_;
  const Tokenizer* const tokenizer_;
  Clock& clock_;
  RequestIntake& intake_;
  ResultStream& results_;
  RunMetrics& metrics_;
  const std::atomic<int>& interrupted_;
  const std::function<void(const EngineProgress&)> on_progress_;
  Scheduler scheduler_;
  double start_ms_ = 0;
  int64_t next_ordinal_ = 0;
  std::optional<IntakeItem> held_;  // popped, not yet admitted: it arrives later, or the result window is full
  std::unordered_map<SeqId, ActiveRequest> active_;
  std::array<StepPlan, kMaxPlansInFlight> plans_;  // step i in entry i % size
  int64_t num_submitted_ = 0, num_finished_ = 0;   // steps; those between are in flight
  double step_begin_ms_ = 0;                       // of the oldest step in flight
  StepOutput output_;
  std::vector<SequenceUpdate> updates_;
  int64_t num_input_tokens_ = 0, num_output_tokens_ = 0;
  int64_t input_bytes_ = 0;
};

}  // namespace llmb
