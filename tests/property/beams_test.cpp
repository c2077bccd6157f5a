// Beams among other requests in random pools on the ledger: the answers of a search whose beams are computed token by
// token from nothing, with every invariant of the scheduler checked after every call.
// LLMB_NUM_WORKLOADS sets the count, LLMB_WORKLOAD_SEED replays one.
#include <doctest/doctest.h>

#include <array>
#include <cstdlib>
#include <map>
#include <memory>
#include <vector>

#include "backend/ledger/ledger_backend.h"
#include "engine/active_beams.h"
#include "tests/support/test_rng.h"
#include "tests/support/workload.h"

namespace llmb::test {

namespace {

using Tokens = std::vector<TokenId>;

int64_t from_environment(const char* name, int64_t otherwise) {
  const char* text = std::getenv(name);
  return text ? std::strtoll(text, nullptr, 10) : otherwise;
}

struct Answers {
  std::vector<BeamAnswer> beams;
  std::vector<Tokens> choices;
};

struct Totals {
  int64_t num_steps = 0, num_preemptions = 0, num_copies = 0, num_forks = 0, num_taken_over = 0, num_parked = 0;
  int64_t num_cached = 0, num_answers = 0, num_ended = 0, num_rows = 0, num_swaps_in = 0;
};

SchedulerConfig random_config(TestRng* rng) {
  SchedulerConfig config;
  config.batching = static_cast<BatchingMode>(rng->chance(0.6) ? 3 : rng->between(0, 3));
  config.max_num_seqs = rng->log_between(1, 16);
  config.max_num_batched_tokens = rng->log_between(1, 64);
  config.block_size = rng->log_between(1, 16);
  config.max_model_len = rng->log_between(4, 64);
  const auto full_length = static_cast<int32_t>(ceil_div(config.max_model_len, config.block_size));
  config.num_blocks = full_length * (rng->chance(0.3) ? 20 : 1) + rng->between(0, full_length);
  config.enable_prefix_caching = rng->chance(0.6);
  config.preemption = rng->chance(0.5) ? PreemptionMode::kSwap : PreemptionMode::kRecompute;
  config.num_host_blocks = config.preemption == PreemptionMode::kSwap ? rng->between(0, config.num_blocks) : 0;
  config.copies_blocks = rng->chance(0.8);
  return config;
}

std::vector<std::shared_ptr<const Request>> random_requests(const SchedulerConfig& config, uint64_t seed,
                                                            TestRng* rng) {
  std::vector<std::shared_ptr<const Request>> requests;
  for (int32_t i = rng->between(1, 6); i > 0; --i) {
    auto request = std::make_shared<Request>();
    request->prompt_tokens.resize(rng->log_between(1, std::max(1, config.max_model_len / 2)));
    for (TokenId& token : request->prompt_tokens) token = rng->between(0, 2);
    request->rng = {seed, static_cast<uint64_t>(i)};
    request->eos_token_ids = {3, 5};
    SamplingParams& sampling = request->params.sampling;
    StopParams& stop = request->params.stop;
    stop.max_tokens = rng->between(1, config.max_model_len - static_cast<int32_t>(request->prompt_tokens.size()));
    if (rng->chance(0.2)) stop.min_tokens = rng->between(0, *stop.max_tokens);
    if (rng->chance(0.2)) stop.stop_token_ids.push_back(rng->between(0, 9));
    stop.ignore_eos = rng->chance(0.4);
    if (rng->chance(0.7)) {
      sampling.temperature = 0;
      sampling.n = rng->between(1, 6);
      sampling.beams = BeamParams{sampling.n, 0.5f * static_cast<float>(rng->between(-2, 4)),
                                  static_cast<EarlyStopping>(rng->between(0, 2))};
    } else {
      sampling.n = rng->between(1, 4);
    }
    sampling.count_choices();
    requests.push_back(std::move(request));
  }
  return requests;
}

// The best tokens after the output so far, from nothing but the tokens; they are added as those of `choice`.
bool add_from_nothing(const LedgerModel& model, const Request& request, const Tokens& output, int32_t choice,
                      ActiveBeams* beams) {
  const Sequence sequence(0, 0, std::make_shared<Request>(request), BlockTable(1), 1, 0);
  uint64_t prefix = model.empty_prefix();
  for (const TokenId token : request.prompt_tokens) prefix = LedgerModel::extend(prefix, token);
  for (const TokenId token : output) prefix = LedgerModel::extend(prefix, token);
  SampleRow row;
  const bool may_end = sequence.may_end_with(static_cast<int32_t>(output.size()));
  const auto bias = may_end ? std::vector<TokenBias>() : sequence.min_tokens_bias;
  const TokenId best = model.next_token(prefix, row, bias, {}).value_or(0);
  StepOutput out;
  for (int32_t i = 0; i < std::min(num_best_tokens(request), model.vocab_size); ++i) {
    out.tokens.push_back((best + i) % model.vocab_size);
    out.logprobs.push_back(LedgerModel::logprob(prefix) - 0.6931472f * static_cast<float>(i));
  }
  return beams->add(choice, out, 0, static_cast<int32_t>(out.tokens.size()));
}

std::vector<BeamAnswer> reference(const LedgerModel& model, const Request& request) {
  ActiveBeams beams(request);
  std::map<int32_t, Tokens> outputs = {{0, {}}};
  while (true) {
    for (const auto& [choice, output] : outputs) add_from_nothing(model, request, output, choice, &beams);
    if (!beams.advance(0)) return beams.answers();
    std::map<int32_t, Tokens> next;
    for (const BeamFork& fork : beams.forks()) {
      next[fork.choice] = outputs.at(fork.parent);
      next[fork.choice].push_back(fork.token);
    }
    outputs = std::move(next);
  }
}

// Runs all requests to their ends.
class Run {
 public:
  Run(const SchedulerConfig& config, std::vector<std::shared_ptr<const Request>> requests, Backend* backend,
      double ahead_rate, TestRng* rng)
      : requests_(std::move(requests)), backend_(*backend), ahead_rate_(ahead_rate), rng_(*rng), scheduler_(config) {
    for (const auto& request : requests_) {
      const auto added = scheduler_.add(request, 0);
      REQUIRE(std::holds_alternative<SeqId>(added));
      const int32_t num_choices = request->params.sampling.num_choices;
      for (int32_t choice = 0; choice < num_choices; ++choice)
        request_of_[std::get<SeqId>(added) + choice] = answers_.size();
      answers_.emplace_back().choices.resize(num_choices);
      beams_.push_back(request->params.sampling.beams ? std::make_unique<ActiveBeams>(*request) : nullptr);
    }
    check();
    while (step()) {
    }
    REQUIRE(!scheduler_.has_work());
    REQUIRE(scheduler_.num_free_blocks() == config.num_blocks);
    if (config.enable_prefix_caching) REQUIRE(scheduler_.num_free_host_blocks() == config.num_host_blocks);
    totals_.num_preemptions = scheduler_.num_preemptions_total();
    totals_.num_cached = scheduler_.prompt_tokens().num_saved;
  }

