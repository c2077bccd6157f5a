// Tensors from host memory (mapped files) into device memory, converted to one dtype on the way.
#pragma once

#include <cstdint>
#include <memory>

#include "core/tensor_view.h"
#include "core/types.h"
#include "kernels/cuda/e4m3.h"
#include "kernels/cuda/int4_pack.h"
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

  // The same of columns [first, first + count), with the scales of whole rows. out: [rows, cuda::int8_row_bytes(count)]
  void upload_int8_columns(const TensorView& values, int64_t first, int64_t count, int8_t* out, float* scales);

  // Queues: values as rows first_feature, … of a matrix as kernels/cuda/w4a8_pack.h makes them. REQUIRES: units are
  // cleared before their first rows.
  void upload_w4a8(const TensorView& values, int64_t first_feature, uint8_t* units,
                   float* scales);  // [rows]

  // The same as e4m3. out: [rows, cuda::fp8::row_bytes(cols)]
  void upload_fp8(const TensorView& values, cuda::E4m3* out, float* scales);
  // The same of blocks of e4m3 that has_fp8_rows() (stored_blocks.h), which keep their codes.
  void upload_fp8_blocks(const TensorView& blocks, cuda::E4m3* out, float* scales);

  // Queues: values as rows first_feature, … of a matrix as kernels/cuda/int4_pack.h makes them of `dtype`, in 16 bits.
  // REQUIRES: a row fits a chunk; units are cleared before their first rows.
  void upload_int4(const TensorView& values, DType dtype, int64_t first_feature, uint8_t* units);
  // The same of blocks that have a form of units (stored_blocks.h), which keep their codes.
  void upload_int4_blocks(const TensorView& blocks, DType dtype, int64_t first_feature, cuda::int4::Meaning meaning,
                          const cuda::BlockOrder& order, uint8_t* units);

  // Queues: blocks of 2:4 sparse numbers as rows first_feature, … of a matrix as kernels/cuda/sparse24_pack.h makes
  // them of `dtype`, in 16 bits. REQUIRES: a row fits a chunk; units were filled with sparse24::kEmptyByte.
  void upload_sparse24(const TensorView& blocks, DType dtype, int64_t first_feature, uint8_t* units);

 private:
  static constexpr int64_t kChunkBytes = int64_t{16} << 20;
  struct Slot {
    cuda::PinnedMemory host{kChunkBytes};
    cuda::DeviceMemory device{kChunkBytes};  // where a chunk is converted from
    cuda::Event is_free;
  };

  // Buffers of the next turn, once their last copy has ended.
  Slot& take_slot();
  // Queues use(blocks on the device, first row, rows) of some rows after the other.
  template <typename Use>
  void upload_blocks(const TensorView& blocks, const Use& use);
  // Queues use(floats, first row, rows) of some rows after the other.
  template <typename Use>
  void upload_floats(const TensorView& values, const Use& use);

  const cudaStream_t stream_;
  Slot slots_[2];
  int next_ = 0;
  cuda::DeviceMemory floats_;  // of kChunkBytes, once there are rows to quantise
  cuda::DeviceMemory whole_rows_;  // of which columns are taken
};

}  // namespace llmb
