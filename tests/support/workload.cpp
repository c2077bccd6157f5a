#include "tests/support/workload.h"

#include <algorithm>
#include <array>
#include <map>
#include <numeric>
#include <set>
#include <utility>

#include "tests/support/step_output.h"

namespace llmb::test {

std::shared_ptr<Request> make_request(int32_t num_prompt_tokens, int32_t max_tokens) {
  auto request = std::make_shared<Request>();
  request->prompt_tokens.resize(num_prompt_tokens);
  std::iota(request->prompt_tokens.begin(), request->prompt_tokens.end(), 1);
  request->params.sampling.temperature = 0;
  request->params.stop.max_tokens = max_tokens;
  request->params.stop.ignore_eos = true;
  return request;
}

namespace {

SchedulerConfig random_config(TestRng* rng) {
  SchedulerConfig config;
  config.batching = static_cast<BatchingMode>(rng->chance(0.5) ? 3 : rng->between(0, 3));
  config.max_num_seqs = rng->log_between(1, 16);
  config.max_num_batched_tokens = rng->log_between(1, 64);
  config.block_size = rng->log_between(1, 16);
  config.max_model_len = rng->log_between(2, 96);
  config.batch_window_ms = rng->between(0, 20);
  // Mostly a pool that a few sequences of full length crowd, where blocks run out.
  const int32_t full_length = static_cast<int32_t>(ceil_div(config.max_model_len, config.block_size));
  config.num_blocks = rng->chance(0.1) ? rng->log_between(1, 1000) : rng->between(1, 3 * full_length);
  return config;
}

std::shared_ptr<const Request> random_request(const Workload& workload, int64_t index, TestRng* rng) {
  auto request = std::make_shared<Request>();
  const int32_t vocab_size = workload.model.vocab_size;
  // Mostly what fits the pool, sometimes anything, so that refusals happen but do not empty the workload.
  const int64_t pool = int64_t{workload.config.num_blocks} * workload.config.block_size;
  const auto longest = static_cast<int32_t>(std::min<int64_t>(workload.config.max_model_len, pool));
  const bool anything = rng->chance(0.1);
  request->prompt_tokens.resize(rng->log_between(1, anything ? 120 : std::max(1, longest / 2)));
  for (TokenId& token : request->prompt_tokens) token = rng->between(0, vocab_size - 1);
  request->eos_token_ids = workload.model.eos_token_ids;
  request->rng = {workload.seed, static_cast<uint64_t>(index)};
  SamplingParams& sampling = request->params.sampling;
  sampling.temperature = rng->chance(0.5) ? 0.0f : 1.0f;
  if (rng->chance(0.1)) sampling.repetition_penalty = 1.1f;
  if (rng->chance(0.1)) sampling.frequency_penalty = 0.5f;
  if (rng->chance(0.1)) sampling.num_logprobs = rng->between(0, 3);
  if (rng->chance(0.15)) sampling.num_choices = rng->between(2, 5);
  StopParams& stop = request->params.stop;
  const int32_t room = longest + 1 - static_cast<int32_t>(request->prompt_tokens.size());
  stop.max_tokens = rng->between(1, anything ? 120 : std::max(1, room));
  if (rng->chance(0.2)) stop.min_tokens = rng->between(0, *stop.max_tokens);
  if (rng->chance(0.2)) stop.stop_token_ids.push_back(rng->between(0, vocab_size - 1));
  stop.ignore_eos = rng->chance(0.6);
  return request;
}

}  // namespace

Workload random_workload(uint64_t seed) {
  TestRng rng(seed);
  Workload workload;
  workload.seed = seed;
  workload.config = random_config(&rng);
  workload.model.vocab_size = rng.log_between(4, 5000);
  for (int32_t i = rng.between(0, 2); i > 0; --i) workload.model.eos_token_ids.push_back(i);
  workload.eos_rate = rng.chance(0.5) ? 0.02 : 0.0;
  // A crowd of short prompts with long outputs on one-token blocks is what preempts the same request again and again.
  const bool crowd = rng.chance(0.02);
  if (crowd) workload.config.block_size = 1;
  if (crowd) workload.config.max_num_seqs = 32;
  const int32_t num_requests = crowd ? rng.between(20, 60) : rng.log_between(1, 12);
  const double mean_gap_ms = rng.chance(0.5) ? 0 : rng.log_between(1, 30);
  double now_ms = 0;
  for (int32_t i = 0; i < num_requests; ++i) {
    workload.requests.push_back(random_request(workload, i, &rng));
    workload.arrival_ms.push_back(now_ms);
    now_ms += mean_gap_ms * rng.between(0, 2);
  }
  if (rng.chance(0.2)) workload.finish_rate = 0.1;
  if (rng.chance(0.1)) workload.nan_rate = 0.05;
  if (rng.chance(0.7)) workload.ahead_rate = rng.chance(0.7) ? 1.0 : 0.5;
  if (rng.chance(0.5)) {
    workload.config.max_num_drafts = rng.log_between(1, 24);
    if (rng.chance(0.3)) workload.config.max_drafts_per_group = rng.between(1, 4);
    workload.config.allows_trees = rng.chance(0.5);
    workload.proposer = {rng.chance(0.5) ? 1.0 : 0.5, rng.chance(0.2) ? 1.0 : 0.7, 0.6, rng.chance(0.7) ? 0 : 0.3};
  }
  return workload;
}

namespace {

// One run. Members hold what the checks need between calls.
class Run {
 public:
  explicit Run(const Workload& workload);
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
  void check_plan(const StepPlan& plan);
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
  const LedgerOptions ledger_options_;
  std::unique_ptr<Backend> backend_;
  ScriptedProposer proposer_;
  Scheduler scheduler_;
  std::array<StepPlan, 2> plans_;  // step i in entry i % 2
  int32_t num_in_flight_ = 0;
  StepOutput output_;
  std::vector<SequenceUpdate> updates_;
  size_t next_arrival_ = 0;
  std::map<SeqId, size_t> live_;  // sequences to answers
  int64_t max_steps_ = 0;
};

LedgerOptions ledger_options(const Workload& workload, VirtualClock* clock) {
  LedgerOptions options;
  options.seed = workload.seed;
  options.eos_rate = workload.eos_rate;
  options.check_every_slot = true;
  options.clock = clock;
  options.step_ms = workload.step_ms;
  return options;
}

Run::Run(const Workload& workload)
    : workload_(workload),
      rng_(~workload.seed),
      ledger_options_(ledger_options(workload, &clock_)),
      proposer_(make_ledger_model(workload.model, ledger_options_), workload.config.max_model_len, workload.proposer,
                workload.seed),
      scheduler_(workload.config, &proposer_) {
  backend_ = make_ledger_backend(ledger_options_);
  LoadOptions load;
  load.block_size = workload.config.block_size;
  load.num_blocks_override = workload.config.num_blocks;
  expect_ok(backend_->load(workload.model, load));
  // Alone, with a token a step and recomputed after each preemption: no run may need more.
  for (const auto& request : workload.requests)
    max_steps_ += request->params.sampling.num_choices * (kMaxPreemptions + 1) *
                  (int64_t{static_cast<int64_t>(request->prompt_tokens.size())} + 200);
  run();
  if (ok()) check_against_reference();
}

WorkloadOutcome Run::take_outcome() {
  outcome_.num_preemptions = scheduler_.num_preemptions_total();
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
  if (ok() && num_in_flight_ == 1 && rng_.chance(workload_.ahead_rate)) outcome_.num_ahead += submit();
  if (ok()) finish_step();
  return true;
}

bool Run::submit() {
  const bool is_ahead = num_in_flight_ > 0;
  const SeqId oldest = live_.empty() ? -1 : live_.begin()->first;
  const int32_t oldest_preemptions = oldest < 0 ? 0 : scheduler_.num_preemptions(oldest);
  const int64_t num_preemptions = scheduler_.num_preemptions_total();
  StepPlan& plan = plans_[outcome_.num_steps % 2];
  const bool is_scheduled = scheduler_.schedule(now_ms(), more_may_arrive(), &plan);
  expect_ok(scheduler_.check_integrity());
  if (is_ahead) expect(scheduler_.num_preemptions_total() == num_preemptions, "preempted in a plan ahead");
  if (!is_scheduled || !ok()) return false;
  expect(plan.step == outcome_.num_steps, "steps are not counted");
  expect(++outcome_.num_steps <= max_steps_, "no end in sight");
  expect(is_ahead || plan.entries.front().seq == oldest, "the oldest sequence is not served first");
  if (oldest >= 0)
    expect(scheduler_.num_preemptions(oldest) == oldest_preemptions, "the oldest sequence was preempted");
  check_plan(plan);
  if (ok()) expect_ok(backend_->submit(plan));
  count(plan);
  ++num_in_flight_;
  return ok();
}

void Run::finish_step() {
  const StepPlan& plan = plans_[(outcome_.num_steps - num_in_flight_) % 2];
  expect_ok(backend_->wait(&output_));
  if (!ok()) return;
  if (workload_.nan_rate > 0 && plan.num_groups() > 0 && rng_.chance(workload_.nan_rate))
    take_back(rng_.between(0, plan.num_groups() - 1), &output_);
  maybe_finish_one();
  int64_t num_live = 0;
  for (const SampleGroup& group : plan.groups) num_live += live_.contains(group.seq);
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
  expect_ok(scheduler_.check_integrity());
  maybe_finish_one();
}

void Run::check_plan(const StepPlan& plan) {
  expect(plan.num_tokens() <= workload_.config.max_num_batched_tokens, "over the token budget");
  expect(plan.num_entries() <= workload_.config.max_num_seqs, "over max_num_seqs");
  const auto is_older = [](const StepEntry& a, const StepEntry& b) { return a.seq < b.seq; };
  expect(std::is_sorted(plan.entries.begin(), plan.entries.end(), is_older), "not in order of age");
  expect(plan.num_samples() <= workload_.config.max_num_seqs + workload_.config.max_num_drafts, "too many rows");
  int32_t num_drafts = 0;
  std::set<SeqId> sampled;
  for (const SampleGroup& group : plan.groups) {
    num_drafts += group.num_rows() - 1;
    expect(group.num_rows() - 1 <= workload_.config.max_drafts_per_group, "over max_drafts_per_group");
    expect(live_.contains(group.seq) && sampled.insert(group.seq).second, "two groups of a sequence");
    expect(workload_.config.allows_trees || !is_tree(plan, group), "a tree that is not allowed");
  }
  expect(num_drafts <= workload_.config.max_num_drafts, "over max_num_drafts");
}

void Run::count(const StepPlan& plan) {
  for (const SampleGroup& group : plan.groups) {
    outcome_.num_drafts += group.num_rows() - 1;
    outcome_.num_trees += is_tree(plan, group);
    outcome_.num_shared_rows += group.seq != plan.entries[group.entry].seq;
  }
  for (const StepEntry& entry : plan.entries) outcome_.num_followers += entry.max_ahead > 1;
  outcome_.num_copies += static_cast<int64_t>(plan.block_copies.size());
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
  const auto num_prompt = static_cast<int64_t>(request.prompt_tokens.size());
  const bool too_long = num_prompt + 1 > config.max_model_len;
  const int64_t last = std::min<int64_t>(num_prompt + *request.params.stop.max_tokens, config.max_model_len);
  const bool too_big = last - 1 > int64_t{config.num_blocks} * config.block_size;
  if (too_long || too_big) {
    expect(actual.refused && actual.refused->code == (too_long ? "prompt_too_long" : "kv_too_small"), "not refused");
    return;
  }
  expect(!actual.refused, "refused, but it fits");
  if (!ok()) return;
  const LedgerCompletion expected =
      ledger_reference(make_ledger_model(workload_.model, ledger_options_), request, config.max_model_len,
                       actual.choice);
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

WorkloadOutcome run_workload(const Workload& workload) { return Run(workload).take_outcome(); }

}  // namespace llmb::test
