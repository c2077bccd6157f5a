// linear_int4 on Hopper: codes are widened in registers, as wgmma's first operand, and meet rows of x that tensor
// copies brought to shared memory. Units (int4_units.h) are shared out evenly to the multiprocessors, one behind the
// other.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/int4_units.h"
#include "kernels/cuda/linear_codes_options.h"

namespace llmb::cuda {

struct LinearInt4WgmmaOptions {
  int32_t num_sms = 1;
  int32_t blocks_per_sm = tuning::kInt4WgmmaBlocksPerSm;  // decides bits; 1 or 2
  // Sums over k are cut where the weight and the device say, whatever the rows; else more than 128 rows are shared out
  // as one piece of work.
  bool deterministic = true;
};

class LinearInt4Wgmma {
 public:
  explicit LinearInt4Wgmma(const LinearInt4WgmmaOptions& options) : options_(options) {}

  // Whether there are kernels for this shape: rows of 16-byte pieces, and not more features than there are counters
  // for.
  static bool takes(int64_t out_features, int64_t in_features);

  // As LinearInt4::run(). `workspace` is of at least as many blocks. REQUIRES: takes(), has_hopper_code(). Throws
  // CudaError.
  template <class T, class Out>
  void run(const Int4View& weight,
           const T* x,  // [rows, in_features]
           int64_t rows,
           Out* out,  // [rows, out_features]
           const code_tiles::Workspace& workspace, cudaStream_t stream) const;

 private:
  const LinearInt4WgmmaOptions options_;
};

}  // namespace llmb::cuda
