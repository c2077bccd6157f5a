// A row to sample from, for tests of both samplers.
#pragma once

#include <cstdint>

#include "core/step_plan.h"

namespace llmb::test {

inline SampleRow params(float temperature, int32_t top_k = 0, float top_p = 1, float min_p = 0) {
  SampleRow row;
  row.temperature = temperature;
  row.top_k = top_k;
  row.top_p = top_p;
  row.min_p = min_p;
  row.rng = {12, 34};
  return row;
}

}  // namespace llmb::test