  const std::vector<Answers>& answers() const { return answers_; }
  const Totals& totals() const { return totals_; }

 private:
  void check() {
    const Status status = scheduler_.check_integrity();
    REQUIRE_MESSAGE(status.ok(), status.message());
  }

  bool submit() {
    StepPlan& plan = plans_[totals_.num_steps % 2];
    const bool is_scheduled = scheduler_.schedule(0, false, &plan);
    check();
    if (!is_scheduled) return false;
    REQUIRE(backend_.submit(plan).ok());
    totals_.num_copies += static_cast<int64_t>(plan.block_copies.size());
    totals_.num_rows += plan.num_tokens();
    totals_.num_swaps_in += static_cast<int64_t>(plan.swaps_in.size());
    ++totals_.num_steps;
    ++num_in_flight_;
    REQUIRE(totals_.num_steps < 100'000);
    return true;
  }

  bool step() {
    if (num_in_flight_ == 0 && !submit()) return false;
    if (num_in_flight_ == 1 && rng_.chance(ahead_rate_)) submit();
    const StepPlan& plan = plans_[(totals_.num_steps - num_in_flight_) % 2];
    StepOutput output;
    REQUIRE(backend_.wait(&output).ok());
    std::vector<SequenceUpdate> updates;
    scheduler_.apply(plan, output, &updates);
    --num_in_flight_;
    check();
    for (const SequenceUpdate& update : updates) take(update, output);
    return true;
  }

  void take(const SequenceUpdate& update, const StepOutput& output) {
    const size_t request = request_of_.at(update.seq);
    if (!beams_[request]) return answers_[request].choices[update.choice].push_back(update.token);
    ActiveBeams& beams = *beams_[request];
    if (!beams.add(update.choice, output, update.given, update.given + update.num_best)) return;
    const SeqId first = update.seq - update.choice;
    if (beams.advance(0)) {
      for (const BeamFork& fork : beams.forks()) {
        totals_.num_taken_over += fork.choice != fork.parent;
        totals_.num_parked += !scheduler_.find(first + fork.choice)->is_running;
      }
      totals_.num_forks += static_cast<int64_t>(beams.forks().size());
      scheduler_.fork(first, beams.forks());
      for (const BeamFork& fork : beams.forks()) {
        const Sequence &child = *scheduler_.find(first + fork.choice), &parent = *scheduler_.find(first + fork.parent);
        if (child.is_running || scheduler_.config().num_host_blocks == 0) continue;
        if (!parent.is_running) REQUIRE(child.wanted_node == parent.wanted_node);
        const int32_t count = parent.is_running ? parent.num_computed_tokens : parent.num_wanted_tokens;
        const int32_t size = scheduler_.config().copies_blocks ? 1 : scheduler_.config().block_size;
        REQUIRE(child.num_wanted_tokens == (scheduler_.config().enable_prefix_caching ? count / size * size : 0));
      }
    } else {
      answers_[request].beams = beams.answers();
      for (int32_t i = 0; i < requests_[request]->params.sampling.num_choices; ++i) scheduler_.finish(first + i);
    }
    check();
  }

  const std::vector<std::shared_ptr<const Request>> requests_;
  Backend& backend_;
  const double ahead_rate_;
  TestRng& rng_;
  Scheduler scheduler_;
  std::map<SeqId, size_t> request_of_;
  std::vector<Answers> answers_;
  std::vector<std::unique_ptr<ActiveBeams>> beams_;
  std::array<StepPlan, 2> plans_;
  int32_t num_in_flight_ = 0;
  Totals totals_;
};

std::unique_ptr<Backend> load_ledger(const SchedulerConfig& config, const ModelConfig& model,
                                     const LedgerOptions& options) {
  auto backend = make_ledger_backend(options);
  LoadOptions load;
  load.block_size = config.block_size;
  load.num_blocks_override = config.num_blocks;
  load.max_num_seqs = config.max_num_seqs, load.max_model_len = config.max_model_len;
  load.swap_space_gib = 1 << 20;
  REQUIRE(backend->load(model, load).ok());
  return backend;
}

void add(const Totals& one, Totals* sum) {
  sum->num_steps += one.num_steps;
  sum->num_preemptions += one.num_preemptions;
  sum->num_copies += one.num_copies;
  sum->num_forks += one.num_forks;
  sum->num_taken_over += one.num_taken_over;
  sum->num_parked += one.num_parked;
  sum->num_cached += one.num_cached;
}

}  // namespace

TEST_CASE("random beams among others, in any pool and mode, get the answers of a search from nothing") {
  const int64_t first = from_environment("LLMB_WORKLOAD_SEED", 1);
  const bool is_replay = std::getenv("LLMB_WORKLOAD_SEED") != nullptr;
  const int64_t num_workloads = from_environment("LLMB_NUM_WORKLOADS", is_replay ? 1 : 3000);
  Totals totals;
  for (int64_t seed = first; seed < first + num_workloads; ++seed) {
    CAPTURE(seed);
    TestRng rng(static_cast<uint64_t>(seed));
    const SchedulerConfig config = random_config(&rng);
    ModelConfig model;
    model.vocab_size = rng.between(10, 40);
    LedgerOptions options;
    options.seed = static_cast<uint64_t>(seed);
    options.check_every_slot = true;
    const auto backend = load_ledger(config, model, options);
    const auto requests = random_requests(config, static_cast<uint64_t>(seed), &rng);
    const Run run(config, requests, backend.get(), rng.chance(0.5) ? 0.8 : 0, &rng);
    add(run.totals(), &totals);
    const LedgerModel ledger = make_ledger_model(model, options);
    for (size_t i = 0; i < requests.size(); ++i) {
      const Answers& actual = run.answers()[i];
      if (!requests[i]->params.sampling.beams) {
        for (size_t choice = 0; choice < actual.choices.size(); ++choice)
          REQUIRE(actual.choices[choice] ==
                  ledger_reference(ledger, *requests[i], config.max_model_len, static_cast<int32_t>(choice)).tokens);
        continue;
      }
      const std::vector<BeamAnswer> expected = reference(ledger, *requests[i]);
      REQUIRE(actual.beams.size() == expected.size());
      for (size_t j = 0; j < expected.size(); ++j) {
        REQUIRE(actual.beams[j].tokens == expected[j].tokens);
        REQUIRE(actual.beams[j].score == expected[j].score);
        totals.num_ended += expected[j].is_ended;
        ++totals.num_answers;
      }
    }
  }
  MESSAGE(num_workloads << " workloads: " << totals.num_steps << " steps, " << totals.num_preemptions
                        << " preemptions, " << totals.num_copies << " block copies, " << totals.num_forks << " forks, "
                        << totals.num_taken_over << " of them into another's place, " << totals.num_parked
                        << " of sequences without blocks, " << totals.num_cached << " tokens cached, "
                        << totals.num_answers << " answers, " << totals.num_ended << " ended");
  if (is_replay) return;
  CHECK(totals.num_preemptions > num_workloads / 50);
  CHECK(totals.num_taken_over > num_workloads);
  CHECK(totals.num_parked > num_workloads / 10);
  CHECK(totals.num_cached > num_workloads / 10);
  CHECK(totals.num_ended > num_workloads / 10);
}

namespace {

// One request with beams, alone.
std::shared_ptr<Request> beams_alone(TestRng* rng) {
  auto request = make_request(rng->between(1, 60), rng->between(1, 40));
  for (TokenId& token : request->prompt_tokens) token = rng->between(0, 29);
  request->params.sampling.n = rng->between(1, 6);
  request->params.sampling.beams = BeamParams{request->params.sampling.n, 1, EarlyStopping::kTrue};
  request->params.sampling.count_choices();
  return request;
}

SchedulerConfig config_alone(TestRng* rng) {
  SchedulerConfig config;
  config.max_num_seqs = 16;
  config.max_num_batched_tokens = 48;
  config.block_size = rng->log_between(1, 16);
  config.max_model_len = 100;
  config.num_blocks = 2000 / config.block_size;
  config.enable_prefix_caching = true;
  return config;
}

Totals run_alone(const SchedulerConfig& config, const std::shared_ptr<const Request>& request, uint64_t seed,
                 std::vector<BeamAnswer>* answers) {
  ModelConfig model;
  model.vocab_size = 30;
  TestRng rng(seed);
  const auto backend = load_ledger(config, model, {.seed = seed, .check_every_slot = true});
  const Run run(config, {request}, backend.get(), 0, &rng);
  *answers = run.answers()[0].beams;
  return run.totals();
}

bool are_equal(const std::vector<BeamAnswer>& a, const std::vector<BeamAnswer>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const BeamAnswer& x, const BeamAnswer& y) {
    return x.tokens == y.tokens && x.score == y.score;
  });
}

}  // namespace

