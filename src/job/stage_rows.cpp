#include "job/stage_rows.h"

#include <algorithm>
#include <cmath>

namespace llmb {

namespace {

// Rows that a product computes in the time in which it reads its weights: 3.7 in bfloat16, 0.8 in int8, 4.5 in int4 by
// the products with SmolLM2's LM head of data/measurements/amd-epyc-25-1-2-cores.md (8 and 64 rows).
constexpr double kRowsOfReading = 4;

}  // namespace

StageRows stage_rows_of(const Forecast& forecast, int32_t answer_rows) {
  const auto num_prompt = static_cast<double>(std::max<int64_t>(0, forecast.num_computed_prompt_tokens()));
  const double of_answers = static_cast<double>(forecast.num_output_tokens) * (1 + kRowsOfReading / answer_rows);
  if (num_prompt + of_answers <= 0) return {.answer_rows = answer_rows};
  // A row stands in the middle of its text, on average.
  return {static_cast<int32_t>(std::lround(1000 * num_prompt / (num_prompt + of_answers))),
          static_cast<int32_t>(forecast.mean_row_tokens() / 2), answer_rows};
}

}  // namespace llmb
