// Goes through a run row by row to foresee its steps, its time, and the KV cache at its fullest.
#pragma once

#include <cstdint>
#include <span>

#include "core/step_cost.h"

namespace llmb {

struct SimulatedRow {
  int32_t num_prompt_tokens = 0;  // to compute
  int32_t num_output_tokens = 1;  // of each answer
  int32_t num_choices = 1;
  int32_t num_shared_tokens = 0;  // of the prompt, before these: computed and stored for another row
};

struct RunLimits {
  int32_t num_slots = 1;        // answers that are computed at one time
  int32_t max_step_tokens = 1;  // of a step
  int64_t pool_tokens = INT64_MAX;
  int32_t block_size = 1;  // of the pool
  bool knows_ends = true;  // who ends with a step is known before it: others join while the blocks of those are held
};

struct SimulatedRun {
  int64_t num_steps = 0;
  int64_t peak_kv_tokens = 0;   // of rows that run; kept prefixes come on top where there is room
  int64_t peak_kv_answers = 0;  // that run then
  int64_t peak_kv_slots = 0;    // of whole blocks, at their most: of rows that run, and that end as others join
  double ms = 0;                // 0: the cost of steps is not known
};

// Rows join in this order as soon as there are slots and room for their prompts, as in the scheduler; where the pool is full,
// those that joined last are computed again later. Takes O(rows + steps with prompts in them), each with a factor log(slots).
SimulatedRun simulate_run(std::span<const SimulatedRow> rows, const RunLimits& limits, const StepCost& cost);

}  // namespace llmb
