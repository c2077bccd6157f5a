// Masks worked out on several threads: each state once, the same bits as one after the other.
#include "engine/mask_workers.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <vector>

#include "grammar/answer_forms.h"
#include "grammar/grammar_constraint.h"
#include "tests/support/mask_check.h"

namespace llmb::test {

namespace {

// Each look at it takes 10 ms, so that other threads are worth waking.
class SlowClock final : public Clock {
 public:
  double now_ms() const override { return 10.0 * num_looks_++; }
  void sleep_until_ms(double) override {}

 private:
  mutable std::atomic<int> num_looks_ = 0;
};

class CountingState final : public ConstraintState {
 public:
  explicit CountingState(bool fails) : fails_(fails) {}
  std::span<const uint32_t> allowed() override {
    ++num_calls;
    if (fails_) throw std::bad_alloc();
    return {};
  }
  void advance(TokenId) override {}
  std::unique_ptr<ConstraintState> clone() const override { return nullptr; }

  std::atomic<int> num_calls = 0;

 private:
  const bool fails_;
};

class CountingForm final : public TokenConstraint {
 public:
  std::unique_ptr<ConstraintState> start() const override { return std::make_unique<CountingState>(false); }
  size_t num_bytes() const override { return 0; }
};

struct States {
  std::vector<std::unique_ptr<ConstraintState>> owned;
  std::vector<MaskWorkers::Row> all;
  void add(const TokenConstraint& form, std::unique_ptr<ConstraintState> state) {
    owned.push_back(std::move(state));
    all.push_back({&form, owned.back().get()});
  }
};

}  // namespace

TEST_CASE("each state is asked once, with any number of threads, forms and states, and whether the clock runs or stands") {
  SlowClock slow;
  VirtualClock standing;
  const CountingForm forms[7];
  for (const Clock* clock : {static_cast<const Clock*>(&slow), static_cast<const Clock*>(&standing)})
    for (const int num_threads : {1, 2, 5})
      for (const int num_forms : {1, 2, 7}) {
        MaskWorkers workers(num_threads, *clock);
        for (const int num_states : {1, 0, 1, 2, 3, 64}) {
          States states;
          for (int i = 0; i < num_states; ++i)
            states.add(forms[i % num_forms], std::make_unique<CountingState>(false));
          workers.find(&states.all);
          for (const auto& state : states.owned) CHECK(static_cast<CountingState&>(*state).num_calls == 1);
        }
      }
}

TEST_CASE("memory that is short on another thread is told on this one, and the next call works") {
  SlowClock clock;
  MaskWorkers workers(3, clock);
  const CountingForm forms[9];
  States first, failing, working;
  for (int i = 0; i < 9; ++i) first.add(forms[i], std::make_unique<CountingState>(false));
  workers.find(&first.all);
  for (int i = 0; i < 9; ++i) failing.add(forms[i], std::make_unique<CountingState>(i == 7));
  CHECK_THROWS_AS(workers.find(&failing.all), std::bad_alloc);
  for (int i = 0; i < 9; ++i) working.add(forms[i], std::make_unique<CountingState>(false));
  workers.find(&working.all);
  for (const auto& state : working.owned) CHECK(static_cast<CountingState&>(*state).num_calls == 1);
}

TEST_CASE("answers of one form and of several get the masks that each alone gets") {
  const auto vocabulary = bundled_vocabulary();
  const char* const kPatterns[] = {"([A-Z][a-z]+ )+[0-9]{4}", "[^,]*, because .{1,40}\\.", "(a|an|the)( [a-z]+){2,9}"};
  std::vector<std::shared_ptr<const TokenConstraint>> together, alone;
  for (const char* pattern : kPatterns) {
    together.push_back(*grammar::make_constraint(*grammar::regex_rules(pattern), vocabulary));
    alone.push_back(*grammar::make_constraint(*grammar::regex_rules(pattern), vocabulary));
  }
  SlowClock clock;
  MaskWorkers workers(4, clock);
  States states, expected;
  constexpr size_t kNumStates = 24;
  for (size_t i = 0; i < kNumStates; ++i) {
    states.add(*together[i % together.size()], together[i % together.size()]->start());
    expected.add(*alone[i % alone.size()], alone[i % alone.size()]->start());
  }
  TestRng rng(1);
  for (int step = 0; step < 12; ++step) {
    workers.find(&states.all);
    for (size_t i = 0; i < kNumStates; ++i) {
      const auto found = states.owned[i]->allowed(), wanted = expected.owned[i]->allowed();
      REQUIRE(std::equal(found.begin(), found.end(), wanted.begin(), wanted.end()));
      const std::optional<TokenId> token = draw_allowed(*vocabulary, wanted, rng);
      if (!token) continue;
      states.owned[i]->advance(*token);
      expected.owned[i]->advance(*token);
    }
  }
}

}  // namespace llmb::test
