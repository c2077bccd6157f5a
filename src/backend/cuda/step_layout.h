// Where a step's arrays lie in the memory that one copy sends, for StepStage's own files.
#pragma once

#include <cstdint>

#include "backend/cuda/step_stage.h"

namespace llmb {

// Bytes from the memory's begin.
struct StepStage::Layout {
  int64_t tokens, rows, entries, states, block_start, sample_rows, samples, groups, parent_rows, block_ids;
  int64_t expanded_blocks, kept_rows, kept_places, kept_sample_rows, part_samples, sample_places;
  int64_t cta_start[kMaxStepParts][cuda::kMaxWorkLists], items[kMaxStepParts][cuda::kMaxWorkLists];
  // Behind block_ids, whose length varies most.
  int64_t copies(const StepPlan& plan) const;
  int64_t end(const StepPlan& plan) const;
};

}  // namespace llmb
