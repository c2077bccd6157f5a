// The rows that stages of a pipeline are balanced for follow the forecast of the input.
#include "job/stage_rows.h"

#include <doctest/doctest.h>

namespace llmb::test {

TEST_CASE("prompts' share of the time, and the middle of a text") {
  Forecast forecast;
  CHECK(stage_rows_of(forecast, 8).prompt_permille == 0);  // nothing is known
  CHECK(stage_rows_of(forecast, 8).answer_rows == 8);
  forecast.num_rows = 10;
  forecast.num_prompt_tokens = 4000;
  forecast.num_output_tokens = 1000;
  CHECK(stage_rows_of(forecast, 1000000).prompt_permille == 800);
  CHECK(stage_rows_of(forecast, 4).prompt_permille == 667);  // reading weights takes as long as four rows
  CHECK(stage_rows_of(forecast, 4).mean_position == 250);
  CHECK(stage_rows_of(forecast, 4).answer_rows == 4);
  forecast.num_shared_tokens = 3000;  // computed once
  CHECK(stage_rows_of(forecast, 1000000).prompt_permille == 500);
  forecast.num_output_tokens = 0;
  CHECK(stage_rows_of(forecast, 4).prompt_permille == 1000);
}

}  // namespace llmb::test