TEST_CASE(
    "beams alone with room: the prompt is computed once, each fork copies one block at most, nothing is computed "
    "twice") {
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    CAPTURE(seed);
    TestRng rng(seed);
    SchedulerConfig config = config_alone(&rng);
    config.enable_prefix_caching = rng.chance(0.5);
    const auto request = beams_alone(&rng);
    std::vector<BeamAnswer> answers;
    const Totals totals = run_alone(config, request, seed, &answers);
    CHECK(totals.num_preemptions == 0);
    CHECK(totals.num_copies <= totals.num_taken_over);
    const auto num_chunks = ceil_div(static_cast<int64_t>(request->prompt_tokens.size()), 48);
    CHECK(totals.num_steps == num_chunks + *request->params.stop.max_tokens - 1);
  }
}

TEST_CASE("beams that are parked for want of seats find what was computed: nothing is computed twice") {
  int64_t num_parked = 0;
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    CAPTURE(seed);
    TestRng rng(seed);
    SchedulerConfig config = config_alone(&rng);
    const auto request = beams_alone(&rng);
    std::vector<BeamAnswer> expected, actual;
    const Totals side_by_side = run_alone(config, request, seed, &expected);
    config.max_num_seqs = rng.between(1, request->params.sampling.num_choices);
    const Totals parked = run_alone(config, request, seed, &actual);
    CHECK(are_equal(actual, expected));
    CHECK(parked.num_rows == side_by_side.num_rows);
    num_parked += parked.num_parked;
  }
  CHECK(num_parked > 1000);
}

