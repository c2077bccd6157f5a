// For a layer behind the last one (core/model_config.h, MtpConfig): store_hidden keeps each row's hidden state in its slot,
// previous_hidden gives each row that of the slot before its own. Where ranks divide the slots by position, each gives what
// it has (give_previous_hidden), and takes the rest (take_previous_hidden). spread_logits: the logits of all tokens, by a
// head that knows some of them alone.
//
// 1. Arrays are at addresses that do not depend on the plan, and slots are found on the device, where a step goes on from
//    what the step before it gave: all three can be recorded.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "core/step_plan.h"
#include "kernels/cuda/own_slots.h"
#include "kernels/cuda/resolve_step.h"

namespace llmb::cuda {

// x and the pool: of one type, float, __nv_bfloat16 or __half, or __nv_bfloat16 of float. Throws CudaError.
template <class T, class Stored>
void store_hidden(const T* x,            // [num_rows, width]
                  const int32_t* slots,  // [num_rows]  -1: not stored; null: row i's slot is i
                  int64_t num_rows, int64_t width,
                  Stored* pool,  // [slots of the cache, width]
                  cudaStream_t stream);

// A step on the device, after resolve_step(). Counts may be padded.
struct PreviousRows {
  int32_t num_rows = 0, block_size = 16;
  const StepRow* rows = nullptr;         // [num_rows]  entry -1: padding
  const int32_t* block_start = nullptr;  // [num_entries]  of its table, in blocks
  const BlockId* block_ids = nullptr;    // [blocks of all tables, num_tables], from the layer's first id on
  int32_t num_tables = 1;                // of a sequence: their ids of a block stand together
  const int32_t* positions = nullptr;    // [num_rows]
  const int32_t* slots = nullptr;        // [num_rows]  of the layer
  const int32_t* parent_rows = nullptr;  // [num_rows]; null: all rows are in their place
};

// Zeros for a sequence's first token and for padding. Throws CudaError.
template <class Stored>
void previous_hidden(const PreviousRows& step,
                     const Stored* pool,  // [slots of the cache, width]
                     int64_t width,
                     float* out,  // [num_rows, width]
                     cudaStream_t stream);

// Slots of a step as own_slots() takes them, in blocks of a slice each: which of them this rank has.
struct SlicedRows {
  PreviousRows step;
  const SliceGroup* group = nullptr;  // on the device
  const BlockPair* blocks = nullptr;  // of all groups
  int32_t rank = 0;
};

// out[entry] = the hidden state of the token before the entry's first row, where there is one and this rank has it. The
// other rows of `out` are left alone. REQUIRES: `rows` are all of the step. Throws CudaError.
template <class Stored>
void give_previous_hidden(const SlicedRows& rows,
                          const Stored* pool,  // [slots of this rank's slices, width]
                          int64_t width,
                          Stored* out,  // [num_entries, width]
                          cudaStream_t stream);

// previous_hidden from the step's own rows and from what ranks gave. Throws CudaError.
template <class Stored>
void take_previous_hidden(const SlicedRows& rows,  // those of `out`: some of the step
                          const Stored* own,       // [rows of the step, width]  from the first of `rows` on
                          const Stored* given,     // [ranks, num_entries, width]  give_previous_hidden
                          int32_t num_entries, int64_t width,
                          float* out,  // [num_rows, width]
                          cudaStream_t stream);

inline constexpr float kNoLogit = -1e30f;  // of a token that the head does not know

// Throws CudaError.
void spread_logits(const float* from,        // [num_rows, num_known]
                   int64_t num_known,
                   const int32_t* known_as,  // [vocab_size]  the token's column of `from`; -1: the head does not know it
                   int64_t num_rows, int64_t vocab_size,
                   float* to,  // [num_rows, vocab_size]
                   cudaStream_t stream);

}  // namespace llmb::cuda
