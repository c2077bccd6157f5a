#include "backend/cuda/weight_uploader.h"

#include <algorithm>
#include <cstring>

#include "kernels/cuda/convert.h"
#include "kernels/cuda/linear_int8.h"

namespace llmb {

using cuda::check;

WeightUploader::WeightUploader(cudaStream_t stream) : stream_(stream) {
  for (const Slot& slot : slots_) slot.is_free.record(stream);
}

void WeightUploader::upload(const TensorView& values, DType dtype, void* out) {
  const auto* source = static_cast<const uint8_t*>(values.data);
  auto* target = static_cast<uint8_t*>(out);
  const int64_t from_bytes = dtype_bytes(values.dtype), to_bytes = dtype_bytes(dtype);
  const int64_t chunk = kChunkBytes / from_bytes, size = values.rows * values.cols;
  for (int64_t begin = 0; begin < size; begin += chunk) {
    const int64_t count = std::min(chunk, size - begin);
    Slot& slot = slots_[next_];
    next_ ^= 1;
    slot.is_free.synchronize();
    std::memcpy(slot.host.data(), source + begin * from_bytes, count * from_bytes);
    void* const place = values.dtype == dtype ? target + begin * to_bytes : slot.device.data();
    check(cudaMemcpyAsync(place, slot.host.data(), count * from_bytes, cudaMemcpyHostToDevice, stream_),
          "cudaMemcpyAsync");
    if (values.dtype != dtype)
      cuda::convert(slot.device.data(), values.dtype, target + begin * to_bytes, dtype, count, stream_);
    slot.is_free.record(stream_);
  }
}

void WeightUploader::upload_int8(const TensorView& values, int8_t* out, float* scales) {
  static_assert(cuda::kMaxInt8Features * int64_t{sizeof(float)} <= kChunkBytes);
  if (floats_.bytes() == 0) floats_ = cuda::DeviceMemory(kChunkBytes);
  const auto* source = static_cast<const uint8_t*>(values.data);
  const int64_t chunk = kChunkBytes / int64_t{sizeof(float)} / values.cols;
  for (int64_t begin = 0; begin < values.rows; begin += chunk) {
    const int64_t rows = std::min(chunk, values.rows - begin);
    upload({source + begin * values.cols * dtype_bytes(values.dtype), values.dtype, rows, values.cols}, DType::kF32,
           floats_.data());
    cuda::quantize_rows(floats_.data<const float>(), rows, values.cols, out + begin * cuda::int8_row_bytes(values.cols),
                        scales + begin, stream_);
  }
}

}  // namespace llmb
