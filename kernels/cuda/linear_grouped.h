// linear_grouped: out = x · weightᵀ + bias for groups of rows, each with a weight of its own, as the experts of a
// mixture have them. Which rows are whose is known on the device only, so that a step can be recorded.
//
// Each output element is one chain of fp32 sums over k in order, the bias added last: a row's bits depend on its x and
// its weight alone, as in linear_mma.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/int4_units.h"

namespace llmb::cuda {

// Up to kRows rows of one group; expert -1: nothing.
struct RowTile {
  int32_t expert;
  int32_t first_row, num_rows;
};

struct GroupedWeights {
  const void* const* weights = nullptr;  // [num_experts]  each [out_features, in_features], on the device, of T
  const void* const* biases = nullptr;   // [num_experts]  each [out_features]; or nullptr: none has one
  int64_t out_features = 0;
  int64_t in_features = 0;
  // [num_experts]  each [out_features]: weights are int8 rows of int8_row_bytes(in_features), biases fp32, or e4m3 rows
  // of fp8::row_bytes(in_features); nullptr: of T
  const float* const* scales = nullptr;
  bool is_int4 = false;    // weights are int4 units (int4_units.h), biases of T
  int4::Meaning meaning = int4::Meaning::kFromEight;  // of int4: of all of them
  int32_t first_own = 0, end_own = INT32_MAX;  // other experts are another rank's: they have no matrices here
  bool is_fp8 = false;     // weights are e4m3 with scales, biases of T

  bool is_int8() const { return scales != nullptr && !is_fp8; }
};

// How many rows a tile may have where `rows` rows belong to num_experts experts.
int32_t grouped_tile_rows(int64_t rows, int32_t num_experts);

// T: float (no tensor cores), __nv_bfloat16 or __half. Tensor cores are used where in_features is a multiple of 8. All
// arrays are 16-byte aligned. Throws CudaError.
template <class T>
void linear_grouped(const GroupedWeights& weights,
                    const T* x,             // [any, in_features]
                    const int32_t* x_rows,  // [rows]  row i's row of x; nullptr: row i
                    const RowTile* tiles,   // [num_tiles]  of at most tile_rows rows
                    int32_t num_tiles, int32_t tile_rows,
                    T* out,  // [rows, out_features]
                    cudaStream_t stream);

}  // namespace llmb::cuda
