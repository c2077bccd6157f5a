// How many tokens are drafted: as many as pay by what steps cost and how often drafts are right.
#include <doctest/doctest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "core/drafted_tokens.h"
#include "speculation/acceptance.h"
#include "speculation/speculator.h"
#include "tests/support/simulated_decoding.h"
#include "tests/support/workload.h"

namespace llmb::test {

namespace {

// Drafts whatever, and claims to be sure of it.
class BoastfulDrafter final : public Drafter {
 public:
  explicit BoastfulDrafter(bool needs_idle = false) : needs_idle_(needs_idle) {}
  std::string name() const override { return "boastful"; }
  void draft(std::span<const Sequence* const> sequences, const DraftLimits& limits, std::span<Guess> guesses) override {
    for (size_t i = 0; i < sequences.size(); ++i)
      for (int32_t k = 0; k < limits.max_tokens; ++k) guesses[i].add(7, k - 1, learned.share(), 0);
  }
  void learn(const Sequence&, const Guess& guess, std::span<const Verdict> verdicts) override {
    for (int32_t i = 0; i < guess.size(); ++i)
      if (verdicts[i] != Verdict::kUnknown) learned.add(verdicts[i] == Verdict::kRight);
  }
  void forget(const Sequence&) override {}
  bool needs_idle_target() const override { return needs_idle_; }

  Acceptance learned{0.9};

 private:
  const bool needs_idle_;
};

// Takes a millisecond for each sequence, and finds nothing.
class SlowDrafter final : public Drafter {
 public:
  explicit SlowDrafter(VirtualClock& clock) : clock_(clock) {}
  std::string name() const override { return "slow"; }
  bool guesses_one_by_one() const override { return true; }
  void draft(std::span<const Sequence* const> sequences, const DraftLimits&, std::span<Guess>) override {
    num_asked += static_cast<int32_t>(sequences.size());
    clock_.advance_ms(static_cast<double>(sequences.size()));
  }
  void learn(const Sequence&, const Guess&, std::span<const Verdict>) override {}
  void forget(const Sequence&) override {}

  int32_t num_asked = 0;

 private:
  VirtualClock& clock_;
};

// Guesses tokens that only the device knows, which takes so long for each.
class UnseenDrafter final : public Drafter {
 public:
  explicit UnseenDrafter(double ms_per_token) : ms_per_token_(ms_per_token) {}
  std::string name() const override { return "unseen"; }
  double acceptance(const Sequence&) const override { return learned.share(); }
  double ms_per_token(int32_t) const override { return ms_per_token_; }
  void draft(std::span<const Sequence* const> sequences, const DraftLimits& limits, std::span<Guess> guesses) override {
    for (size_t i = 0; i < sequences.size(); ++i)
      for (int32_t k = 0; k < limits.max_tokens; ++k) guesses[i].add(drafted_token(k), k - 1, learned.share(), 0);
    ms += limits.max_tokens * ms_per_token_;
  }
  void see_drafts(std::span<TokenId> tokens) override { std::ranges::replace_if(tokens, is_drafted, 7); }
  void learn(const Sequence&, const Guess& guess, std::span<const Verdict> verdicts) override {
    for (int32_t i = 0; i < guess.size(); ++i)
      if (verdicts[i] != Verdict::kUnknown) learned.add(verdicts[i] == Verdict::kRight);
  }
  void forget(const Sequence&) override {}

  Acceptance learned{0.9};
  double ms = 0;  // of the device

 private:
  const double ms_per_token_;
};

// Always guesses this token, also behind what nobody has seen, and keeps what became of its newest guess.
class BehindDrafter final : public Drafter {
 public:
  std::string name() const override { return "behind"; }
  bool guesses_behind(const Sequence& sequence) const override { return !sequence.penalty_counts; }
  void draft(std::span<const Sequence* const> sequences, const DraftLimits& limits, std::span<Guess> guesses) override {
    for (size_t i = 0; i < sequences.size(); ++i)
      for (int32_t k = 0; k < limits.max_tokens; ++k) guesses[i].add(7, k - 1, 0.9, 0);
  }
  void learn(const Sequence&, const Guess&, std::span<const Verdict> verdicts) override {
    newest.assign(verdicts.begin(), verdicts.end());
  }
  void forget(const Sequence&) override {}