TEST_CASE("beams that are parked for want of blocks find them on the host") {
  int64_t num_rows[3] = {}, num_swaps_in = 0;
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    CAPTURE(seed);
    TestRng rng(seed);
    SchedulerConfig config = config_alone(&rng);
    const auto request = beams_alone(&rng);
    std::vector<BeamAnswer> expected, actual;
    const Totals side_by_side = run_alone(config, request, seed, &expected);
    config.num_blocks = static_cast<int32_t>(
        ceil_div(static_cast<int32_t>(request->prompt_tokens.size()) + *request->params.stop.max_tokens,
                 config.block_size));  // one beam fits
    for (const int32_t i : {0, 1, 2}) {  // blocks of the host: none, for one beam, for all
      config.preemption = i == 0 ? PreemptionMode::kRecompute : PreemptionMode::kSwap;
      config.num_host_blocks = config.num_blocks * (i == 2 ? config.max_num_seqs : i);
      const Totals totals = run_alone(config, request, seed, &actual);
      CHECK(are_equal(actual, expected));
      num_rows[i] += totals.num_rows - side_by_side.num_rows;
      num_swaps_in += totals.num_swaps_in;
    }
  }
  MESSAGE(num_rows[0] << " rows computed again, with swapping " << num_rows[1] << ", with room for all " << num_rows[2]);
  CHECK(num_swaps_in > 1000);
  CHECK(3 * num_rows[1] < num_rows[0]);
  CHECK(10 * num_rows[2] < num_rows[0]);
}

}  // namespace llmb::test
