#include "tests/support/workload.h"

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <utility>

#include "base/check.h"
#include "core/draft_counts.h"
#include "core/plans_in_flight.h"
#include "tests/support/step_output.h"

namespace llmb::test {

namespace {

// One run. Members hold what the checks need between calls.
class Run {
 public:
  Run(const Workload& workload, Backend& backend, const Reference& reference);
  WorkloadOutcome take_outcome();

 private:
  void fail(const std::string& what) {
    if (outcome_.error.empty()) outcome_.error = "workload " + std::to_string(workload_.seed) + ": " + what;
  }
  bool ok() const { return outcome_.error.empty(); }
  void expect(bool condition, const char* what) {
    if (!condition) fail(what);
  }
  void expect_ok(const Status& status) {
    if (!status.ok()) fail(status.message());
  }

  void run();
  void add_arrived();
  bool step();
  bool submit();
  void finish_step();
  void idle();
  void check_order(const StepPlan& plan, const std::vector<SeqId>& ran, const std::vector<int32_t>& num_preemptions);
  void check_plan(const StepPlan& plan);
  void check_live_blocks();
  void note_ranks();
  void check_updates();
  AnswerOutcome& answer(SeqId seq) { return outcome_.answers[live_.at(seq)]; }
  void end(SeqId seq);
  void maybe_finish_one();
  void check_against_reference();
  void check_answer(const AnswerOutcome& actual);
  void count(const StepPlan& plan);
  double now_ms() const { return clock_.now_ms(); }
  bool more_may_arrive() const { return next_arrival_ < workload_.requests.size(); }

