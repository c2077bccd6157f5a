// The sequences of a step that have a recurrent state, and their slots in the pool of states. What the step before gave
// decides where a sequence goes on, so a slot remembers on the device how far its matrices are.
//
// A slot is a header, whose first word is the border (core/state_layout.h), and then the parts of the layers with a state,
// each StateLayout::layer_size() long. Inside a part the order is StateLayout's, but keys are [head, token, channel].
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "core/state_layout.h"

namespace llmb::cuda {

// Floats of a slot's header.
inline constexpr int64_t kStateHeader = 16;

inline int64_t state_slot_floats(const StateLayout& layout) {
  return kStateHeader + layout.num_layers * layout.layer_size();
}

// A sequence's rows in a step, as the plan says.
struct StateRows {
  int32_t first_row = 0, num_rows = 0;  // no rows: padding
  int32_t num_drafts = 0;               // its last rows, which are guesses
  int32_t slot = -1;
};

// The same where the step runs.
struct StateEntry {
  float* slot = nullptr;
  int32_t first_row = 0, num_rows = 0;
  int32_t first_position = 0;  // of its first row
  int32_t border = 0;          // tokens before it are in the slot's matrices
  int32_t next_border = 0;     // the same behind the step
};

// Says where the entries go on, and sets the borders of their slots for the next step. It reads and writes at addresses
// that do not depend on the plan, so it can be recorded. Throws CudaError.
void resolve_states(const StateRows* rows,  // [count]
                    int32_t count,
                    const int32_t* positions,  // [num_tokens]  of the step's rows
                    float* pool,               // [num_slots, slot_floats]
                    int64_t slot_floats,
                    StateEntry* entries,  // [count]  out
                    cudaStream_t stream);

}  // namespace llmb::cuda
