// Random jobs on the ledger backend: the same bytes with and without drafts, whatever drafts, however many, and also
// where a job is killed and continued with others. LLMB_NUM_JOBS raises the count (10000), LLMB_JOB_SEED replays one.
#include <doctest/doctest.h>

#include <cstdlib>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "speculation/lookup_drafter.h"
#include "speculation/speculator.h"
#include "tests/support/engine_job.h"
#include "tests/support/scripted_drafter.h"
#include "tests/support/test_rng.h"
#include "tests/support/tiny_model.h"

namespace llmb::test {

namespace {

int64_t from_environment(const char* name, int64_t otherwise) {
  const char* text = std::getenv(name);
  return text ? std::strtoll(text, nullptr, 10) : otherwise;
}

std::string random_lines(TestRng* rng, int32_t vocab_size, bool has_beams = false) {
  std::string lines;
  const int32_t num_lines = rng->log_between(4, 24);
  std::vector<int32_t> shared;
  for (int32_t i = rng->between(0, 12); i > 0; --i) shared.push_back(rng->between(0, vocab_size - 1));
  for (int32_t i = 0; i < num_lines; ++i) {
    nlohmann::json line;
    std::vector<int32_t> prompt = rng->chance(0.5) ? shared : std::vector<int32_t>();
    for (int32_t k = rng->log_between(1, 20); k > 0; --k) prompt.push_back(rng->between(0, vocab_size - 1));
    line["prompt_token_ids"] = prompt;
    line["max_tokens"] = rng->chance(0.5) ? rng->between(20, 40) : rng->log_between(1, 40);
    line["seed"] = rng->between(0, 1000);
    line["return_token_ids"] = true;
    line["temperature"] = rng->chance(0.5) ? 0.0 : 0.8;
    if (rng->chance(0.2)) line["frequency_penalty"] = 0.5;
    if (rng->chance(0.2)) line["repetition_penalty"] = 1.5;
    if (rng->chance(0.3)) line["logprobs"] = rng->between(0, 3);
    if (rng->chance(0.3)) line["stop_token_ids"] = {rng->between(0, vocab_size - 1)};
    if (rng->chance(0.2)) line["min_tokens"] = rng->between(0, line["max_tokens"].get<int32_t>());
    if (rng->chance(0.2)) line["ignore_eos"] = true;
    if (has_beams && rng->chance(0.3)) {
      line["use_beam_search"] = true, line["n"] = rng->between(2, 5);
      for (const char* field : {"temperature", "frequency_penalty", "repetition_penalty", "logprobs"}) line.erase(field);
    }
    lines += line.dump() + "\n";
  }
  return lines;
}

EngineJobOptions random_options(TestRng* rng, uint64_t seed) {
  EngineJobOptions o;
  o.config = tiny_config();
  o.config.vocab_size = rng->chance(0.5) ? 8 : 96;  // few tokens: lookups are right now and then
  o.eos_token_ids = {1};
  o.config.eos_token_ids = {1};
  o.ledger.seed = seed;
  o.ledger.eos_rate = 0.01;
  o.ledger.check_every_slot = rng->chance(0.1);
  o.scheduler.max_model_len = 72;
  return o;
}

void choose_schedule(TestRng* rng, EngineJobOptions* o) {
  SchedulerConfig& s = o->scheduler;
  s.batching = static_cast<BatchingMode>(rng->between(0, 3));
  s.batch_window_ms = 0;
  s.max_num_seqs = rng->log_between(1, 64);
  s.max_num_batched_tokens = rng->log_between(1, 256);
  s.block_size = rng->chance(0.5) ? 4 : 16;
  s.num_blocks = (71 + s.block_size) / s.block_size + rng->log_between(1, 20) - 1;  // one sequence fits; more preempt
  s.enable_prefix_caching = rng->chance(0.5);
  s.max_num_drafts = rng->log_between(1, 256);
  s.allows_trees = rng->chance(0.7);
  o->script.max_plans_in_flight = rng->between(1, 2);
}

std::unique_ptr<Speculator> random_speculator(TestRng* rng, const EngineJobOptions& o, const StepCost& cost,
                                              const Clock& clock) {
  std::vector<std::unique_ptr<Drafter>> drafters;
  if (rng->chance(0.5)) drafters.push_back(std::make_unique<LookupDrafter>(clock, rng->between(0, 200), rng->chance(0.5)));
  if (drafters.empty() || rng->chance(0.5)) {
    const double right_rates[] = {0, 0.7, 0.95, 1};
    DrafterScript script;
    script.right_rate = right_rates[rng->between(0, 3)];
    script.branch_rate = rng->chance(0.5) ? 0.5 : 0;
    script.seed = rng->next();
    script.ms_per_token = rng->chance(0.5) ? 1e-5 : 0;  // it takes time, of which any step has enough for a look
    drafters.push_back(std::make_unique<ScriptedDrafter>(make_ledger_model(o.config, o.ledger),
                                                         o.scheduler.max_model_len, script));
  }
  SpeculatorOptions options;
  options.max_tokens = rng->between(0, 16);
  options.max_step_tokens = o.scheduler.max_num_drafts;
  options.drafts_always = rng->chance(0.7);
  return std::make_unique<Speculator>(options, std::move(drafters), cost, clock);
}

// Takes all blocks that are lent, or some, and overwrites them at once, as a model that drafts on the host would. Guesses
// nothing.
class Hog final : public Proposer, private BlockBorrower {
 public:
  // ledger: the target's, while it has no plan
  Hog(Backend*& ledger, uint64_t seed) : ledger_(ledger), rng_(seed) {}

