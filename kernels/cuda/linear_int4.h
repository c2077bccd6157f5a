// linear_int4: out = x · weightᵀ + bias of int4 weights and 16-bit activations (W4A16), sums in fp32. The idea of
// weights that lie as fragments are read, so that few rows are bound by their bytes: Frantar et al. 2024, Marlin
// (arXiv:2408.11743).
//
// The kernel is linear_codes.h's; on Hopper linear_int4_wgmma.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/int4_units.h"
#include "kernels/cuda/linear_codes_options.h"
#include "kernels/cuda/linear_grouped.h"
#include "kernels/cuda/linear_int4_wgmma.h"

namespace llmb::cuda {

// That decide how work is cut up.
struct LinearInt4Options {
  int32_t num_sms = 1;
  int32_t blocks_per_sm = tuning::kInt4BlocksPerSm;  // decides bits
  int32_t ring_bytes = tuning::kInt4RingBytes;       // as in LinearCodesOptions
  bool hopper = false;                               // has_hopper_code()
  // Whether a row's bits must not depend on the rows beside it, however many there are.
  bool deterministic = true;
  int32_t wgmma_blocks_per_sm = tuning::kInt4WgmmaBlocksPerSm;  // decides bits
};

// Shared by calls on one stream. Driven by one thread.
class LinearInt4 {
 public:
  // Throws CudaError.
  LinearInt4(const LinearInt4Options& options, cudaStream_t stream);

  // Whether there are kernels for this shape: rows of 16-byte pieces, and not more features than there are counters
  // for.
  static bool takes(int64_t out_features, int64_t in_features);

  // Above so many rows it is faster to write a weight's numbers to memory and multiply these.
  int64_t max_rows() const { return options_.hopper ? tuning::kMaxInt4WgmmaRows : tuning::kMaxInt4Rows; }

  // T: __nv_bfloat16 or __half; Out: T or float. x, out and the units are aligned to 16 bytes. More than 128 rows
  // go through the weight once for every 128. REQUIRES: takes(). Throws CudaError.
  template <class T, class Out>
  void run(const Int4View& weight,
           const T* x,  // [rows, in_features]
           int64_t rows,
           Out* out,  // [rows, out_features]
           cudaStream_t stream);

 private:
  const LinearInt4Options options_;
  const LinearCodesOptions codes_;
  code_tiles::Workspace workspace_;
  const LinearInt4Wgmma wgmma_;  // used on Hopper
};

// As linear_grouped(), of weights.is_int4. T: __nv_bfloat16 or __half. REQUIRES: LinearInt4::takes().
template <class T>
void linear_grouped_int4(const GroupedWeights& weights, const T* x, const int32_t* x_rows, const RowTile* tiles,
                         int32_t num_tiles, int32_t tile_rows, T* out, cudaStream_t stream);

}  // namespace llmb::cuda