  std::vector<Verdict> newest;
};

// Sure of all that it drafts in every third call, which is right, and else of none. So two steps of three lose the time that
// a token takes, and the third gains several steps.
class RarelySureDrafter final : public Drafter {
 public:
  RarelySureDrafter(double ms_per_token, VirtualClock& clock) : ms_per_token_(ms_per_token), clock_(clock) {}
  std::string name() const override { return "rarely sure"; }
  double acceptance(const Sequence&) const override { return 0.8; }
  double ms_per_token(int32_t) const override { return ms_per_token_; }
  void draft(std::span<const Sequence* const> sequences, const DraftLimits& limits, std::span<Guess> guesses) override {
    const int32_t count = ++num_calls_ % 3 == 0 ? limits.max_tokens : 0;
    for (size_t i = 0; i < sequences.size(); ++i)
      for (int32_t k = 0; k < count; ++k) guesses[i].add(7, k - 1, 0.99, 0);
    clock_.advance_ms(std::max(1, count) * ms_per_token_);
  }
  void learn(const Sequence&, const Guess&, std::span<const Verdict>) override {}
  void forget(const Sequence&) override {}

 private:
  const double ms_per_token_;
  VirtualClock& clock_;
  int64_t num_calls_ = 0;
};

// Takes as long as it says for a token. Its first calls were delayed, and it says so until it is asked again.
class DelayedDrafter final : public Drafter {
 public:
  DelayedDrafter(double delayed_ms, double usual_ms, VirtualClock& clock)
      : delayed_ms_(delayed_ms), usual_ms_(usual_ms), clock_(clock) {}
  std::string name() const override { return "delayed"; }
  double acceptance(const Sequence&) const override { return 0.9; }
  double ms_per_token(int32_t) const override { return num_calls == 0 ? kUnknownMs : num_calls <= 3 ? delayed_ms_ : usual_ms_; }
  void draft(std::span<const Sequence* const> sequences, const DraftLimits& limits, std::span<Guess> guesses) override {
    ++num_calls;
    clock_.advance_ms(limits.max_tokens * ms_per_token(1));
    num_drafted += limits.max_tokens;
    for (size_t i = 0; i < sequences.size(); ++i)
      for (int32_t k = 0; k < limits.max_tokens; ++k) guesses[i].add(7, k - 1, 0.9, 0);
  }
  void learn(const Sequence&, const Guess&, std::span<const Verdict>) override {}
  void forget(const Sequence&) override {}

  int32_t num_calls = 0, num_drafted = 0;

