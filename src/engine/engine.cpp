#include "engine/engine.h"

#include <algorithm>
#include <exception>
#include <new>
#include <string>
#include <utility>

#include "base/log.h"
#include "base/memory_reserve.h"
#include "engine/prompt_transfer.h"
#include "engine/swap_cost.h"
#include "engine/waiting_cost.h"

namespace llmb {

namespace {
// While idle, how long to wait for input before looking at interrupts and progress again.
constexpr double kIdlePollMs = 100;
// While it waits for an adapter, how long before it looks for requests that need none.
constexpr double kAdapterPollMs = 5;
// Requests known to the scheduler but not running: enough to fill a batch at once after another ends.
int64_t waiting_window(const SchedulerConfig& config) {
  return std::max<int64_t>(16, 2 * int64_t{config.max_num_seqs});
}

// No plan asks for what the backend cannot do.
SchedulerConfig limited(SchedulerConfig config, const BackendInfo& backend) {
  config.max_drafts_per_group = std::min(config.max_drafts_per_group, backend.max_drafts_per_group);
  config.allows_trees = config.allows_trees && backend.verifies_trees;
  config.max_best_tokens = std::min(config.max_best_tokens, backend.max_best_tokens);
  config.scores_prompts = config.scores_prompts && backend.scores_prompts;
  config.copies_blocks = config.copies_blocks && backend.copies_blocks;
  config.num_host_blocks = config.preemption == PreemptionMode::kRecompute ? 0 : backend.num_host_blocks;
  config.num_state_slots = backend.num_state_slots;
  config.num_snapshots = config.enable_prefix_caching ? backend.num_snapshots : 0;
  config.state_period = backend.state_period;
  if (backend.num_state_slots > 0) config.allows_trees = false;
  return config;
}

}  // namespace

Engine::Engine(const EngineOptions& options, Backend& backend, const Tokenizer* tokenizer, Clock& clock,
               RequestSource& source, CompletionSink& sink, const std::atomic<int>& interrupted,
               std::function<void(const EngineProgress&)> on_progress)
    : options_(options),
      backend_(backend),
      tokenizer_(tokenizer),
      clock_(clock),
      source_(source),
      sink_(sink),
      interrupted_(interrupted),
      on_progress_(std::move(on_progress)),
      scheduler_(limited(options.scheduler, backend.info()), options.proposer),
      gate_(backend.adapters()),
      mask_workers_(options.num_threads, clock),
      // Steps of a CPU take all cores.
      mask_ahead_(backend.info().kind == DeviceKind::kCuda ? options.num_threads - 1 : 0) {}

// Only an exception leaves steps in flight; they read plans_.
Engine::~Engine() {
  try {
    for (; num_finished_ < num_submitted_; ++num_finished_)
      if (!backend_.wait(&output_).ok()) return;
  } catch (const std::bad_alloc&) {  // nothing is left to say it with
  } catch (const std::exception& e) {
    log_error(std::string("while a step was given up: ") + e.what());
  }
}

Status Engine::run() {
  start_ms_ = idle_since_ms_ = clock_.now_ms();
  Status status = run_steps();
  // Work that the device has begun counts, whatever ended the run.
  while (num_finished_ < num_submitted_) {
    const Status finished = finish_step();
    if (status.ok()) status = finished;
  }
  return status;
}

Status Engine::run_steps() {
  std::optional<double> drain_until_ms;
  while (true) {
    if (interrupted_.load(std::memory_order_relaxed) > 0) {
      if (!drain_until_ms) {
        drain_until_ms = clock_.now_ms() + options_.grace_ms;
        leave(/*running_too=*/false);
      }
      if (interrupted_.load(std::memory_order_relaxed) > 1 || clock_.now_ms() >= *drain_until_ms)
        leave(/*running_too=*/true);
      if (active_.empty()) return {};
    } else {
      admit();
    }
    if (is_memory_short()) return resource_exhausted("out of memory");
    if (sink_.is_closed()) {
      leave(/*running_too=*/true);
      return {};
    }
    LLMB_RETURN_IF_ERROR(submit_steps());
    if (num_finished_ < num_submitted_) {
      // The device works: take in what has arrived meanwhile.
      if (interrupted_.load(std::memory_order_relaxed) == 0) admit();
      LLMB_RETURN_IF_ERROR(finish_step());
    } else if (active_.empty() && !more_may_arrive()) {
      return {};
    } else {
      LLMB_RETURN_IF_ERROR(wait_for_event());
      idle_since_ms_ = clock_.now_ms();
    }
    report_progress();
  }
}

// Takes what has arrived; never waits.
void Engine::admit() {
  const int64_t window = waiting_window(options_.scheduler);
  gate_.on_step(num_finished_);
  admit_ready();
  while (scheduler_.num_waiting() < window && gate_.num_held() < window && !sink_.is_closed()) {
    if (!held_) held_ = source_.next(0);
    if (!held_ || hold_until_arrival(*held_) || lacks_host_room(*held_)) return;
    gate_.put(std::move(*held_));
    held_.reset();
    admit_ready();
  }
}

void Engine::admit_ready() {
  while (scheduler_.num_waiting() < waiting_window(options_.scheduler)) {
    std::optional<WorkItem> item = gate_.take();
    if (!item) return;
    admit_item(std::move(*item));
  }
}

// Nothing can run now: waits for input, for a simulated arrival or for a batch window to close.
Status Engine::wait_for_event() {
  const double now_ms = clock_.now_ms();
  double timeout_ms = kIdlePollMs;
  const std::optional<double> wakeup_ms = scheduler_.next_wakeup_ms();
  if (wakeup_ms) timeout_ms = std::min(timeout_ms, *wakeup_ms - now_ms);
  if (held_) timeout_ms = std::min(timeout_ms, held_->request->arrival_ms - now_ms);
  timeout_ms = std::max(0.0, timeout_ms);
  if (gate_.num_held() > 0) gate_.wait(std::min(timeout_ms, kAdapterPollMs));
  else if (held_ || (wakeup_ms && source_.at_end())) clock_.sleep_until_ms(now_ms + timeout_ms);
  else if (!source_.at_end()) held_ = source_.next(timeout_ms);
  else if (active_.empty()) return {};
  else return internal_error("the scheduler has " + std::to_string(active_.size()) + " sequences and nothing to run");
  return {};
}

// For what was computed elsewhere; those that wait give their part of the host's pool back when they join.
bool Engine::lacks_host_room(const WorkItem& item) const {
  return item.blocks && scheduler_.num_waiting() > 0 &&
         (static_cast<int64_t>(item.blocks->places.size()) > scheduler_.num_free_host_blocks() ||
          !scheduler_.has_room_for_state());
}

// Fixes the arrival on the engine's clock; true where it lies in the future.
bool Engine::hold_until_arrival(WorkItem& item) {
  if (!item.arrival_is_clock_time) {
    item.arrival_ms += start_ms_;
    item.arrival_is_clock_time = true;
  }
  item.request->arrival_ms = std::max(item.arrival_ms, start_ms_);
  return item.request->arrival_ms > clock_.now_ms();
}

void Engine::admit_item(WorkItem item) {
  const Status adapter = gate_.status_of(item);
  std::shared_ptr<const Request> request = std::move(item.request);
  auto added = adapter.ok() ? scheduler_.add(request, clock_.now_ms())
                            : RequestError{"invalid_adapter", adapter.message(), "adapter"};
  if (auto* error = std::get_if<RequestError>(&added)) {
    gate_.end(*request, num_submitted_);
    return put_error(item.ordinal, *request, std::move(*error));
  }
  const int32_t num_choices = request->params.sampling.num_choices;
  const std::shared_ptr<ActiveRequest> active(
      new ActiveRequest(std::move(request), item.ordinal, tokenizer_, options_.virtual_token_ms),
      [this](const ActiveRequest* ended) {
        gate_.end(ended->request(), num_submitted_);
        delete ended;
      });
  if (item.blocks) {
    active->take_over(*item.blocks);
    write_prompt(*item.blocks, std::get<SeqId>(added), scheduler_, backend_);
  }
  for (int32_t choice = 0; choice < num_choices; ++choice) {
    const SeqId seq = std::get<SeqId>(added) + choice;
    const Request& own = active->request().part(choice);
    work_.add(seq, static_cast<int32_t>(own.prompt_tokens.size()), choice == 0 || &own != &active->request());
    active_[seq] = active;
  }
}

void Engine::add_mask_row(SeqId seq) {
  const Sequence* const sequence = scheduler_.find(seq);
  if (sequence == nullptr || sequence->constraint == nullptr) return;
  ConstraintState* const state = sequence->constraint.get();
  if (mask_rows_.empty() || mask_rows_.back().state != state)  // it may have got several tokens
    mask_rows_.push_back({sequence->request->constraint.get(), state});
}

// Behind the tokens of the newest step.
void Engine::find_masks() {
  mask_rows_.clear();
  for (const SequenceUpdate& update : updates_) add_mask_row(update.seq);
  mask_workers_.find(&mask_rows_);
}

// Behind tokens that the oldest step in flight may give.
void Engine::begin_masks_ahead() {
  if (!mask_ahead_.is_used()) return;
  std::vector<MaskAhead::Row> rows;
  const StepPlan& plan = plans_[num_finished_ % kMaxAlternatingPlans];
  for (const SampleGroup& group : plan.groups) {
    const Sequence* const sequence = scheduler_.find(group.seq);
    if (plan.sample_rows[group.row_begin].mask < 0 || sequence == nullptr || sequence->constraint == nullptr) continue;
    const int32_t first_draft = plan.sample_rows[group.row_begin].token_row + 1;
    const int32_t num_drafts = is_tree(plan, group) ? 0 : group.num_rows() - 1;
    rows.push_back({sequence->request->constraint.get(), sequence->constraint.get(),
                    std::span(plan.tokens).subspan(first_draft, num_drafts)});
  }
  mask_ahead_.begin(rows);
}

// Where layers have windows, or sequences states, a plan ahead may write to blocks that a prompt's end gave back, and that
// are yet to be read.
int64_t Engine::max_plans_in_flight() const {
  const BackendInfo& info = backend_.info();
  const bool has_windows = info.kv.groups.num_groups() > 1 || info.kv.groups.windows[0] > 0;
  if (options_.gives_blocks && (has_windows || info.num_state_slots > 0)) return 1;
  return std::min(scheduler_.max_plans_in_flight(), info.max_plans_in_flight);
}

// Whether requests may still join those that wait. One that lacks room may not, before these have run.
bool Engine::may_fill_batch() const {
  return more_may_arrive() && !gate_.lacks_room() && !(held_ && lacks_host_room(*held_));
}

// Gives the device all the steps that it holds and that can be planned by now.
Status Engine::submit_steps() {
  if (num_submitted_ == num_finished_) find_masks();  // the device waits
  const int64_t max_in_flight = max_plans_in_flight();
  while (num_submitted_ - num_finished_ < max_in_flight) {
    StepPlan& plan = plans_[num_submitted_ % kMaxAlternatingPlans];
    if (options_.step_cost != nullptr)
      scheduler_.set_swap_pays(
          swap_pays(backend_.info(), *options_.step_cost, options_.scheduler.max_num_batched_tokens));
    if (const int32_t num_constrained = scheduler_.num_constrained(); num_constrained > 0)
      scheduler_.set_constrained_wait_alone(
          waits_alone_ = waiting_alone_pays(options_.step_cost, host_ms_, scheduler_.num_running(), num_constrained,
                                            waits_alone_.value_or(false)));
    if (!scheduler_.schedule(clock_.now_ms(), may_fill_batch(), &plan)) return {};
    const double now_ms = clock_.now_ms();
    host_ms_ += (now_ms - idle_since_ms_ - host_ms_) / 16;
    LLMB_RETURN_IF_ERROR(backend_.submit(plan));
    submitted_ms_[num_submitted_ % kMaxAlternatingPlans] = now_ms;
    if (num_submitted_++ == num_finished_) {
      gap_ms_ = now_ms - idle_since_ms_;
      begin_step(now_ms);
    }
  }
  return {};
}

// The oldest step in flight has the device to itself from now on.
void Engine::begin_step(double now_ms) {
  step_begin_ms_ = now_ms;
  for (const StepEntry& entry : plans_[num_finished_ % kMaxAlternatingPlans].entries)
    if (const auto at = active_.find(entry.seq); at != active_.end()) at->second->mark_scheduled(now_ms);
}

// The time that a stage of a pipeline took for the oldest step in flight, which ends now. While each stage has a plan, one
// ends in that time; while there are fewer, a plan goes through all stages without waiting, and ends come in groups.
double Engine::stage_ms(double step_ms, double now_ms) const {
  const int32_t num_stages = options_.scheduler.num_alternating;
  if (num_submitted_ - num_finished_ >= num_stages) return step_ms;
  return (now_ms - submitted_ms_[num_finished_ % kMaxAlternatingPlans]) / num_stages;
}

Status Engine::finish_step() {
  begin_masks_ahead();
  const Status status = backend_.wait(&output_);
  mask_ahead_.end();
  if (!status.ok()) {
    num_finished_ = num_submitted_;  // nothing is in flight after an error
    return status;
  }
  const double now_ms = clock_.now_ms();
  const double step_ms = output_.device_ms > 0 ? output_.device_ms : now_ms - step_begin_ms_;
  const double learned_ms = stage_ms(step_ms, now_ms);
  StepPlan& plan = plans_[num_finished_++ % kMaxAlternatingPlans];  // at once: what follows may throw
  if (options_.proposer != nullptr) options_.proposer->see_drafts(&plan);
  StepFacts facts = {now_ms - start_ms_, now_ms - step_begin_ms_, gap_ms_, work_.add_step(plan)};
  facts.num_waiting = scheduler_.num_waiting();
  facts.is_tail = facts.num_waiting == 0 && !more_may_arrive() && 2 * plan.num_entries() < options_.scheduler.max_num_seqs;
  facts.kv = scheduler_.kv_usage();
  metrics_.prompt_tokens = scheduler_.prompt_tokens();
  metrics_.num_adapter_reads = gate_.num_reads();
  metrics_.num_evictions = scheduler_.num_evictions();
  scheduler_.apply(plan, output_, &updates_);
  if (options_.step_cost != nullptr)
    options_.step_cost->observe(plan.num_tokens(), static_cast<double>(num_context_tokens(plan)),
                                learned_ms, gap_ms_, num_attended_pairs(plan));
  if (options_.proposer != nullptr) options_.proposer->on_step(plan, output_, step_ms, gap_ms_);
  gap_ms_ = 0;
  idle_since_ms_ = now_ms;
  for (const SequenceUpdate& update : updates_) {
    if (update.is_prompt) continue;
    if (mask_ahead_.is_used()) mask_ahead_.add(update.token);
    work_.add_output_token(update.seq);
    ++facts.num_output_tokens;
  }
  facts.num_input_tokens = num_unsampled_rows(plan);
  if (options_.gives_blocks) facts.num_input_tokens += std::exchange(facts.num_output_tokens, 0);  // they are for nobody
  num_output_tokens_ += facts.num_output_tokens;
  num_input_tokens_ += facts.num_input_tokens;
  metrics_.add_step(options_.model, plan, facts);
  if (num_finished_ < num_submitted_) begin_step(now_ms);
  process_output(plan, now_ms);
  return {};
}

// Drops what never ran, and running requests too where there is no time left for them, or no use.
void Engine::leave(bool running_too) {
  source_.stop();
  if (held_) num_left_++;
  num_left_ += gate_.clear();
  held_.reset();
  for (auto it = active_.begin(); it != active_.end();) {
    if (it->second->was_scheduled() && !running_too) {
      ++it;
      continue;
    }
    scheduler_.finish(it->first);
    num_left_ += it->second.use_count() == 1;  // the last of its request's choices
    work_.remove(it->first);
    it = active_.erase(it);
  }
}

void Engine::report_progress() {
  if (!on_progress_) return;
  EngineProgress p;
  p.now_ms = clock_.now_ms() - start_ms_;
  p.num_input_tokens = num_input_tokens_;
  p.num_output_tokens = num_output_tokens_;
  p.num_running_tokens = work_.num_output_tokens();
  p.num_active_tokens = work_.num_tokens();
  p.num_running = scheduler_.num_running();
  p.num_waiting = scheduler_.num_waiting() + gate_.num_held();
  const KvUsage kv = scheduler_.kv_usage();
  p.kv_use = static_cast<double>(kv.allocated_slots) / static_cast<double>(kv.total_slots);
  on_progress_(p);
}

}  // namespace llmb