  const Workload& workload_;
  WorkloadOutcome outcome_;
  TestRng rng_;
  VirtualClock clock_;
  Backend& backend_;
  const Reference& reference_;
  ScriptedProposer proposer_;
  Scheduler scheduler_;
  std::array<StepPlan, kMaxAlternatingPlans> plans_;  // step i in entry i % size
  int32_t num_in_flight_ = 0;
  StepOutput output_;
  std::vector<SequenceUpdate> updates_;
  size_t next_arrival_ = 0;
  std::map<SeqId, size_t> live_;  // sequences to answers
  int64_t max_steps_ = 0;
};

// With no more blocks of the host than the backend has.
SchedulerConfig with_pool_of(const Backend& backend, SchedulerConfig config) {
  config.num_host_blocks = std::min(config.num_host_blocks, backend.info().num_host_blocks);
  return config;
}

Run::Run(const Workload& workload, Backend& backend, const Reference& reference)
    : workload_(workload),
      rng_(~workload.seed),
      backend_(backend),
      reference_(reference),
      proposer_([&](const Request& request, int32_t choice) { return reference(request, choice).tokens; },
                workload.model.vocab_size, workload.proposer, workload.seed),
      scheduler_(with_pool_of(backend, workload.config), &proposer_) {
  // Alone, with a token a step and recomputed after each preemption: no run may need more.
  for (const auto& request : workload.requests)
    max_steps_ += request->params.sampling.num_choices * (kMaxPreemptions + workload.config.policy.num_levels + 1) *
                  (int64_t{static_cast<int64_t>(request->prompt_tokens.size())} + 200);
  run();
  if (ok()) check_against_reference();
}

WorkloadOutcome Run::take_outcome() {
  outcome_.num_preemptions = scheduler_.num_preemptions_total();
  outcome_.num_saved = scheduler_.prompt_tokens().num_saved;
  return std::move(outcome_);
}

void Run::run() {
  while (ok()) {
    add_arrived();
    if (!step()) {
      if (!scheduler_.has_work() && !more_may_arrive()) break;
      idle();
    }
  }
  expect(scheduler_.num_free_blocks() == workload_.config.num_blocks, "blocks leaked");
  const SchedulerConfig& config = scheduler_.config();
  expect(scheduler_.num_free_host_blocks() == (config.enable_prefix_caching ? config.num_host_blocks : 0),
         "blocks of the host leaked");
  expect(live_.empty(), "a sequence never ended");
}

void Run::add_arrived() {
  for (; more_may_arrive() && workload_.arrival_ms[next_arrival_] <= now_ms(); ++next_arrival_) {
    const auto& request = workload_.requests[next_arrival_];
    const auto added = scheduler_.add(request, workload_.arrival_ms[next_arrival_]);
    for (int32_t choice = 0; choice < request->params.sampling.num_choices; ++choice) {
      AnswerOutcome& answer = outcome_.answers.emplace_back();
      answer.request = next_arrival_;
      answer.choice = choice;
      if (const SeqId* first = std::get_if<SeqId>(&added)) {
        live_[*first + choice] = outcome_.answers.size() - 1;
      } else {
        answer.refused = std::get<RequestError>(added);
        ++answer.num_ends;
      }
    }
  }
}

// Nothing could run: the reason must be one that time or input removes, and time moves to it.
void Run::idle() {
  const std::optional<double> wakeup = scheduler_.next_wakeup_ms();
  expect(!scheduler_.has_work() || workload_.config.batching != BatchingMode::kContinuous,
         "an empty plan with work left");
  expect(scheduler_.num_running() == 0, "running sequences do not run");
  expect(more_may_arrive(), "nothing runs, nothing may arrive");
  if (!ok()) return;
  const double arrival = workload_.arrival_ms[next_arrival_];
  const double until = wakeup ? std::min(*wakeup, arrival) : arrival;
  expect(until > now_ms(), "a wake-up in the past");
  clock_.sleep_until_ms(until);
}

bool Run::step() {
  if (num_in_flight_ == 0 && !submit()) return false;
  const int32_t most = scheduler_.max_plans_in_flight();
  for (bool goes_on = true; ok() && goes_on && num_in_flight_ < most && rng_.chance(workload_.ahead_rate);)
    outcome_.num_ahead += goes_on = submit();
  if (ok()) finish_step();
  return true;
}

bool Run::submit() {
  const bool is_ahead = num_in_flight_ > 0;
  const std::vector<SeqId> ran = scheduler_.running_ids();
  std::vector<int32_t> preemptions_before;
  for (const SeqId seq : ran) preemptions_before.push_back(scheduler_.num_preemptions(seq));
  const int64_t num_preemptions = scheduler_.num_preemptions_total();
  StepPlan& plan = plans_[outcome_.num_steps % kMaxAlternatingPlans];
  if (workload_.config.preemption == PreemptionMode::kAuto) scheduler_.set_swap_pays(rng_.chance(0.5));
  const bool is_scheduled = scheduler_.schedule(now_ms(), more_may_arrive(), &plan);
  expect_ok(scheduler_.check_integrity());
  if (is_ahead) expect(scheduler_.num_preemptions_total() == num_preemptions, "preempted in a plan ahead");
  if (!is_scheduled || !ok()) return false;
  expect(plan.step == outcome_.num_steps, "steps are not counted");
  expect(++outcome_.num_steps <= max_steps_, "no end in sight");
  if (!is_ahead) check_order(plan, ran, preemptions_before);
  check_plan(plan);
  check_live_blocks();
  if (ok()) expect_ok(backend_.submit(plan));
  count(plan);
  outcome_.most_in_flight = std::max(outcome_.most_in_flight, ++num_in_flight_);
  return ok();
}

void Run::finish_step() {
  const StepPlan& plan = plans_[(outcome_.num_steps - num_in_flight_) % kMaxAlternatingPlans];
  expect_ok(backend_.wait(&output_));
  clock_.advance_ms(workload_.step_ms);
  if (!ok()) return;
  if (workload_.nan_rate > 0 && plan.num_groups() > 0 && rng_.chance(workload_.nan_rate))
    take_back(rng_.between(0, plan.num_groups() - 1), &output_);
  maybe_finish_one();
  int64_t num_live = 0;
  for (const SampleGroup& group : plan.groups) num_live += live_.contains(group.seq);
  note_ranks();
  scheduler_.apply(plan, output_, &updates_);
  --num_in_flight_;
  std::set<SeqId> updated;
  for (const SequenceUpdate& update : updates_) updated.insert(update.seq);
  expect(static_cast<int64_t>(updated.size()) == num_live, "a live group without an update");
  outcome_.num_sampled += num_live;
  outcome_.num_dead += plan.num_groups() - num_live;
  for (const SequenceUpdate& update : updates_) outcome_.num_accepted += !update.numeric_error;
  outcome_.num_accepted -= num_live;
  check_updates();
  check_live_blocks();
  expect_ok(scheduler_.check_integrity());
  maybe_finish_one();
}

// Whoever ran comes first, then who joins, each in order; of those that need not give way, the best goes on.
void Run::check_order(const StepPlan& plan, const std::vector<SeqId>& ran,
                      const std::vector<int32_t>& num_preemptions) {
  const std::vector<SeqId> runs = scheduler_.running_ids();
  auto before = ran.begin();
  auto now = runs.begin();
  for (const StepEntry& entry : plan.entries) {
    before = std::find(before, ran.end(), entry.seq);
    if (before == ran.end()) now = std::find(now, runs.end(), entry.seq);
    expect(before != ran.end() || now != runs.end(), "not in order of rank");
  }
  for (size_t i = 0; i < ran.size(); ++i) {
    if (scheduler_.num_preemptions(ran[i]) > num_preemptions[i]) {
      expect(workload_.config.policy.num_levels > 0, "the best sequence was preempted");
      continue;
    }
    return expect(plan.entries.front().seq == ran[i], "the best sequence is not served first");
  }
}

void Run::check_plan(const StepPlan& plan) {
  expect(plan.num_tokens() <= workload_.config.max_num_batched_tokens, "over the token budget");
  expect(plan.num_entries() <= workload_.config.max_num_seqs, "over max_num_seqs");
  expect(plan.num_samples() <= workload_.config.max_num_seqs + workload_.config.max_num_drafts, "too many rows");
  int32_t num_drafts = 0;
  std::set<SeqId> sampled;
  for (const SampleGroup& group : plan.groups) {
    num_drafts += group.num_rows() - 1;
    if (group.mode == SampleMode::kVerify)
      expect(num_guesses(plan, group) <= workload_.config.max_drafts_per_group, "over max_drafts_per_group");
    expect(live_.contains(group.seq) && sampled.insert(group.seq).second, "two groups of a sequence");
    expect(workload_.config.allows_trees || !is_tree(plan, group), "a tree that is not allowed");
  }
  expect(num_drafts <= workload_.config.max_num_drafts, "over max_num_drafts");
  if (workload_.config.num_alternating == 1) return;
  for (const StepEntry& entry : plan.entries) expect(entry.follows == kNoGroup, "a plan that follows another one");
  for (int64_t i = 1; i <= num_in_flight_; ++i)
    for (const SampleGroup& group : plans_[(plan.step - i) % kMaxAlternatingPlans].groups)
      expect(!sampled.contains(group.seq), "a sequence that another plan in flight has");
}

// A window's blocks, one more at each end, and what is kept for drafts.
void Run::check_live_blocks() {
  const SchedulerConfig& config = workload_.config;
  for (const SeqId seq : scheduler_.running_ids()) {
    const Sequence& s = *scheduler_.find(seq);
    const int32_t num_drafts = s.max_unseen_tokens() - s.num_in_flight + s.num_misplaced_tokens;
    for (size_t g = 0; g < config.windows.size(); ++g) {
      if (config.windows[g] == 0) continue;
      const auto group = static_cast<int32_t>(g);
      const int64_t most = ceil_div(config.windows[g], config.block_size) + 2 + ceil_div(num_drafts, config.block_size);
      expect(s.blocks.num_live(group) <= most, "more blocks than a window needs");
      outcome_.num_past_windows += s.blocks.num_live(group) < s.blocks.num_blocks();
    }
  }
}

void Run::note_ranks() {
  for (const auto& [seq, index] : live_) {
    const Sequence& sequence = *scheduler_.find(seq);
    AnswerOutcome& answer = outcome_.answers[index];
    answer.num_policy_preemptions = sequence.num_policy_preemptions;
    answer.num_demotions = sequence.num_demotions;
    answer.is_promoted = sequence.is_promoted;
  }
}

void Run::count(const StepPlan& plan) {
  for (const SampleGroup& group : plan.groups) {
    outcome_.num_drafts += group.num_rows() - 1;
    outcome_.num_trees += is_tree(plan, group);
    outcome_.num_shared_rows += group.seq != plan.entries[group.entry].seq;
  }
  for (const StepEntry& entry : plan.entries) outcome_.num_followers += entry.max_ahead > 1;
  outcome_.num_copies += static_cast<int64_t>(plan.block_copies.size());
  outcome_.num_swaps_out += static_cast<int64_t>(plan.swaps_out.size());
  outcome_.num_swaps_in += static_cast<int64_t>(plan.swaps_in.size());
}

void Run::check_updates() {
  for (const SequenceUpdate& update : updates_) {
    const auto at = live_.find(update.seq);
    if (at == live_.end()) return fail("an update for a sequence that is gone");
    AnswerOutcome& request = outcome_.answers[at->second];
    expect(update.choice == request.choice, "another choice");
    if (!update.numeric_error) {
      expect(update.token == output_.tokens.at(update.given), "a token of another group");
      request.tokens.push_back(update.token);
    }
    request.num_preemptions = update.num_preemptions;
    if (!update.finish) continue;
    request.finish = update.finish;
    request.stop_token = update.stop_token;
    expect(!scheduler_.contains(update.seq), "a finished sequence is still there");
    end(update.seq);
  }
}

void Run::end(SeqId seq) {
  ++answer(seq).num_ends;
  live_.erase(seq);
}

void Run::maybe_finish_one() {
  if (live_.empty() || !rng_.chance(workload_.finish_rate / 2)) return;
  const auto at = std::next(live_.begin(), rng_.between(0, static_cast<int32_t>(live_.size()) - 1));
  AnswerOutcome& request = outcome_.answers[at->second];
  request.ended_by_caller = true;
  request.num_preemptions = scheduler_.num_preemptions(at->first);
  scheduler_.finish(at->first);
  end(at->first);
  expect_ok(scheduler_.check_integrity());
}

void Run::check_against_reference() {
  for (const AnswerOutcome& answer : outcome_.answers)
    if (ok()) check_answer(answer);
}

void Run::check_answer(const AnswerOutcome& actual) {
  const Request& request = *workload_.requests[actual.request];
  const SchedulerConfig& config = workload_.config;
  expect(actual.num_ends == 1, "not one completion for an answer");
  expect(actual.num_preemptions <= 16, "more than 16 preemptions of a request");
  expect(actual.num_preemptions - actual.num_policy_preemptions <= kMaxPreemptions, "preempted too often for memory");
  const auto num_prompt = static_cast<int64_t>(request.prompt_tokens.size());
  const bool too_long = num_prompt + 1 > config.max_model_len;
  const int64_t last = std::min<int64_t>(num_prompt + *request.params.stop.max_tokens, config.max_model_len);
  const int64_t pool = int64_t{config.num_blocks} * config.block_size;
  // The longest groups with windows need more, but none as much as without windows.
  const auto num_groups = static_cast<int64_t>(config.windows.size());
  const bool is_full = config.windows == std::vector<int32_t>{0};
  const int64_t in_all_groups = ceil_div(last - 1, config.block_size) * config.block_size * num_groups;
  const bool too_big = is_full ? last - 1 > pool : in_all_groups > pool && never_fits(config, request).has_value();
  if (too_long || too_big) {
    expect(actual.refused && actual.refused->code == (too_long ? "prompt_too_long" : "kv_too_small"), "not refused");
    return;
  }
  expect(!actual.refused, "refused, but it fits");
  if (!ok()) return;
  const LedgerCompletion expected = reference_(request, actual.choice);
  if (actual.ended_by_caller || actual.finish == FinishReason::kError) {
    expect(actual.tokens.size() <= expected.tokens.size() &&
               std::equal(actual.tokens.begin(), actual.tokens.end(), expected.tokens.begin()),
           "tokens differ from the reference before an early end");
    return;
  }
  expect(actual.tokens == expected.tokens, "tokens differ from the reference");
  expect(actual.finish == expected.finish && actual.stop_token == expected.stop_token, "another finish reason");
}

}  // namespace

WorkloadOutcome run_workload(const Workload& workload) {
  LedgerOptions options;
  options.seed = workload.seed;
  options.eos_rate = workload.eos_rate;
  options.check_every_slot = true;
  options.max_plans_in_flight = plans_in_flight_of(workload.config.num_alternating);
  const auto backend = make_ledger_backend(options);
  LoadOptions load;
  load.block_size = workload.config.block_size;
  load.num_blocks_override = workload.config.num_blocks;
  load.max_num_seqs = workload.config.max_num_seqs;
  load.max_num_drafts = workload.config.max_num_drafts;
  load.max_num_batched_tokens = workload.config.max_num_batched_tokens;
  load.max_model_len = workload.config.max_model_len;
  load.groups_layers = true;
  load.swap_space_gib = 1 << 20;
  if (workload.config.state_period > 0) load.kv_cache_dtype = DType::kI4;
  const Status status = backend->load(workload.model, load);
  LLMB_CHECK_MSG(status.ok(), status.message());
  const LedgerModel model = make_ledger_model(workload.model, options);
  return run_workload(workload, *backend, [&](const Request& request, int32_t choice) {
    return ledger_reference(model, request, workload.config.max_model_len, choice);
  });
}

WorkloadOutcome run_workload(const Workload& workload, Backend& backend, const Reference& reference) {
  return Run(workload, backend, reference).take_outcome();
}

}  // namespace llmb::test
