// Drafters that take time: one that is right enough is found though it would not pay were it as right as it is taken to be
// at first, and one that is wrong costs next to nothing, in short runs, too.
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

namespace llmb::test {

namespace {

// Takes as long for a token of each of its sequences, whatever their number, and knows how often it was right. Its tokens may
// be known to the device alone until they are asked for.
class StepwiseDrafter final : public Drafter {
 public:
  StepwiseDrafter(double ms_per_token, bool is_unseen, VirtualClock& clock)
      : ms_per_token_(ms_per_token), is_unseen_(is_unseen), clock_(clock) {}
  std::string name() const override { return "stepwise"; }
  double acceptance(const Sequence&) const override { return learned.share(); }
  double ms_per_token(int32_t) const override { return num_calls == 0 ? kUnknownMs : ms_per_token_; }
  void draft(std::span<const Sequence* const> sequences, const DraftLimits& limits, std::span<Guess> guesses) override {
    ++num_calls;
    int32_t longest = 0;
    for (size_t i = 0; i < sequences.size(); ++i) {
      double probability = 1;
      for (int32_t k = 0; k < limits.max_tokens && probability >= limits.min_probability; ++k) {
        probability *= learned.share();
        guesses[i].add(is_unseen_ ? drafted_token(k) : kGuessed, k - 1, learned.share(), 0);
        longest = std::max(longest, k + 1);
      }
    }
    clock_.advance_ms(longest * ms_per_token_);
  }
  void see_drafts(std::span<TokenId> tokens) override { std::ranges::replace_if(tokens, is_drafted, kGuessed); }
  void learn(const Sequence&, const Guess& guess, std::span<const Verdict> verdicts) override {
    for (int32_t i = 0; i < guess.size(); ++i)
      if (verdicts[i] != Verdict::kUnknown) learned.add(verdicts[i] == Verdict::kRight);
  }
  void forget(const Sequence&) override {}

  Acceptance learned{0.7};
  int32_t num_calls = 0;

 private:
  const double ms_per_token_;
  const bool is_unseen_;
  VirtualClock& clock_;
};

using Points = std::vector<std::pair<int32_t, double>>;  // rows, and the milliseconds of a step

double along(const Points& points, double rows) {
  size_t i = 1;
  while (i + 1 < points.size() && rows > points[i].first) ++i;
  const auto& [from, from_ms] = points[i - 1];
  const auto& [to, to_ms] = points[i];
  return from_ms + (to_ms - from_ms) * (rows - from) / (to - from);
}

// Steep and flat lines, and the steps of three models on CPUs, where some numbers of rows are dear and more are not.
const Points kCurves[] = {{{1, 0.2}, {64, 6.5}},
                          {{1, 10.02}, {64, 11.28}},
                          {{1, 0.5}, {4, 0.71}, {8, 0.84}, {16, 1.5}, {64, 4.54}},
                          {{1, 0.88}, {4, 1.22}, {8, 1.91}, {16, 2.83}, {64, 4.25}},
                          {{1, 1.0}, {4, 2.11}, {8, 4.16}, {12, 5.575}, {16, 7.77}, {24, 7.956}, {28, 9.24}, {64, 18}}};

struct DearRun {
  const Points& curve;
  double share = 0;  // of a step's time, for a draft token
  double right_rate = 0;
  int32_t batch = 1, num_steps = 400;
  bool is_unseen = false;

  double ms(int32_t rows) const { return along(curve, rows); }
  double ms_per_token() const { return share * ms(batch); }
};

// How many times the rate without drafts.
double gain(const DearRun& w) {
  VirtualClock clock;
  std::vector<std::unique_ptr<Drafter>> drafters;
  drafters.push_back(std::make_unique<StepwiseDrafter>(w.ms_per_token(), w.is_unseen, clock));
  StepCost learned;
  for (const int32_t rows : {16, 16, 32, 32, 64, 64}) learned.observe(rows, 0, w.ms(rows));  // prompts
  Speculator speculator({}, std::move(drafters), learned, clock);
  const auto cost = [&](int32_t rows) { return w.ms(rows); };
  Simulated with = simulate(w.batch, w.num_steps, w.right_rate, cost, &speculator, &learned);
  with.ms += clock.now_ms();
  return simulate(w.batch, w.num_steps, 0, cost, nullptr).ms_per_token() / with.ms_per_token();
}

// The most that any fixed number of drafts gives. A tenth of the steps takes four times as long.
double bound(const DearRun& w) {
  double most = 1, given = 1, right = 1;
  for (int32_t k = 1; k <= 16 && k * w.batch <= 64; ++k) {
    given += right *= w.right_rate;
    most = std::max(most, given * 1.3 * w.ms(w.batch) / (1.3 * w.ms(w.batch * (k + 1)) + k * w.ms_per_token()));
  }
  return most;
}

void check_all(const std::vector<double>& right_rates, int32_t num_steps,
               const std::function<void(const DearRun& run, double gain)>& check) {
  for (const Points& curve : kCurves)
    for (const double share : {0.02, 0.1, 0.2, 0.5})
      for (const double right_rate : right_rates)
        for (const int32_t batch : {1, 4, 16, 64}) {
          const DearRun w = {curve, share, right_rate, batch, num_steps};
          INFO("curve " << &curve - kCurves << ", a draft token " << share << " of a step, right " << right_rate
                        << ", batch " << batch);
          check(w, gain(w));
        }
}

}  // namespace

TEST_CASE("a dear drafter that is always wrong costs at most 0.5 % of the time, of a few hundred steps and of many") {
  for (const int32_t num_steps : {400, 3000})
    check_all({0.0}, num_steps, [](const DearRun&, double gain) { CHECK_MESSAGE(gain >= 0.995, gain); });
}

TEST_CASE("a dear drafter that is right enough is found") {
  check_all({0.95, 1.0}, 4000, [](const DearRun& w, double gain) {
    const double most = bound(w);
    if (w.share <= 0.2 && most > 1.2) CHECK_MESSAGE(gain > 1 + 0.4 * (most - 1), gain << " of " << most);
    else CHECK_MESSAGE(gain >= 0.98, gain << " of " << most);
  });
}

TEST_CASE("a drafter is found that pays as often right as it is, but not as often as is taken for granted at first") {
  const Points& curve = kCurves[4];  // four rows take half the time of eight
  for (const bool is_unseen : {false, true}) {
    const double with = gain({curve, 0.1, 0.95, 4, 6000, is_unseen});
    CHECK_MESSAGE(with > 1.12, with);
  }
}

}  // namespace llmb::test
