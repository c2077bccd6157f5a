// mix_experts: a mixture of experts (Shazeer et al. 2017, arXiv:1701.06538). Each token goes through the top_k experts
// that ExpertsConfig names for its router logits: out = sum over them of weight * down(activate(gate_up(x))), or of
// down(activate(weight * gate_up(x))).
//
// 1. Ties go to the lowest expert, and to the lowest group. Groups are judged as in DeepSeek-V3 (arXiv:2412.19437,
//    section 2.1.2).
// 2. Each row's result depends on its own x and logits alone: its experts are added in order of their index, whatever
//    rows are beside it.
// 3. A row with a NaN among its logits gets NaN.
// 4. Experts without matrices give nothing: another rank has them, and adds what they give.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/thread_pool.h"
#include "core/activation.h"
#include "core/model_config.h"
#include "kernels/cpu/linear.h"
#include "kernels/cpu/lora.h"

namespace llmb::cpu {

// One expert's matrices, both with biases or both without; or both null.
struct ExpertView {
  const PackedLinear* gate_up;  // [2 * intermediate, hidden], gate first, or without a gate [intermediate, hidden]
  const PackedLinear* down;     // [hidden, intermediate]
};

// LoRA adapters of rows, which add to the products of their experts (lora.h).
struct ExpertAdapters {
  using Matrices = std::vector<std::span<const LoraMatrices>>;  // [adapters, num_experts]
  std::vector<int32_t> adapter_of_row;                          // [rows]  -1: none
  Matrices gate_up, down;
};

// Memory between calls. Grows to what the largest call needs.
struct ExpertsScratch {
  std::vector<int32_t> chosen;  // [rows, top_k]  experts, ascending
  std::vector<float> weights;   // [rows, top_k]
  std::vector<int32_t> slots;   // [rows, top_k]  where a (row, expert) pair lies, sorted by expert; -1: nowhere
  std::vector<float> x, gate_up, activated, y;
  std::vector<int32_t> adapter_of_slot, adapted_slots;  // by adapter within an expert
  LoraWork lora;
};

void mix_experts(std::span<const ExpertView> experts, const ExpertsConfig& config, const ActivationSpec& spec,
                 const float* router_logits,  // [rows, num_experts]
                 const float* choice_bias,    // [num_experts]  with config.choice_bias, else nullptr
                 const float* scales,         // [num_experts]  their weights are multiplied by it; null: by nothing
                 const float* x,              // [rows, hidden]
                 int64_t rows, int64_t hidden,
                 float* out,  // [rows, hidden]
                 ExpertsScratch* scratch, ThreadPool& pool,
                 const ExpertAdapters* adapters = nullptr);  // null: no row has one

}  // namespace llmb::cpu
