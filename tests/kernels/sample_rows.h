// Rows of logits given to the CPU's sampler.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <span>
#include <vector>

#include "kernels/cpu/sample.h"
#include "tests/support/kernel_support.h"

namespace llmb::cpu {

inline SampledRows run(const std::vector<float>& logits, int64_t vocab, const StepPlan& plan, ThreadPool& pool) {
  test::GuardedFloats l(static_cast<int64_t>(logits.size()));
  std::copy(logits.begin(), logits.end(), l.data());
  SampledRows out;
  sample(l.data(), vocab, {plan.sample_rows, plan.bias, plan.penalty, plan.masks, plan.mask_words}, &out, pool);
  CHECK(l.guards_untouched());
  CHECK(out.tokens.size() == plan.sample_rows.size());
  CHECK(out.logprobs.size() == plan.sample_rows.size());
  CHECK(out.is_finite.size() == plan.sample_rows.size());
  CHECK(out.top_start.size() == plan.sample_rows.size() + 1);
  return out;
}

// One row with its own penalties and bias.
struct Row {
  SampleRow row;
  std::vector<TokenBias> bias = {};
  std::vector<TokenPenalty> penalty = {};
  std::vector<uint32_t> mask = {};  // empty: none
};

inline StepPlan make_plan(std::span<const Row> rows) {
  StepPlan plan;
  for (const Row& r : rows) {
    SampleRow row = r.row;
    row.bias_begin = static_cast<int32_t>(plan.bias.size());
    plan.bias.insert(plan.bias.end(), r.bias.begin(), r.bias.end());
    row.bias_end = static_cast<int32_t>(plan.bias.size());
    row.penalty_begin = static_cast<int32_t>(plan.penalty.size());
    plan.penalty.insert(plan.penalty.end(), r.penalty.begin(), r.penalty.end());
    row.penalty_end = static_cast<int32_t>(plan.penalty.size());
    if (!r.mask.empty()) {
      plan.mask_words = static_cast<int32_t>(r.mask.size());
      plan.masks.insert(plan.masks.end(), r.mask.begin(), r.mask.end());
      row.mask = plan.num_masks() - 1;
    }
    plan.sample_rows.push_back(row);
  }
  return plan;
}

inline SampledRows run_row(const std::vector<float>& logits, const Row& row) {
  ThreadPool pool(1);
  return run(logits, static_cast<int64_t>(logits.size()), make_plan({&row, 1}), pool);
}

}  // namespace llmb::cpu
