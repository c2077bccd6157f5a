#include "engine/engine.h"

#include <algorithm>
#include <string>
#include <utility>

namespace llmb {

namespace {
// While idle, how long to wait for input before looking at interrupts and progress again.
constexpr double kIdlePollMs = 100;
// Requests known to the scheduler but not running: enough to fill a batch at once after another ends.
int64_t waiting_window(const SchedulerConfig& config) { return std::max<int64_t>(16, 2 * int64_t{config.max_num_seqs}); }
}  // namespace

Engine::Engine(const EngineOptions& options, Backend& backend, const Tokenizer* tokenizer, Clock& clock,
               RequestIntake& intake, ResultStream& results, RunMetrics& metrics, const std::atomic<int>& interrupted,
               std::function<void(const EngineProgress&)> on_progress)
    : options_(options), backend_(backend), tokenizer_(tokenizer), clock_(clock), intake_(intake), results_(results),
      metrics_(metrics), interrupted_(interrupted), on_progress_(std::move(on_progress)), scheduler_(options.scheduler) {}

Status Engine::run() {
  start_ms_ = clock_.now_ms();
  std::optional<double> drain_until_ms;
  while (true) {
    if (interrupted_.load(std::memory_order_relaxed) > 0) {
      if (!drain_until_ms) {
        drain_until_ms = clock_.now_ms() + options_.grace_ms;
        leave(/*running_too=*/false);
      }
      if (interrupted_.load(std::memory_order_relaxed) > 1 || clock_.now_ms() >= *drain_until_ms) leave(/*running_too=*/true);
      if (active_.empty()) return {};
    } else {
      LLMB_RETURN_IF_ERROR(admit());
    }
    LLMB_RETURN_IF_ERROR(results_.status());
    if (has_too_many_errors()) {
      leave(/*running_too=*/true);
      return {};
    }
    if (scheduler_.schedule(clock_.now_ms(), more_may_arrive(), &plan_)) LLMB_RETURN_IF_ERROR(run_step());
    else if (active_.empty() && !more_may_arrive()) break;
    else LLMB_RETURN_IF_ERROR(wait_for_event());
    report_progress();
  }
  return intake_.status();
}

// Takes what has arrived; never waits.
Status Engine::admit() {
  while (scheduler_.num_waiting() < waiting_window(options_.scheduler) && !has_too_many_errors()) {
    if (!held_) held_ = intake_.next(0);
    if (!held_ || !results_.has_room(next_ordinal_) || hold_until_arrival(*held_)) break;
    IntakeItem item = std::move(*held_);
    held_.reset();
    LLMB_RETURN_IF_ERROR(admit_item(std::move(item)));
  }
  return {};
}

// Nothing can run now: waits for input, for a simulated arrival or for a batch window to close.
Status Engine::wait_for_event() {
  const double now_ms = clock_.now_ms();
  double timeout_ms = kIdlePollMs;
  const std::optional<double> wakeup_ms = scheduler_.next_wakeup_ms();
  if (wakeup_ms) timeout_ms = std::min(timeout_ms, *wakeup_ms - now_ms);
  if (held_ && held_->request) timeout_ms = std::min(timeout_ms, held_->request->arrival_ms - now_ms);
  timeout_ms = std::max(0.0, timeout_ms);
  if (held_ || (wakeup_ms && intake_.at_end())) clock_.sleep_until_ms(now_ms + timeout_ms);
  else if (!intake_.at_end()) held_ = intake_.next(timeout_ms);
  else if (active_.empty()) return {};
  else return internal_error("the scheduler has " + std::to_string(active_.size()) + " sequences and nothing to run");
  return {};
}

// Fixes the arrival on the engine's clock; true where it lies in the future.
bool Engine::hold_until_arrival(IntakeItem& item) {
  if (!item.request) return false;
  if (!item.arrival_is_clock_time) {
    item.arrival_ms += start_ms_;
    item.arrival_is_clock_time = true;
  }
  item.request->arrival_ms = std::max(item.arrival_ms, start_ms_);
  return item.request->arrival_ms > clock_.now_ms();
}

Status Engine::admit_item(IntakeItem item) {
  const int64_t ordinal = next_ordinal_++;
  input_bytes_ = item.input_bytes;
  if (!item.request) return emit(ordinal, std::move(item.failure), {});
  std::shared_ptr<const Request> request = std::move(item.request);
  auto added = scheduler_.add(request, clock_.now_ms());
  if (auto* error = std::get_if<RequestError>(&added)) {
    Completion completion = completion_for(*request);
    completion.finish_reason = FinishReason::kError;
    completion.error = std::move(*error);
    return emit(ordinal, std::move(completion), {});
  }
  active_.try_emplace(std::get<SeqId>(added), std::move(request), ordinal, tokenizer_, options_.virtual_token_ms);
  return {};
}

Status Engine::run_step() {
  const double begin_ms = clock_.now_ms();
  for (const SeqId seq : plan_.seq_ids) active_.at(seq).mark_scheduled(begin_ms);
  LLMB_RETURN_IF_ERROR(backend_.submit(plan_));
  // The device works: take in what has arrived meanwhile.
  const Status admitted = interrupted_.load(std::memory_order_relaxed) > 0 ? Status() : admit();
  LLMB_RETURN_IF_ERROR(backend_.wait(&output_));
  LLMB_RETURN_IF_ERROR(admitted);
  const double end_ms = clock_.now_ms();
  metrics_.add_step(plan_, end_ms - begin_ms, scheduler_.kv_usage());
  num_output_tokens_ += plan_.num_samples();
  num_input_tokens_ += plan_.num_tokens() - plan_.num_samples();
  return process_output(end_ms);
}

Status Engine::process_output(double now_ms) {
  updates_.clear();
  scheduler_.apply(plan_, output_, &updates_);
  for (const SequenceUpdate& update : updates_) {
    ActiveRequest& active = active_.at(update.seq);
    if (update.numeric_error) {
      Completion completion = completion_for(active.request());
      completion.finish_reason = FinishReason::kError;
      completion.error = RequestError{"numeric_error", "the model's logits held NaN or infinity", std::nullopt};
      LLMB_RETURN_IF_ERROR(emit(active.ordinal(), std::move(completion), {}));
      active_.erase(update.seq);
      continue;
    }
    const bool stopped = active.add_token(output_, update.sample, update.stop_token.has_value(), now_ms);
    if (stopped && !update.finish) scheduler_.finish(update.seq);
    // A stop string and the last token allowed may coincide: the stop string is the reason.
    if (stopped) LLMB_RETURN_IF_ERROR(complete(update, FinishReason::kStop));
    else if (update.finish) LLMB_RETURN_IF_ERROR(complete(update, *update.finish));
  }
  return {};
}

Status Engine::complete(const SequenceUpdate& update, FinishReason reason) {
  ActiveRequest& active = active_.at(update.seq);
  Completion completion = active.finish(reason, update.stop_token, update.num_preemptions);
  const Status status = emit(active.ordinal(), std::move(completion), active.itl_ms());
  active_.erase(update.seq);
  return status;
}

Status Engine::emit(int64_t ordinal, Completion completion, const std::vector<float>& itl_ms) {
  metrics_.add_completion(completion, itl_ms);
  return results_.put(ordinal, std::move(completion));
}

// Interrupted: drops what never ran, and running requests too when there is no time left for them.
void Engine::leave(bool running_too) {
  intake_.stop();
  if (held_) metrics_.num_unanswered++;
  held_.reset();
  for (auto it = active_.begin(); it != active_.end();) {
    if (it->second.was_scheduled() && !running_too) {
      ++it;
      continue;
    }
    scheduler_.finish(it->first);
    metrics_.num_unanswered++;
    it = active_.erase(it);
  }
}

void Engine::report_progress() {
  if (!on_progress_) return;
  EngineProgress p;
  p.now_ms = clock_.now_ms() - start_ms_;
  p.num_done = metrics_.num_completed + metrics_.num_failed;
  p.num_failed = metrics_.num_failed;
  p.num_input_tokens = num_input_tokens_;
  p.num_output_tokens = num_output_tokens_;
  p.num_running = scheduler_.num_running();
  p.num_waiting = scheduler_.num_waiting();
  const KvUsage kv = scheduler_.kv_usage();
  p.kv_use = static_cast<double>(kv.allocated_slots) / static_cast<double>(kv.total_slots);
  p.num_seen = next_ordinal_;
  p.input_bytes = input_bytes_;
  on_progress_(p);
}

}  // namespace llmb