  void begin_plan(const PlanOutlook& outlook) override {
    if (outlook.num_in_flight > 0) return;
    outlook.lender->set_borrower(this);
    while (!blocks_.empty() && rng_.chance(0.1)) outlook.lender->take_back(take());
    const size_t before = blocks_.size();
    outlook.lender->lend(rng_.chance(0.7) ? INT32_MAX : rng_.between(0, 5), &blocks_);
    num_lent_ += static_cast<int64_t>(blocks_.size() - before);
    for (size_t i = before; i < blocks_.size(); ++i) overwrite(blocks_[i], outlook.step);
  }
  void propose(const Sequence&, int32_t, Drafts*) override {}
  bool must_see(const Sequence&) const override { return false; }
  int64_t num_lent() const { return num_lent_; }
  int64_t num_given_back() const { return num_given_back_; }

 private:
  BlockId give_back(bool even_used) override {
    if (!even_used && rng_.chance(0.5)) return kNoBlock;
    ++num_given_back_;
    return take();
  }
  BlockId take() {
    std::swap(blocks_[static_cast<size_t>(rng_.between(0, static_cast<int32_t>(blocks_.size()) - 1))], blocks_.back());
    const BlockId block = blocks_.back();
    blocks_.pop_back();
    return block;
  }
  void overwrite(BlockId block, int64_t step) {
    StepPlan plan;
    plan.clear();
    plan.step = step;
    plan.block_size = ledger_->info().kv.block_size;
    plan.tokens.assign(static_cast<size_t>(plan.block_size), 1);
    plan.query_start.push_back(plan.block_size);
    plan.block_ids = {block};
    plan.block_start.push_back(1);
    plan.entries.emplace_back();
    StepOutput ignored;
    Status status = ledger_->submit(plan);
    if (status.ok()) status = ledger_->wait(&ignored);
    REQUIRE_MESSAGE(status.ok(), status.message());
  }

