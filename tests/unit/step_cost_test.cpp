// The curve of step costs: a line through the usual times, which an accident does not bend for long.
#include <doctest/doctest.h>

#include "core/step_cost.h"

namespace llmb::test {

TEST_CASE("what a step costs: the usual time, between observed numbers of rows in a line, never falling") {
  StepCost cost;
  CHECK(cost.ms(5) == 0);
  for (int i = 0; i < 40; ++i) {
    cost.observe(1, 0, i % 5 == 0 ? 50 : 1);
    cost.observe(8, 0, 2.4);
    cost.observe(16, 0, 2.0);
  }
  CHECK(cost.ms(1) == doctest::Approx(1));
  CHECK(cost.ms(4) == doctest::Approx(1.6));
  CHECK(cost.ms(16) == doctest::Approx(2.4));
  CHECK(cost.ms(64) > 2.4);
  for (int32_t rows = 1; rows < 300; ++rows) CHECK(cost.ms(rows + 1) >= cost.ms(rows));
}

TEST_CASE("a few steps that something else delayed say nothing about steps of more rows, which took less") {
  StepCost cost;
  for (int i = 0; i < 40; ++i) cost.observe(4, 0, 0.07);
  for (int i = 0; i < 3; ++i) cost.observe(8, 0, 1.4);
  CHECK(cost.ms(8) == doctest::Approx(1.4));
  for (int i = 0; i < 3; ++i) cost.observe(16, 0, 0.15);
  CHECK(cost.ms(8) == doctest::Approx(0.15));
  CHECK(cost.ms(16) == doctest::Approx(0.15));
  const StepCost kept(cost.curve());
  CHECK(kept.ms(16) == doctest::Approx(0.15));
  for (int32_t rows = 1; rows < 100; ++rows) CHECK(cost.ms(rows + 1) >= cost.ms(rows));
}

TEST_CASE("a delay is not believed for ever: it may be hoped that steps take what their rows take in several steps") {
  StepCost cost;
  for (int i = 0; i < 40; ++i) cost.observe(4, 0, 0.07);
  for (int i = 0; i < 3; ++i) cost.observe(16, 0, 1.4);
  CHECK(cost.ms(16) == doctest::Approx(1.4));
  CHECK(cost.hopeful_ms(16) == doctest::Approx(0.28));
  CHECK(cost.hopeful_ms(4) == doctest::Approx(0.07));
  for (int i = 0; i < 20; ++i) cost.observe(16, 0, 1.4);  // it is no accident
  CHECK(cost.hopeful_ms(16) == doctest::Approx(1.4));
  for (int i = 0; i < 600; ++i) cost.observe(4, 0, 0.07);
  CHECK(cost.ms(16) == doctest::Approx(1.4));
  CHECK(cost.hopeful_ms(16) == doctest::Approx(0.28));  // but it is long ago
  StepCost again = cost;
  again.observe(16, 0, 9.0);
  CHECK(again.ms(16) == doctest::Approx(1.4));
  cost.observe(16, 0, 0.14);
  CHECK(cost.ms(16) == doctest::Approx(0.14));
  for (int32_t rows = 1; rows < 100; ++rows) CHECK(cost.hopeful_ms(rows + 1) >= cost.hopeful_ms(rows));
}

}  // namespace llmb::test