 private:
  const double delayed_ms_, usual_ms_;
  VirtualClock& clock_;
};

using llmb::test::simulate;

Simulated simulate(int32_t batch, int32_t num_steps, double right_rate, const std::function<double(int32_t)>& cost,
                   int32_t num_stages = 1) {
  const VirtualClock clock;
  std::vector<std::unique_ptr<Drafter>> drafters;
  drafters.push_back(std::make_unique<BoastfulDrafter>(num_stages > 1));
  StepCost learned;
  Speculator speculator({}, std::move(drafters), learned, clock);
  return simulate(batch, num_steps, right_rate, cost, &speculator, &learned, num_stages);
}

double steep(int32_t rows) { return 0.1 + 0.1 * rows; }
double flat(int32_t rows) { return 10 + 0.02 * rows; }

}  // namespace

TEST_CASE("a drafter that is always wrong costs less than a hundredth of the time, at any batch") {
  for (const auto& cost : {steep, flat})
    for (const int32_t batch : {1, 2, 4, 8, 16, 32, 64}) {
      const double without = simulate(batch, 4000, 0, cost, nullptr).ms_per_token();
      const double with = simulate(batch, 4000, 0, cost).ms_per_token();
      CHECK_MESSAGE(without / with >= 0.99, "batch " << batch << ": " << without / with);
    }
}

TEST_CASE("a drafter that is right pays where rows are cheap, and costs less than a hundredth where they are not") {
  for (const double right_rate : {0.3, 0.6, 0.8, 0.95})
    for (const int32_t batch : {1, 4, 16, 64}) {
      const double on_flat = simulate(batch, 4000, 0, flat, nullptr).ms_per_token() /
                             simulate(batch, 4000, right_rate, flat).ms_per_token();
      // All that can be had with up to 16 drafts of a sequence, 64 of all, is a bound; most of it is had.
      double tokens = 1, right = 1;
      const int32_t most = std::min(16, 64 / batch);
      for (int32_t i = 0; i < most; ++i) tokens += right *= right_rate;
      const double bound = tokens * flat(batch) / flat(batch + batch * most);
      CHECK_MESSAGE(on_flat > 1 + 0.8 * (bound - 1),
                    "batch " << batch << ", " << right_rate << ": " << on_flat << " of " << bound);
      const double on_steep = simulate(batch, 4000, 0, steep, nullptr).ms_per_token() /
                              simulate(batch, 4000, right_rate, steep).ms_per_token();
      CHECK_MESSAGE(on_steep >= 0.985, "batch " << batch << ", " << right_rate << ": " << on_steep);
    }
}

// Each stage takes cost(rows). Drafts are had while all sequences are in one plan, which goes through all stages alone;
// without them as many plans as stages share the sequences, and one ends in each stage's time.
TEST_CASE("over stages a drafter that needs them idle pays where it beats plans that share them, and only there") {
  const auto rows_cost = [](int32_t rows) { return 10.0 + rows; };  // and every tenth step four times that
  for (const int32_t num_stages : {2, 4})
    for (const int32_t batch : {1, 8, 16, 64}) {
      CAPTURE(num_stages);
      CAPTURE(batch);
      const int32_t num_plans = std::min(batch, num_stages);
      const auto ms_without = [&](const auto& cost) { return 1.3 * num_stages * cost(batch / num_plans) / batch; };
      for (const double right_rate : {0.0, 0.5, 0.9}) {
        const double ms = simulate(batch, 6000, right_rate, rows_cost, num_stages).ms_per_token();
        CHECK_MESSAGE(ms_without(rows_cost) / ms >= 0.97, right_rate << ": " << ms_without(rows_cost) / ms);
      }
      const double rate = ms_without(flat) / simulate(batch, 6000, 0.9, flat, num_stages).ms_per_token();
      CHECK_MESSAGE(rate > 1.5, rate);
    }
}

TEST_CASE("a trial asks a drafter that guesses one by one for an eighth of its time, and for one sequence a step") {
  for (const auto& [step_ms, num_asked] : {std::pair{1.0, 4}, {20.0, 10}, {10000.0, 4 * 64}}) {
    VirtualClock clock;
    std::vector<std::unique_ptr<Drafter>> drafters;
    drafters.push_back(std::make_unique<SlowDrafter>(clock));
    const auto& slow = static_cast<const SlowDrafter&>(*drafters[0]);
    StepCost learned;
    Speculator speculator({}, std::move(drafters), learned, clock);
    const auto cost = [ms = step_ms](int32_t) { return ms; };
    simulate(64, 30, 0, cost, &speculator, &learned);  // a trial of four steps
    CHECK_MESSAGE(slow.num_asked == num_asked, "steps of " << step_ms << " ms: " << slow.num_asked);
  }
}

TEST_CASE("drafts that only the device knows are judged when they are seen, and cost the time that it takes for them") {
  const double without = simulate(1, 4000, 0, flat, nullptr).ms_per_token();
  for (const double ms_per_token : {0.1, 9.0}) {
    const VirtualClock clock;
    std::vector<std::unique_ptr<Drafter>> drafters;
    drafters.push_back(std::make_unique<UnseenDrafter>(ms_per_token));
    const auto& unseen = static_cast<const UnseenDrafter&>(*drafters[0]);
    StepCost learned;
    Speculator speculator({}, std::move(drafters), learned, clock);
    Simulated done = simulate(1, 4000, 0.7, flat, &speculator, &learned);
    done.ms += unseen.ms;
    const double gain = without / done.ms_per_token();
    CAPTURE(gain);
    if (ms_per_token > 1) {
      CHECK(gain >= 0.99);
      continue;
    }
    CHECK(gain > 2);
    CHECK(unseen.learned.share() == doctest::Approx(0.7).epsilon(0.1));
  }
}

TEST_CASE("where as many drafts as a trial makes do not pay and more do, a drafter that takes time is kept if it is right") {
  const auto many_rows = [](int32_t rows) { return rows <= 4 ? 0.07 : 0.25; };
  for (const double right_rate : {0.0, 0.95}) {
    const VirtualClock clock;
    std::vector<std::unique_ptr<Drafter>> drafters;
    drafters.push_back(std::make_unique<UnseenDrafter>(0.002));
    const auto& unseen = static_cast<const UnseenDrafter&>(*drafters[0]);
    StepCost learned;
    for (const int32_t rows : {16, 16, 32, 32, 64, 64}) learned.observe(rows, 0, many_rows(rows));  // prompts
    Speculator speculator({}, std::move(drafters), learned, clock);
    Simulated done = simulate(4, 4000, right_rate, many_rows, &speculator, &learned);
    done.ms += unseen.ms;
    const double gain = simulate(4, 4000, 0, many_rows, nullptr).ms_per_token() / done.ms_per_token();
    CAPTURE(gain);
    if (right_rate == 0) CHECK(gain >= 0.99);
    else CHECK(gain > 1.5);
  }
}

TEST_CASE("a drafter that is sure now and then is kept where few long guesses make up for the time of the others") {
  const auto cost = [](int32_t rows) { return 0.05 + 0.005 * rows; };
  VirtualClock clock;
  std::vector<std::unique_ptr<Drafter>> drafters;
  drafters.push_back(std::make_unique<RarelySureDrafter>(0.02, clock));
  StepCost learned;
  Speculator speculator({}, std::move(drafters), learned, clock);
  Simulated done = simulate(1, 4000, 1, cost, &speculator, &learned);
  done.ms += clock.now_ms();
  const double gain = simulate(1, 4000, 0, cost, nullptr).ms_per_token() / done.ms_per_token();
  CAPTURE(gain);
  CHECK(gain > 1.08);
}

TEST_CASE("a drafter that would not pay if it were right is hardly asked again, and once in 8192 steps, as its time may be wrong") {
  for (const double usual_ms : {12.0, 0.1}) {
    VirtualClock clock;
    std::vector<std::unique_ptr<Drafter>> drafters;
    drafters.push_back(std::make_unique<DelayedDrafter>(12.0, usual_ms, clock));
    const auto& delayed = static_cast<const DelayedDrafter&>(*drafters[0]);
    StepCost learned;
    Speculator speculator({}, std::move(drafters), learned, clock);
    simulate(4, 8000, 0.9, flat, &speculator, &learned);
    CHECK(delayed.num_calls == 1);
    CHECK(delayed.num_drafted <= 2);  // nobody knew how long they take
    const double begin_ms = clock.now_ms();
    Simulated done = simulate(4, 8000, 0.9, flat, &speculator, &learned);
    done.ms += clock.now_ms() - begin_ms;
    const double gain = simulate(4, 8000, 0, flat, nullptr).ms_per_token() / done.ms_per_token();
    CAPTURE(gain);
    CAPTURE(delayed.num_calls);
    CHECK((usual_ms < 1 ? gain > 2 : gain >= 0.99 && delayed.num_calls == 5));
  }
}

TEST_CASE("guesses for a plan behind one in flight are judged by what their own plan gives, and nobody waits for a step") {
  std::vector<std::unique_ptr<Drafter>> drafters;
  drafters.push_back(std::make_unique<BehindDrafter>());
  const auto& drafter = static_cast<const BehindDrafter&>(*drafters[0]);
  const VirtualClock clock;
  const StepCost cost;
  Speculator speculator({.max_tokens = 2, .drafts_always = true}, std::move(drafters), cost, clock);
  Sequence sequence(0, 0, make_request(4, 100), BlockTable(16), 100, 0);
  sequence.append_token(3);
  const Sequence* const all[] = {&sequence};
  const auto plan = [&](int64_t step, int32_t max_drafts = 2) {
    PlanOutlook outlook{.num_rows = 1, .num_in_flight = sequence.num_in_flight, .step = step};
    (sequence.num_in_flight > 0 ? outlook.behind : outlook.decoding) = all;
    outlook.num_unseen = sequence.num_in_flight;
    speculator.begin_plan(outlook);
    Drafts drafts;
    speculator.propose(sequence, max_drafts, &drafts);
    return drafts.size();
  };
  const auto run = [&](int64_t step, const std::vector<TokenId>& given) {
    for (const TokenId token : given) sequence.append_token(token);
    sequence.end_oldest_group(0);
    speculator.on_verified(sequence, 2, static_cast<int32_t>(given.size()) - 1);
    StepPlan ran;
    ran.step = step;
    ran.groups.resize(1);
    speculator.on_step(ran, StepOutput(), 1, 0);
  };
  CHECK(speculator.must_see_all());
  CHECK(plan(0) == 2);
  sequence.add_group_in_flight({0, 3});
  CHECK((speculator.must_see_all() && speculator.must_see(sequence)));
  run(0, {7, 5});
  CHECK(drafter.newest == std::vector<Verdict>{Verdict::kRight, Verdict::kWrong});
  CHECK(!speculator.must_see_all());
  CHECK(plan(1) == 2);
  sequence.add_group_in_flight({0, 3});
  CHECK(!speculator.must_see(sequence));
  CHECK(plan(2, 1) == 1);  // which is not submitted
  CHECK(plan(2) == 2);
  sequence.add_group_in_flight({0, 3});
  run(1, {7, 7, 8});
  CHECK(drafter.newest == std::vector<Verdict>{Verdict::kRight, Verdict::kRight});
  CHECK(plan(3) == 2);
  run(2, {9});
  CHECK(drafter.newest == std::vector<Verdict>{Verdict::kWrong, Verdict::kUnknown});
  CHECK(speculator.metrics().num_groups == 3);
  CHECK(speculator.metrics().num_given == 6);
}

TEST_CASE("where the batch thins, who may still be long drafts first") {
  const VirtualClock clock;
  std::vector<std::unique_ptr<Drafter>> drafters;
  drafters.push_back(std::make_unique<BoastfulDrafter>());
  const StepCost cost;
  Speculator speculator({.max_tokens = 4, .max_step_tokens = 4, .drafts_always = true}, std::move(drafters), cost, clock);
  std::vector<std::unique_ptr<Sequence>> owned;
  std::vector<const Sequence*> decoding;
  for (const int32_t max_tokens : {10, 1000, 10, 10}) {
    const auto id = static_cast<SeqId>(owned.size());
    owned.push_back(std::make_unique<Sequence>(id, 0, make_request(4, max_tokens), BlockTable(16), max_tokens, 0));
    owned.back()->append_token(3);
    decoding.push_back(owned.back().get());
  }
  const auto num_drafts = [&](int64_t step) {
    speculator.begin_plan({.decoding = decoding, .num_rows = static_cast<int32_t>(decoding.size()), .step = step});
    std::vector<int32_t> counts;
    for (const Sequence* sequence : decoding) {
      Drafts drafts;
      speculator.propose(*sequence, 16, &drafts);
      counts.push_back(drafts.size());
    }
    return counts;
  };
  CHECK(num_drafts(0) == std::vector<int32_t>{1, 1, 1, 1});  // others join: whoever is as likely
  decoding.resize(2);
  CHECK(num_drafts(1) == std::vector<int32_t>{0, 4});
}

}  // namespace llmb::test