  Backend*& ledger_;
  TestRng rng_;
  std::vector<BlockId> blocks_;
  int64_t num_lent_ = 0, num_given_back_ = 0;
};

}  // namespace

TEST_CASE("random jobs have the same bytes with and without drafts, killed and continued with other drafters too") {
  const bool replay = std::getenv("LLMB_JOB_SEED") != nullptr;
  const int64_t first = from_environment("LLMB_JOB_SEED", 1),
                num_jobs = from_environment("LLMB_NUM_JOBS", replay ? 1 : 400);
  const SteadyClock clock;
  int64_t num_drafted = 0, num_accepted = 0, num_preemptions = 0, num_killed = 0, num_looks = 0;
  for (int64_t seed = first; seed < first + num_jobs; ++seed) {
    CAPTURE(seed);
    TestRng rng(static_cast<uint64_t>(seed));
    EngineJobOptions o = random_options(&rng, static_cast<uint64_t>(seed));
    const std::string lines = random_lines(&rng, o.config.vocab_size);
    const EngineJob plain(lines), drafted(lines);
    o.scheduler.num_blocks = 1000;
    REQUIRE(plain.run(o).status.ok());
    for (bool is_done = false; !is_done;) {
      choose_schedule(&rng, &o);
      StepCost cost;
      const auto speculator = random_speculator(&rng, o, cost, clock);
      o.proposer = speculator.get();
      o.step_cost = &cost;
      int32_t steps_left = rng.chance(0.4) ? rng.between(1, 30) : INT32_MAX;
      o.on_progress = [&](const JobProgress&, std::atomic<int>* interrupted) {
        if (--steps_left == 0) *interrupted = 2;
      };
      const EngineJobOutcome outcome = drafted.run(o);
      REQUIRE_MESSAGE(outcome.status.ok(), outcome.status.message());
      is_done = steps_left > 0;
      num_killed += !is_done;
      num_preemptions += outcome.num_preemptions;
      num_looks += speculator->num_looks();
      for (const SpeculationMetrics::Kind& kind : speculator->metrics().drafters) {
        num_drafted += kind.num_drafted;
        num_accepted += kind.num_accepted;
      }
    }
    REQUIRE(records_by_index(drafted.output()) == records_by_index(plain.output()));
  }
  MESSAGE(num_jobs << " jobs: " << num_drafted << " drafts, " << num_accepted << " accepted, " << num_preemptions
                   << " preemptions, " << num_killed << " times killed, " << num_looks << " looks");
  if (replay) return;
  CHECK(num_looks > num_jobs / 20);
  CHECK(num_drafted > 20 * num_jobs);
  CHECK(num_accepted > num_drafted / 20);
  CHECK(num_accepted < num_drafted * 19 / 20);
  CHECK(num_preemptions > num_jobs / 20);
  CHECK(num_killed > num_jobs / 10);
}

TEST_CASE("who drafts may overwrite whatever blocks are lent: random jobs have the same bytes, and no request waits for them") {
  int64_t num_lent = 0, num_given_back = 0, num_preemptions = 0;
  for (uint64_t seed = 1; seed <= 400; ++seed) {
    CAPTURE(seed);
    TestRng rng(seed);
    EngineJobOptions o = random_options(&rng, seed);
    const bool parks_beams = rng.chance(0.3);
    const std::string lines = random_lines(&rng, o.config.vocab_size, /*has_beams=*/parks_beams || rng.chance(0.3));
    const EngineJob plain(lines), lending(lines);
    choose_schedule(&rng, &o);
    o.scheduler.preemption = static_cast<PreemptionMode>(rng.between(0, 2));
    o.load.swap_space_gib = rng.chance(0.7) ? 1 : 0;
    if (parks_beams) {
      o.scheduler.preemption = PreemptionMode::kSwap, o.load.swap_space_gib = 1;
      o.scheduler.enable_prefix_caching = true;
      o.scheduler.max_num_seqs = rng.between(2, 12);
      o.scheduler.num_blocks = (71 + o.scheduler.block_size) / o.scheduler.block_size + rng.between(0, 8);
    }
    const EngineJobOutcome expected = plain.run(o);
    REQUIRE(expected.status.ok());
    Backend* ledger = nullptr;
    Hog hog(ledger, seed);
    o.proposer = &hog;
    o.make_backend = [&] {
      auto made = make_ledger_backend(o.ledger);
      ledger = made.get();
      return made;
    };
    const EngineJobOutcome outcome = lending.run(o);
    REQUIRE_MESSAGE(outcome.status.ok(), outcome.status.message());
    REQUIRE(lending.output() == plain.output());
    if (!o.scheduler.enable_prefix_caching) {  // else prompts that are still known may be others
      CHECK(outcome.num_steps == expected.num_steps);
      CHECK(outcome.num_preemptions == expected.num_preemptions);
    }
    num_lent += hog.num_lent(), num_given_back += hog.num_given_back(), num_preemptions += outcome.num_preemptions;
  }
  MESSAGE(num_lent << " blocks lent, " << num_given_back << " given back when asked, " << num_preemptions << " preemptions");
  CHECK(num_lent > 3000);
  CHECK(num_given_back > 300);
  CHECK(num_preemptions > 100);
}

}  // namespace llmb::test
