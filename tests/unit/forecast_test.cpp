// A run expects something of the rows that it has read, and learns from those that have ended.
#include "planner/forecast.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <set>
#include <utility>
#include <vector>

#include "core/step_cost.h"
#include "planner/length_predictor.h"
#include "planner/run_simulation.h"
#include "tests/support/test_rng.h"

namespace llmb::test {

namespace {

ExpectedRow make_row(int64_t line, int32_t shared_with, int32_t num_prompt_tokens, int32_t max_tokens) {
  ExpectedRow row;
  row.line = line;
  row.prompt = static_cast<int32_t>(line);
  row.shared_with = shared_with;
  row.num_prompt_tokens = num_prompt_tokens;
  row.num_shared_tokens = shared_with >= 0 ? num_prompt_tokens / 2 : 0;
  row.max_tokens = max_tokens;
  return row;
}

}  // namespace

TEST_CASE("a forecast adds up what is read, and lengths that rows give are not guessed") {
  Forecaster forecaster;
  CHECK(forecaster.forecast().num_computed_tokens() == 0);
  CHECK(forecaster.forecast().knows_lengths);
  for (int64_t line = 0; line < 3; ++line) {
    ExpectedRow row = make_row(line, line > 0 ? 0 : -1, 10, 7);
    row.is_exact = true;
    row.num_choices = 2;
    forecaster.add(row);
  }
  forecaster.add_equal(10);
  const Forecast forecast = forecaster.forecast();
  CHECK(forecast.num_rows == 4);
  CHECK(forecast.num_equal_rows == 1);
  CHECK(forecast.num_prompt_tokens == 40);
  CHECK(forecast.num_equal_tokens == 10);
  CHECK(forecast.num_shared_tokens == 10);
  CHECK(forecast.num_output_tokens == 3 * 2 * 7);
  CHECK(forecast.num_computed_tokens() == 20 + 42);
  CHECK(forecast.knows_lengths);
  CHECK_FALSE(forecast.is_limit);
  CHECK_FALSE(forecast.has_all_rows);
  forecaster.end_input();
  CHECK(forecaster.forecast().has_all_rows);
}

TEST_CASE("lengths are limits until enough rows have ended, then those of rows alike; at the end they are exact") {
  Forecaster forecaster;
  for (int64_t line = 0; line < 100; ++line) forecaster.add(make_row(line, -1, 10, 1000));
  CHECK(forecaster.forecast().num_output_tokens == 100'000);
  CHECK(forecaster.forecast().is_limit);
  for (int64_t line = 0; line < LengthPredictor::kEnough; ++line) forecaster.end_row(line, 30);
  CHECK(forecaster.forecast().num_output_tokens == 3000);
  CHECK_FALSE(forecaster.forecast().is_limit);
  CHECK_FALSE(forecaster.forecast().knows_lengths);
  forecaster.end_row(5, 77);   // it has ended
  forecaster.end_row(200, 5);  // no such row
  CHECK(forecaster.forecast().num_output_tokens == 3000);
  for (int64_t line = LengthPredictor::kEnough; line < 100; ++line) forecaster.end_row(line, 40);
  CHECK(forecaster.forecast().num_output_tokens == 8 * 30 + 92 * 40);
  CHECK(forecaster.forecast().knows_lengths);
}

TEST_CASE("rows that share a prompt's beginning are alike; those of which none has ended count as all others") {
  LengthPredictor lengths;
  for (int64_t line = 0; line < 90; ++line) lengths.add(make_row(line, line < 3 ? -1 : static_cast<int32_t>(line % 3), 50, 500));
  for (int64_t line = 3; line < 63; ++line)
    if (line % 3 < 2) lengths.end(line, line % 3 == 0 ? 20 : 200);
  CHECK(lengths.expected(63) == doctest::Approx(20));
  CHECK(lengths.expected(64) == doctest::Approx(200));
  CHECK(lengths.expected(65) == doctest::Approx(110));
  CHECK(lengths.expected(90) == 0);
}

TEST_CASE("where answers grow with prompts or with max_tokens, so does what is expected, up to max_tokens") {
  for (const bool by_max : {false, true}) {
    CAPTURE(by_max);
    LengthPredictor lengths;
    for (int64_t line = 0; line < 40; ++line) {
      const auto size = static_cast<int32_t>(10 + line % 10 * 10);
      lengths.add(make_row(line, -1, by_max ? 7 : size, by_max ? size : 190));
    }
    for (int64_t line = 0; line < 24; ++line) lengths.end(line, by_max ? (10 + line % 10 * 10) / 2 : 2 * (10 + line % 10 * 10));
    CHECK(lengths.expected(30) == doctest::Approx(by_max ? 5 : 20));
    CHECK(lengths.expected(35) == doctest::Approx(by_max ? 30 : 120));
    CHECK(lengths.expected(39) == doctest::Approx(by_max ? 50 : 190));
  }
}

TEST_CASE("an error teaches nothing about lengths") {
  LengthPredictor lengths;
  for (int64_t line = 0; line < 20; ++line) lengths.add(make_row(line, -1, 10, 100));
  for (int64_t line = 0; line < 10; ++line) lengths.end(line, 0);
  CHECK(lengths.expected(15) == 100);
  CHECK(lengths.totals().num_open_tokens == 1000);
}

namespace {

// Step by step, row by row.
class NaiveRun {
 public:
  NaiveRun(const std::vector<SimulatedRow>& rows, const RunLimits& limits, const StepCost& cost)
      : limits_(limits), cost_(cost) {
    for (const SimulatedRow& row : rows) waiting_.push_back({row});
  }

  SimulatedRun run() {
    while (!waiting_.empty() || !running_.empty()) {
      preempt();
      while (!waiting_.empty() && prompt_left() < limits_.max_step_tokens - num_decoding() && can_join(waiting_.front().row)) {
        const Waiting& next = waiting_.front();
        int32_t lost = next.row.num_prompt_tokens;
        if (next.is_again) lost = static_cast<int32_t>(std::clamp<int64_t>(num_stored_ - next.num_stored_before, 1, lost));
        running_.push_back({next.row, lost});
        waiting_.pop_front();
      }
      step();
    }
    return run_;
  }

 private:
  struct Waiting {
    SimulatedRow row;
    bool is_again = false;          // it was preempted
    int64_t num_stored_before = 0;  // tokens by all, until then
  };
  struct Running {
    SimulatedRow row;
    int32_t prompt_left, num_given = 0;
    bool decodes() const { return prompt_left == 0; }
  };
  template <typename Count>
  int64_t sum(const Count& count) const {
    int64_t sum = 0;
    for (const Running& r : running_) sum += count(r);
    return sum;
  }
  int64_t num_decoding() const { return sum([](const Running& r) { return r.decodes() ? r.row.num_choices : 0; }); }
  int64_t prompt_left() const { return sum([](const Running& r) { return r.prompt_left; }); }
  int64_t stored() const {
    return sum([](const Running& r) {
      return r.row.num_prompt_tokens - r.prompt_left + r.row.num_choices * std::max(0, r.num_given - 1);
    });
  }
  // Goes through its tokens: full blocks of the prompt are all answers', the others an answer's own.
  int64_t blocks_of(const Running& r) const {
    const int32_t size = limits_.block_size, prompt = r.row.num_shared_tokens + r.row.num_prompt_tokens;
    std::set<std::pair<int32_t, int32_t>> blocks;  // answer, block
    for (int32_t answer = 0; answer < (r.decodes() ? r.row.num_choices : 1); ++answer) {
      const int32_t end = prompt - r.prompt_left + std::max(0, r.num_given - 1);
      for (int32_t token = r.row.num_shared_tokens / size * size; token < end; ++token)
        blocks.emplace(token / size < prompt / size ? -1 : answer, token / size);
    }
    return static_cast<int64_t>(blocks.size());
  }
  int64_t room() const {
    const int64_t num_running = sum([](const Running& r) { return r.row.num_choices; });
    return limits_.pool_tokens - num_running * (limits_.block_size / 2) - stored() - prompt_left() - num_decoding();
  }
  bool can_join(const SimulatedRow& row) const {
    const int64_t slots = sum([](const Running& r) { return r.row.num_choices; });
    return running_.empty() || (slots + row.num_choices <= limits_.num_slots && row.num_prompt_tokens <= room());
  }
  void preempt() {
    while (room() < 0) {
      const auto decoding = std::count_if(running_.begin(), running_.end(), [](const Running& r) { return r.decodes(); });
      if (decoding < 2) return;
      auto last = running_.end();
      while (!(--last)->decodes()) {
      }
      SimulatedRow rest = last->row;
      rest.num_prompt_tokens += rest.num_choices * last->num_given;
      rest.num_output_tokens -= last->num_given;
      running_.erase(last);
      waiting_.push_front({rest, true, num_stored_});
    }
  }
  void step() {
    int64_t num_rows = num_decoding(), budget = std::max<int64_t>(1, limits_.max_step_tokens - num_rows);
    double context = 0, pairs = 0;
    for (Running& r : running_) {
      const int32_t shared = r.row.num_shared_tokens, prompt = r.row.num_prompt_tokens;
      if (r.decodes()) {
        context += r.row.num_choices * (shared + prompt + r.num_given);
        ++r.num_given;
        continue;
      }
      const auto count = static_cast<int32_t>(std::min<int64_t>(budget, r.prompt_left));
      if (count == 0) continue;
      budget -= count;
      num_rows += count;
      for (int32_t i = 0; i < count && count > 1; ++i) pairs += shared + prompt - r.prompt_left + i + 1;
      r.prompt_left -= count;
      context += shared + prompt - r.prompt_left;
      if (r.prompt_left == 0) r.num_given = 1;
    }
    num_stored_ += num_rows;
    ++run_.num_steps;
    run_.ms += cost_.ms(static_cast<int32_t>(num_rows), context, pairs);
    if (stored() > run_.peak_kv_tokens)
      run_.peak_kv_answers = sum([](const Running& r) { return r.row.num_choices; });
    run_.peak_kv_tokens = std::max(run_.peak_kv_tokens, stored());
    const int64_t num_blocks = sum([&](const Running& r) { return blocks_of(r); });
    run_.peak_kv_slots = std::max(run_.peak_kv_slots, (num_blocks + num_ended_blocks_) * limits_.block_size);
    const auto has_ended = [](const Running& r) { return r.decodes() && r.num_given >= r.row.num_output_tokens; };
    num_ended_blocks_ = sum([&](const Running& r) { return limits_.knows_ends && has_ended(r) ? blocks_of(r) : 0; });
    std::erase_if(running_, has_ended);
  }

  std::deque<Waiting> waiting_;
  int64_t num_stored_ = 0, num_ended_blocks_ = 0;
  const RunLimits& limits_;
  const StepCost& cost_;
  std::vector<Running> running_;
  SimulatedRun run_;
};

}  // namespace

TEST_CASE("a simulated run takes the steps, the memory and the time of one that is gone through step by step") {
  StepCost cost;
  for (int i = 0; i < 20; ++i) {
    cost.observe(1, 10, 5);
    cost.observe(64, 640 + i % 2 * 100, 10 + i % 2 + i % 3 * 0.5, 0, 100 * (i % 3));
  }
  for (uint64_t seed = 0; seed < 300; ++seed) {
    CAPTURE(seed);
    TestRng rng(seed);
    std::vector<SimulatedRow> rows(static_cast<size_t>(rng.between(0, 40)));
    for (SimulatedRow& row : rows)
      row = {rng.log_between(1, 60), rng.log_between(1, 50), rng.chance(0.2) ? rng.between(1, 4) : 1,
             rng.chance(0.3) ? rng.between(1, 100) : 0};
    const RunLimits limits = {rng.log_between(4, 16), rng.log_between(16, 100),
                              rng.chance(0.5) ? INT64_MAX / 2 : rng.between(60, 600), rng.log_between(1, 32), rng.chance(0.5)};
    const SimulatedRun expected = NaiveRun(rows, limits, cost).run(), run = simulate_run(rows, limits, cost);
    CHECK(run.num_steps == expected.num_steps);
    CHECK(run.peak_kv_tokens == expected.peak_kv_tokens);
    CHECK(run.peak_kv_answers == expected.peak_kv_answers);
    CHECK(run.peak_kv_slots == expected.peak_kv_slots);
    CHECK(run.ms == doctest::Approx(cost.wall_ms(expected.ms)).epsilon(0.02));
  }
}

TEST_CASE("rows in waves hold two waves' blocks as one takes the place of the other, where ends are known before") {
  const std::vector<SimulatedRow> rows(30, SimulatedRow{5, 4});
  RunLimits limits{10, 1000, INT64_MAX, 32};
  CHECK(simulate_run(rows, limits, StepCost()).peak_kv_slots == 20 * 32);
  limits.knows_ends = false;
  CHECK(simulate_run(rows, limits, StepCost()).peak_kv_slots == 10 * 32);
  CHECK(simulate_run({rows.data(), 10}, limits, StepCost()).peak_kv_tokens == 10 * 8);
}

TEST_CASE("what steps cost by rows and context is kept from run to run, pauses between steps included") {
  StepCost cost;
  CHECK_FALSE(cost.is_known());
  for (int i = 0; i < 64; ++i) {
    const double context = 1000 + 10 * i;
    cost.observe(8, context, 20 + 0.01 * context, 2);
  }
  CHECK(cost.ms(8, 1800) - cost.ms(8, 1300) == doctest::Approx(5).epsilon(0.05));
  CHECK(cost.wall_ms(100) > 105);
  CHECK(cost.wall_ms(100) < 115);
  const StepCost kept(cost.curve());
  CHECK(kept.ms(8) == doctest::Approx(cost.ms(8)));
  CHECK(kept.ms(8, 1500) == doctest::Approx(cost.ms(8, 1500)));
  CHECK(kept.wall_ms(100) == doctest::Approx(cost.wall_ms(100)));
}

}  // namespace llmb::test
