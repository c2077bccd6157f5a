// The rows that stages of a pipeline are balanced for.
#pragma once

#include <cstdint>

#include "core/rank_part.h"
#include "planner/forecast.h"

namespace llmb {

// answer_rows: sequences of a step; each step also reads the weights. Of no rows: as if all were answers'.
StageRows stage_rows_of(const Forecast& forecast, int32_t answer_rows);

}  // namespace llmb
