// Words for a forecast: tokens, memory, time and money that a run will take.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "job/job_progress.h"

namespace llmb {

struct ForecastContext {
  std::optional<int64_t> pool_tokens;  // nullopt: not known, as before a first run
  int64_t kept_tokens = 0;             // with it; that a prefix cache keeps at most of rows that have ended
  double kv_bytes_per_token = 0;       // with it, too
  int32_t block_size = 1;              // tokens are kept in whole blocks
  int32_t lent_tokens = 0;             // with it; of a draft model's in a block that the pool lends; 0: it lends none
  std::optional<double> price_per_hour;
  bool has_answers = true;  // else rows are scored or embedded
};

// One line: tokens and what is saved of them, the KV cache at its fullest, time, and money where there is a price.
std::string forecast_text(const Forecast& forecast, const ForecastContext& context);

}  // namespace llmb
