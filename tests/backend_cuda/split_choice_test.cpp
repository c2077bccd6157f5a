// Which steps run in two parts: by counting until they were tried, then by what they took.
#include <doctest/doctest.h>

#include "backend/cuda/split_choice.h"

namespace llmb::test {
namespace {

// 8 billion weights in 16 bits, 128 KiB of keys and values a position; an H100's limits, of which attention has a third.
CountedSteps counted() {
  CountedSteps c;
  c.weight_bytes = 16e9, c.kv_bytes_per_position = 131072;
  c.flops_per_row = 16e9, c.flops_per_pair = 524288;
  c.machine = {800e12, 3e12};
  c.num_sms = 132, c.attention_sms = 40;
  return c;
}

StepWork decode(int32_t rows, double context) { return {rows, rows * context, 0}; }

TEST_CASE("counting: few rows lose, as weights are read twice; many rows of long contexts may gain") {
  const CountedSteps c = counted();
  for (const int32_t rows : {1, 8, 64, 128}) CHECK(c.split_ms(decode(rows, 1000)) > c.whole_ms(decode(rows, 1000)));
  CHECK(c.split_ms(decode(1024, 300)) < c.whole_ms(decode(1024, 300)));
  // Without attention there is nothing to run beside products.
  CHECK(c.split_ms(decode(4096, 0)) > c.whole_ms(decode(4096, 0)));
  // Where all multiprocessors are needed for the memory's rate, nothing is left for the others.
  CountedSteps faster = c;
  faster.machine.bytes_per_s = 132 * 35e9;
  for (const int32_t rows : {64, 512, 2048})
    for (const double context : {100, 1000, 10000})
      CHECK_FALSE(faster.split_ms(decode(rows, context)) < faster.whole_ms(decode(rows, context)));
}

// Runs steps of what was chosen; returns how many of the last hundred were split.
int run(SplitChoice& choice, const StepWork& work, double whole_ms, double split_ms) {
  int num_split = 0;
  for (int i = 0; i < 200; ++i) {
    const bool split = choice.splits(work);
    choice.observe(work, split, split ? split_ms : whole_ms);
    num_split += split && i >= 100;
  }
  return num_split;
}

TEST_CASE("what was measured decides, and is looked at again now and then") {
  SplitChoice gains(SplitMode::kMeasured, counted()), loses(SplitMode::kMeasured, counted());
  const StepWork work = decode(1024, 300);
  CHECK_FALSE(gains.splits(work));  // the whole is measured first
  CHECK(run(gains, work, 40, 30) >= 97);
  CHECK(run(gains, work, 40, 30) < 100);
  CHECK(run(loses, work, 30, 40) <= 3);
  CHECK(run(loses, work, 30, 40) > 0);
  // Nothing is known of other numbers of rows: they are tried by themselves.
  CHECK(run(gains, decode(4096, 300), 40, 60) <= 3);
}

TEST_CASE("steps that cannot gain are never tried; other modes ask no table") {
  SplitChoice measured(SplitMode::kMeasured, counted());
  CHECK(run(measured, decode(16, 1000), 40, 1) == 0);
  SplitChoice always(SplitMode::kAlways, counted()), never(SplitMode::kNever, counted());
  CHECK(run(always, decode(2, 0), 1, 100) == 100);
  CHECK(run(never, decode(1024, 300), 100, 1) == 0);
  // A measure that is none changes nothing.
  measured.observe(decode(1024, 300), true, 0);
  CHECK_FALSE(measured.splits(decode(1024, 300)));
}

}  // namespace
}  // namespace llmb::test
