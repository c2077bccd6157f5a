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
#include "core/model_config.h"
#include "core/plans_in_flight.h"
#include "core/prompt_blocks.h"
#include "core/step_cost.h"
#include "core/step_plan.h"
#include "engine/active_request.h"
#include "engine/adapter_gate.h"
#include "engine/completion_sink.h"
#include "engine/mask_ahead.h"
#include "engine/mask_workers.h"
#include "engine/request_source.h"
#include "engine/step_metrics.h"
#include "engine/work_counter.h"
#include "scheduler/proposer.h"
#include "scheduler/scheduler.h"

namespace llmb {

// A look at the running engine, for progress lines.
struct EngineProgress {
  double now_ms = 0;                                    // since the start of the run
  int64_t num_input_tokens = 0, num_output_tokens = 0;  // of the tokens computed so far
  int64_t num_running = 0, num_waiting = 0;
  double kv_use = 0;  // of the pool, [0, 1]
  int64_t num_running_tokens = 0;  // outputs so far of requests under way
  int64_t num_active_tokens = 0;  // of requests under way: prompts as far as they are there, and outputs so far
};

struct EngineOptions {
  SchedulerConfig scheduler;     // its drafts: as many as the backend was loaded for, or fewer
  Proposer* proposer = nullptr;   // of drafts; outlives the engine; null: none
  StepCost* step_cost = nullptr;  // learns from each step; outlives the engine; null: none
  ModelConfig model;             // for the figures of steps
  double grace_ms = 30000;       // after an interrupt, how long running requests may take to finish
  int num_threads = 1;           // of the host, for masks
  bool gives_blocks = false;     // completions are for what their prompts left in the KV cache: FinishedItem::blocks
  double virtual_token_ms = 0;   // > 0: requests' times are counted, not measured (active_request.h)
};

// Driven by one thread. Invariants:
//  1. Every request taken from the source is answered by exactly one completion, unless the run is interrupted or the
//     sink closed.
//  2. active_ holds exactly the sequences that the scheduler knows, one for each choice that is not finished.
//  3. plans_ holds the plans in flight unchanged; none is in flight when run() returns.
class Engine {
 public:
  // Everything outlives the engine. `interrupted` counts requests to stop: from 1 on nothing is admitted and what
  // never ran is left; from 2 on running requests are left too. on_progress is called after every step and when idle.
  Engine(const EngineOptions& options, Backend& backend, const Tokenizer* tokenizer, Clock& clock,
         RequestSource& source, CompletionSink& sink, const std::atomic<int>& interrupted,
         std::function<void(const EngineProgress&)> on_progress);
  ~Engine();

  // Ok: every request is answered, or the run was interrupted or its sink closed (num_left() counts what it had taken
  // and gave up).
  Status run();

  const StepMetrics& metrics() const { return metrics_; }
  int64_t num_masks_ahead() const { return mask_ahead_.num_masks(); }
  int64_t num_left() const { return num_left_; }

 private:
  Status run_steps();
  void admit();
  void admit_ready();
  void admit_item(WorkItem item);
  bool hold_until_arrival(WorkItem& item);
  bool lacks_host_room(const WorkItem& item) const;
  bool may_fill_batch() const;
  Status submit_steps();
  int64_t max_plans_in_flight() const;
  double stage_ms(double step_ms, double now_ms) const;
  void add_mask_row(SeqId seq);
  void find_masks();
  void begin_masks_ahead();
  void begin_step(double now_ms);
  Status finish_step();
  void process_output(const StepPlan& plan, double now_ms);
  void advance_beams(const SequenceUpdate& update, double now_ms);
  void complete(const StepPlan& plan, const SequenceUpdate& update, FinishReason reason);
  std::shared_ptr<const PromptBlocks> blocks_of(const StepPlan& plan, const SequenceUpdate& update,
                                                const ActiveRequest& active);
  bool forget(SeqId seq);  // false: it was not active
  void fail_all(const SequenceUpdate& update);
  void put_error(int64_t ordinal, const Request& request, RequestError error);
  bool more_may_arrive() const { return held_.has_value() || gate_.num_held() > 0 || !source_.at_end(); }
  Status wait_for_event();
  void leave(bool running_too);
  void report_progress();

  const EngineOptions options_;
  Backend& backend_;
  const Tokenizer* const tokenizer_;
  Clock& clock_;
  RequestSource& source_;
  CompletionSink& sink_;
  const std::atomic<int>& interrupted_;
  const std::function<void(const EngineProgress&)> on_progress_;
  Scheduler scheduler_;
  double start_ms_ = 0;
  std::optional<WorkItem> held_;  // taken, not yet admitted: it arrives later
  // These outlive active_.
  AdapterGate gate_;
  int64_t num_submitted_ = 0, num_finished_ = 0;  // steps; those between are in flight
  std::unordered_map<SeqId, std::shared_ptr<ActiveRequest>> active_;
  std::array<StepPlan, kMaxAlternatingPlans> plans_;  // step i in entry i % size
  std::array<double, kMaxAlternatingPlans> submitted_ms_ = {};  // likewise
  double step_begin_ms_ = 0;                       // of the oldest step in flight
  double gap_ms_ = 0;         // before it the device had nothing to do, but for want of requests
  double idle_since_ms_ = 0;  // the end of the newest step, or of a wait for requests
  double host_ms_ = 0;        // from then until the next plan was submitted, on average
  std::optional<bool> waits_alone_;  // who has a constraint (waiting_cost.h)
  StepOutput output_;
  std::vector<SequenceUpdate> updates_;
  WorkCounter work_;  // of the sequences in active_
  StepMetrics metrics_;
  int64_t num_input_tokens_ = 0, num_output_tokens_ = 0;
  int64_t num_left_ = 0;
  MaskWorkers mask_workers_;
  std::vector<MaskWorkers::Row> mask_rows_;
  MaskAhead mask_ahead_;  // its clones need active_'s forms
};

}  // namespace llmb
