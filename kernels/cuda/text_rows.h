// text_rows: of a step of whole texts, which rows each text has, and which of two texts a token is of, in the form in
// which mean_rows and add_embedding take it.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "core/step_plan.h"
#include "kernels/cuda/resolve_step.h"

namespace llmb::cuda {

// A step on the device, after resolve_step(). Counts may be padded.
struct TextStep {
  int32_t num_tokens = 0, num_samples = 0;
  const StepRow* rows = nullptr;       // [num_tokens]  entry -1: padding
  const StepEntry* entries = nullptr;  // [num_entries]
  const int32_t* positions = nullptr;  // [num_tokens]
  const SampleRow* samples = nullptr;  // [num_samples]  of the last row of an entry; token_row -1: padding
};

// The rows of each sample row's entry, or the first of them; none for padding. Throws CudaError.
void find_text_rows(const TextStep& step, bool only_first,
                    int32_t* begins,  // [num_samples]
                    int32_t* ends,    // [num_samples]
                    cudaStream_t stream);

// 1 for a token of the second of two texts (StepEntry::second_text), else 0. Throws CudaError.
void find_token_types(const TextStep& step,
                      int32_t* types,  // [num_tokens]
                      cudaStream_t stream);

}  // namespace llmb::cuda
