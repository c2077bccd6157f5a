// A row that is sampled by ranks with a part of the vocabulary each (sample_parts.cpp).
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "base/per_thread.h"
#include "core/step_plan.h"
#include "core/types.h"
#include "kernels/cpu/best_logits.h"
#include "kernels/cpu/logit_passes.h"

namespace llmb::cpu {

// Memory of one thread.
struct PartScratch {
  BestLogits best;
  std::vector<double> sums;
};
inline PartScratch& part_scratch() {
  return per_thread<PartScratch>([] {});
}

// The state of a row, on this rank.
struct PartRow {
  const SampleRow* row = nullptr;
  float* logits = nullptr;  // [count]
  float* values = nullptr;  // [count]  the same memory where the raw ones are not wanted any more
  float raw_max = -std::numeric_limits<float>::infinity(), max = -std::numeric_limits<float>::infinity();
  bool is_finite = false;
  TokenId token = 0;
  // While the border of top-p is looked for: it is a weight in [low, high), as bits of floats.
  uint32_t low = 0, high = 0;
  UpperTail at_low, at_high;
  double wanted = 0;

  bool is_drawn() const { return is_finite && row->temperature > 0; }
};

// The sum of a part of a row.
inline double part_sum(const float* values, int64_t count) {
  PartScratch& s = part_scratch();
  s.sums.resize(static_cast<size_t>(ceil_div(count, kSumBlock)));
  return block_sums(values, count, s.sums.data());
}

}  // namespace llmb::cpu
