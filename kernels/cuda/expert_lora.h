// expert_lora: LoRA adapters of experts that a router chooses (lora.h, experts.h): out[slot] += B A x for each pair of a
// row and one of its experts, by the row's adapter's matrices for that expert. Which slots are whose is known on
// the device only, so items of neighbouring slots are cut there; launches depend on the number of rows only.
//
// A row's bits depend on its x, its out and its matrices alone, as in lora.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/lora.h"

namespace llmb::cuda {

// An adapter's matrices for experts, by layer: [num_experts, 2] products, of gate_up and of down; null: it has none there.
using ExpertLoraTables = const LoraProduct* const*;

struct ExpertAdapters {
  const ExpertLoraTables* of_row = nullptr;  // [rows]  null: the row has no adapter, or one without experts
  int32_t layer = 0;
  bool can_pack = false;                     // lora()'s, of both products
  const LoraProduct** of_slot = nullptr;     // [rows * top_k]  scratch
  LoraItem* items = nullptr;                 // [rows * top_k]  scratch
  float* t = nullptr;                        // [max_slots, kMaxLoraRanks]  scratch of a turn
  int32_t max_slots = 0;                     // a multiple of kLoraItemRows, > 0
};

// Pairs of rows and experts, and where each lies: slots of an expert are neighbours, in the order of rows.
struct ExpertSlots {
  const int32_t* chosen = nullptr;        // [num_pairs]  experts of pairs
  const int32_t* slot_of_pair = nullptr;  // [num_pairs]  -1: nowhere
  const int32_t* row_of_slot = nullptr;   // [num_pairs]
  int32_t num_pairs = 0, top_k = 0;
};

// Writes adapters.items, for the products of a layer. Throws CudaError.
void cut_expert_items(const ExpertAdapters& adapters, const ExpertSlots& slots, cudaStream_t stream);

// Adds to out what adapters have for a product of all slots. REQUIRES: cut_expert_items() before, on the same stream.
// T: float, __nv_bfloat16 or __half. Throws CudaError.
template <class T>
void add_expert_lora(const ExpertAdapters& adapters, const ExpertSlots& slots, bool is_down,
                     const T* x,             // [any, in_features]
                     const int32_t* x_rows,  // [num_pairs]  slots' rows of x; nullptr: slot i's is row i
                     int64_t in_features,
                     T* out,  // [num_pairs, out_features]  in and out
                     int64_t out_features, cudaStream_t stream);

}  // namespace llmb::cuda
