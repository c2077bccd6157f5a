// The part of a pool's life in which it answers rows.
#include <algorithm>
#include <utility>

#include "engine/prompt_transfer.h"
#include "job/worker_pool.h"

namespace llmb {

namespace {

constexpr double kHungryMs = 2;      // rows may come, and a worker has room for them
constexpr double kLookMs = 50;       // else: progress and interrupts are looked at
constexpr double kFinishMs = 10000;  // for the last words of workers that have nothing to do any more
constexpr double kOverdueMs = 500;   // beyond the grace
constexpr int64_t kMaxBlockBytes = int64_t{1} << 30;  // of prompts that wait for who goes on; then no more are begun

}  // namespace

Status WorkerPool::run(RequestSource& requests, CompletionSink& completions, const Tokenizer*, Clock& clock,
                       const std::atomic<int>&, const std::function<void(const EngineProgress&)>& on_progress) {
  Run run = {requests, completions, clock, on_progress, clock.now_ms(), monotonic_ms()};
  run_ = &run;
  for (const std::string& words : std::exchange(warnings_, {})) options_.warn(words);
  const Status status = run_rows();
  const double end_ms = clock.now_ms();
  is_ending_ = true;
  num_left_ += static_cast<int64_t>(drop_waiting() + num_in_hand() + run.held.has_value());
  if (status.ok() && !completions.is_closed()) finish_workers();
  for (int i = 0; i < options_.count; ++i) {
    Place& place = places_[static_cast<size_t>(i)];
    if (!place.process) continue;
    add_report(place.report, role_of(i) == WorkerRole::kPrefill);
    place.process.reset();
  }
  run_ = nullptr;
  ending_ms_ = clock.now_ms() - end_ms;
  return status;
}

Status WorkerPool::run_rows() {
  while (true) {
    if (run_->sink.is_closed()) return {};
    start_those_due();
    if (!is_any_left()) return device_error("no worker is left; the last: " + last_words_);
    if (is_interrupted()) {
      if (num_in_hand() == 0) return {};
    } else {
      take_rows();
      deal_rows();
      const bool has_rows = run_->held || num_in_hand() + num_waiting() > 0;
      if (!has_rows && run_->source.at_end()) return {};
    }
    const bool is_hungry = !run_->source.at_end() && dealer_.num_waiting() == 0 && run_->num_interrupts == 0;
    exchange(is_hungry ? kHungryMs : kLookMs);
    report_progress();
    for (const Place& place : places_)
      if (place.failure && place.failure->end == JobEnd::kModelRefused) return data_loss(place.failure->message);
  }
}

// Whether the job was asked to end: the workers are told, and have the grace for what they run.
bool WorkerPool::is_interrupted() {
  const int count = interrupted_.load();
  if (count == 0) return false;
  if (run_->num_interrupts == 0) {
    run_->source.stop();
    num_left_ += static_cast<int64_t>(drop_waiting() + run_->held.has_value());
    run_->held.reset();
    run_->overdue_ms = monotonic_ms() + options_.grace_ms + kOverdueMs;
    is_ending_ = true;
  }
  if (count == run_->num_interrupts) {
    // They drop what they did not begin, without a word, and end.
    for (int i = 0; i < options_.count; ++i) {
      Place& place = places_[static_cast<size_t>(i)];
      const bool is_over = place.has_finished || monotonic_ms() > run_->overdue_ms;
      if (!place.process || !is_over) continue;
      lose(i, "");
    }
    num_left_ += static_cast<int64_t>(drop_waiting());
    return true;
  }
  run_->num_interrupts = count;
  if (count > 1) run_->overdue_ms = std::min(run_->overdue_ms, monotonic_ms() + kOverdueMs);
  for (Place& place : places_)
    if (place.process) place.process->send(MessageKind::kInterrupt, pack_message(static_cast<int32_t>(count)));
  return true;
}

// A row that arrives later holds up those behind it, as in an engine.
void WorkerPool::take_rows() {
  while (dealer_.wants_rows() && (!decoder_ || decoder_->wants_rows())) {
    if (!run_->held) run_->held = run_->source.next(0);
    if (!run_->held) return;
    WorkItem& row = *run_->held;
    if (!row.arrival_is_clock_time) {
      row.arrival_ms += run_->start_ms;
      row.arrival_is_clock_time = true;
    }
    if (row.arrival_ms > run_->clock.now_ms()) return;
    deal_row(std::move(row));
    run_->held.reset();
  }
}

// Short prompts, and rows that are no answers, go to those that decode at once.
void WorkerPool::deal_row(WorkItem row) {
  const bool is_moved = !decoder_ || num_movable_tokens(*row.request, info_.kv.block_size) > 0;
  (is_moved ? dealer_ : *decoder_).add(std::move(row));
}

// Whether no row will come for the worker but those that are with it, or with others of its kind.
bool WorkerPool::has_all(int index) {
  const bool may_get_more = role_of(index) == WorkerRole::kDecode && dealer_.num_in_hand() + dealer_.num_waiting() > 0;
  return !may_get_more && dealer_of(index).has_all(index);
}

size_t WorkerPool::drop_waiting() {
  blocks_.clear();
  num_block_bytes_ = 0;
  return dealer_.drop_waiting() + (decoder_ ? decoder_->drop_waiting() : 0);
}

void WorkerPool::deal_rows() {
  // Round by round, so that no worker gets all where there are few.
  for (bool is_any_dealt = true; is_any_dealt;) {
    is_any_dealt = false;
    for (int i = 0; i < options_.count; ++i) {
      Place& place = places_[static_cast<size_t>(i)];
      if (!place.is_ready || place.has_finished) continue;
      if (!place.has_start) {
        const bool is_first = std::none_of(places_.begin(), places_.end(), [](const Place& p) { return p.has_start; });
        place.has_start = true;
        dealer_of(i).set_alive(i);
        const WorkerStart start = {step_cost_.curve(), options_.measures_limits && is_first};
        place.process->send(MessageKind::kStart, pack_message(start));
      }
      if (role_of(i) == WorkerRole::kPrefill && num_block_bytes_ >= kMaxBlockBytes) continue;
      const WorkItem* const row = dealer_of(i).deal(i);
      if (row == nullptr) continue;
      send_row(i, *row);
      is_any_dealt = true;
    }
  }
  const bool is_at_end = run_->source.at_end() && !run_->held;
  for (int i = 0; i < options_.count; ++i) {
    Place& place = places_[static_cast<size_t>(i)];
    if (!place.has_start || place.has_no_more || !is_at_end || !has_all(i)) continue;
    place.has_no_more = true;
    place.process->send(MessageKind::kNoMore);
  }
}

void WorkerPool::send_row(int index, const WorkItem& row) {
  Place& place = places_[static_cast<size_t>(index)];
  place.has_no_more = false;
  const double arrival_ms = run_->start_monotonic_ms + row.arrival_ms - run_->start_ms;
  RowMessage message = {row.ordinal, arrival_ms, row.packed_input};
  if (const auto at = blocks_.find(row.ordinal); at != blocks_.end() && role_of(index) == WorkerRole::kDecode) {
    num_block_bytes_ -= static_cast<int64_t>(at->second.size());
    message.packed_blocks = std::move(at->second);
    blocks_.erase(at);
  }
  place.process->send(MessageKind::kRow, pack_message(message));
}

// They tell what they did, and end.
void WorkerPool::finish_workers() {
  for (Place& place : places_)
    if (place.process) place.process->send(MessageKind::kEnd);
  const double until_ms = monotonic_ms() + kFinishMs;
  const auto is_awaited = [](const Place& place) { return place.process && place.has_start && !place.has_finished; };
  while (std::any_of(places_.begin(), places_.end(), is_awaited) && monotonic_ms() < until_ms &&
         interrupted_.load() <= run_->num_interrupts)
    exchange(kLookMs);
  for (const Place& place : places_) {
    if (!place.has_finished) continue;
    if (place.report.limits.flops_per_s > 0) limits_ = place.report.limits;
    if (!place.report.step_cost.points.empty()) step_cost_ = StepCost(place.report.step_cost);
  }
}

void WorkerPool::report_progress() {
  EngineProgress all;
  all.now_ms = run_->clock.now_ms() - run_->start_ms;
  all.num_input_tokens = num_ended_input_tokens_;
  all.num_output_tokens = num_ended_output_tokens_;
  double kv_use = 0;
  for (const Place& place : places_) {
    const EngineProgress& p = place.report.progress;
    if (!place.process) continue;
    all.num_input_tokens += p.num_input_tokens;
    all.num_output_tokens += p.num_output_tokens;
    all.num_running += p.num_running;
    all.num_waiting += p.num_waiting;
    all.num_running_tokens += p.num_running_tokens;
    all.num_active_tokens += p.num_active_tokens;
    kv_use += p.kv_use;
  }
  all.num_waiting += static_cast<int64_t>(num_waiting());
  all.kv_use = kv_use / options_.count;
  run_->on_progress(all);
}

}  // namespace llmb
