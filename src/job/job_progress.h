// A look at a run that is under way.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "engine/engine.h"
#include "job/coordinator.h"
#include "planner/forecast.h"

namespace llmb {

struct JobProgress {
  EngineProgress engine;
  int64_t num_done = 0, num_failed = 0;  // lines that are answered; of them, error records
  int64_t num_read = 0;                  // lines that need an answer, as far as they were read
  int64_t input_bytes = 0;               // of the inputs, as stored, up to there
  std::optional<int64_t> total_bytes;    // of all inputs; nullopt: not known, as for pipes
  std::optional<int64_t> num_lines;      // that need an answer; nullopt: not known
  Forecast forecast;                     // of the rows that were read
  int64_t num_finished_tokens = 0;       // of the rows that an engine has finished
  std::string only_error;                // every line answered so far has failed with this code; "": not so
};

JobProgress progress_of(const Coordinator& coordinator, const EngineProgress& engine,
                        std::optional<int64_t> num_lines = {});

}  // namespace llmb
