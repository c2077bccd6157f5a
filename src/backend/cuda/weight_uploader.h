// Tensors from host memory (mapped files) into device memory, converted to one dtype on the way.
#pragma once

#include <cstdint>
#include <memory>

#include "core/tensor_view.h"
#include "core/types.h"
#include "kernels/cuda/memory.h"

namespace llmb {

// Copies run through two pinned buffers in turn, so that reading the file and the bus overlap. One thread drives it.
class WeightUploader {
 public:
  // Throws cuda::CudaError.
  explicit WeightUploader(cudaStream_t stream);

  // Queues: out = values, converted to `dtype`. The view may go away after the call.
  void upload(const TensorView& values, DType dtype,
              void* out);  // [rows * cols]

  // Queues: values as kernels/cuda/quantize_rows.h makes them. REQUIRES: cols <= cuda::kMaxInt8Features.
  void upload_int8(const TensorView& values,
                   int8_t* out,     // [rows, cuda::int8_row_bytes(cols)]
                   float* scales);  // [rows]

 private:
  static constexpr int64_t kChunkBytes = int64_t{16} << 20;

  const cudaStream_t stream_;
  struct Slot {
    cuda::PinnedMemory host{kChunkBytes};
    cuda::DeviceMemory device{kChunkBytes};  // where a chunk is converted from
    cuda::Event is_free;
  };
  Slot slots_[2];
  int next_ = 0;
  cuda::DeviceMemory floats_;  // of kChunkBytes, once there are rows to quantise
};

}  // namespace llmb
