// mix_experts: a mixture of experts (Shazeer et al. 2017, arXiv:1701.06538). Each token goes through the top_k experts
// that ExpertsConfig names for its router logits: out = sum over them of weight * down(activate(gate_up(x))), or of
// down(activate(weight * gate_up(x))).
//
// 1. Ties go to the lowest expert, and to the lowest group. Groups are judged as in DeepSeek-V3 (arXiv:2412.19437,
//    section 2.1.2), or by their best score alone.
// 2. Each row's bits depend on its own x and logits alone: its experts are added in order of their index.
// 3. The launches depend on the number of rows only. Rows whose logits are NaN become NaN.
// 4. Where some experts are another rank's (GroupedWeights::first_own), `out` is the sum over the others.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "core/activation.h"
#include "core/model_config.h"
#include "core/types.h"
#include "kernels/cuda/expert_lora.h"
#include "kernels/cuda/linear_grouped.h"

namespace llmb::cuda {

inline constexpr int32_t kMaxExpertsPerToken = 32;
inline constexpr int32_t kMaxExperts = 4096;
inline constexpr int32_t kMaxExpertGroups = 32;

struct ExpertsShape {
  int64_t max_rows = 0;
  int64_t hidden = 0;
  int64_t gate_up = 0;  // features of gate and up together
  int64_t intermediate = 0;
  ExpertsConfig config;
  bool is_int8 = false;  // a matrix, or both
};

int64_t experts_workspace_bytes(const ExpertsShape& shape, DType dtype);

// T: float, __nv_bfloat16 or __half. Where the matrices are int8, x and what goes into `down` are rounded to int8, row
// by row. REQUIRES: config within the limits above; workspace of experts_workspace_bytes for a shape that holds this
// one. Throws CudaError.
template <class T>
void mix_experts(const GroupedWeights& gate_up,  // [gate_up, hidden] each
                 const GroupedWeights& down,     // [hidden, intermediate] each
                 const ExpertsConfig& config, const ActivationSpec& spec,
                 const float* router_logits,  // [rows, num_experts]
                 const float* choice_bias,    // [num_experts]  with config.choice_bias, else nullptr
                 const float* scales,         // [num_experts]  of the experts' weights; nullptr: none
                 const T* x,                  // [rows, hidden]
                 int64_t rows,
                 T* out,  // [rows, hidden]
                 void* workspace, cudaStream_t stream,
                 const ExpertAdapters* adapters = nullptr);  // null: no row has one

}  // namespace llmb::cuda
