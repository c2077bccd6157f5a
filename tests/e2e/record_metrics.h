// Sums over the metrics of records.
#pragma once

#include <cstdint>
#include <string>

#include "tests/e2e/run.h"

namespace llmb::test {

// output: JSON lines. A record without the metric counts as 0.
inline int64_t sum_of_metric(const std::string& output, const char* metric) {
  int64_t sum = 0;
  for (const auto& record : parse_lines(output)) sum += record["metrics"].value(metric, int64_t{0});
  return sum;
}

}  // namespace llmb::test
