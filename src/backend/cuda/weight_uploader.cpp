#include "backend/cuda/weight_uploader.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "kernels/cuda/convert.h"
#include "kernels/cuda/int4_pack.h"
#include "kernels/cuda/linear_int8.h"
#include "kernels/cuda/quantize_rows.h"
#include "kernels/cuda/sparse24_pack.h"
#include "kernels/cuda/w4a8_pack.h"

namespace llmb {

using cuda::check;

WeightUploader::WeightUploader(cudaStream_t stream) : stream_(stream) {
  for (const Slot& slot : slots_) slot.is_free.record(stream);
}

WeightUploader::Slot& WeightUploader::take_slot() {
  Slot& slot = slots_[next_];
  next_ ^= 1;
  slot.is_free.synchronize();
  return slot;
}

void WeightUploader::upload(const TensorView& values, DType dtype, void* out) {
  const auto* source = static_cast<const uint8_t*>(values.data);
  auto* target = static_cast<uint8_t*>(out);
  const int64_t from_bytes = dtype_bytes(values.dtype), to_bytes = dtype_bytes(dtype);
  const int64_t chunk = kChunkBytes / from_bytes, size = values.rows * values.cols;
  for (int64_t begin = 0; begin < size; begin += chunk) {
    const int64_t count = std::min(chunk, size - begin);
    Slot& slot = take_slot();
    std::memcpy(slot.host.data(), source + begin * from_bytes, count * from_bytes);
    void* const place = values.dtype == dtype ? target + begin * to_bytes : slot.device.data();
    check(cudaMemcpyAsync(place, slot.host.data(), count * from_bytes, cudaMemcpyHostToDevice, stream_),
          "cudaMemcpyAsync");
    if (values.dtype != dtype)
      cuda::convert(slot.device.data(), values.dtype, target + begin * to_bytes, dtype, count, stream_);
    slot.is_free.record(stream_);
  }
}

template <typename Use>
void WeightUploader::upload_floats(const TensorView& values, const Use& use) {
  if (floats_.bytes() == 0) floats_ = cuda::DeviceMemory(kChunkBytes);
  const auto* source = static_cast<const uint8_t*>(values.data);
  const int64_t chunk = kChunkBytes / int64_t{sizeof(float)} / values.cols;
  LLMB_CHECK(chunk > 0);
  for (int64_t begin = 0; begin < values.rows; begin += chunk) {
    const int64_t rows = std::min(chunk, values.rows - begin);
    upload({source + begin * values.cols * dtype_bytes(values.dtype), values.dtype, rows, values.cols}, DType::kF32,
           floats_.data());
    use(floats_.data<const float>(), begin, rows);
  }
}

void WeightUploader::upload_int8(const TensorView& values, int8_t* out, float* scales) {
  static_assert(cuda::kMaxInt8Features * int64_t{sizeof(float)} <= kChunkBytes);
  upload_floats(values, [&](const float* x, int64_t begin, int64_t rows) {
    cuda::quantize_rows(x, rows, values.cols, out + begin * cuda::int8_row_bytes(values.cols), scales + begin, stream_);
  });
}

void WeightUploader::upload_int8_columns(const TensorView& values, int64_t first, int64_t count, int8_t* out,
                                         float* scales) {
  const auto bytes = [](int64_t width) { return static_cast<size_t>(cuda::int8_row_bytes(width)); };
  const int64_t rows_at_once = std::min(values.rows, kChunkBytes / int64_t{sizeof(float)} / values.cols);
  if (const int64_t room = rows_at_once * cuda::int8_row_bytes(values.cols); whole_rows_.bytes() < room)
    whole_rows_ = cuda::DeviceMemory(room);
  check(cudaMemsetAsync(out, 0, static_cast<size_t>(values.rows) * bytes(count), stream_), "cudaMemsetAsync");
  upload_floats(values, [&](const float* x, int64_t begin, int64_t rows) {
    auto* const whole = whole_rows_.data<int8_t>();
    cuda::quantize_rows(x, rows, values.cols, whole, scales + begin, stream_);
    check(cudaMemcpy2DAsync(out + begin * cuda::int8_row_bytes(count), bytes(count), whole + first, bytes(values.cols),
                            static_cast<size_t>(count), static_cast<size_t>(rows), cudaMemcpyDeviceToDevice, stream_),
          "cudaMemcpy2DAsync");
  });
}

void WeightUploader::upload_w4a8(const TensorView& values, int64_t first_feature, uint8_t* units, float* scales) {
  upload_floats(values, [&](const float* x, int64_t begin, int64_t rows) {
    cuda::quantize_w4a8(x, rows, values.cols, first_feature + begin, units, scales + begin, stream_);
  });
}

void WeightUploader::upload_fp8(const TensorView& values, cuda::E4m3* out, float* scales) {
  upload_floats(values, [&](const float* x, int64_t begin, int64_t rows) {
    cuda::quantize_rows(x, rows, values.cols, out + begin * cuda::fp8::row_bytes(values.cols), scales + begin, stream_);
  });
}

void WeightUploader::upload_fp8_blocks(const TensorView& blocks, cuda::E4m3* out, float* scales) {
  const BlockSize& block = block_size(blocks.blocks);
  const auto* const source = static_cast<const uint8_t*>(blocks.data);
  const int64_t row_bytes = cuda::fp8::row_bytes(blocks.cols);
  const int64_t chunk = kChunkBytes / (row_bytes + int64_t{sizeof(float)});
  LLMB_CHECK(chunk > 0);
  for (int64_t begin = 0; begin < blocks.rows; begin += chunk) {
    const int64_t rows = std::min(chunk, blocks.rows - begin), bytes = rows * row_bytes;
    const Slot& slot = take_slot();
    auto* const codes = slot.host.data<uint8_t>();
    std::memset(codes, 0, static_cast<size_t>(bytes));
    for (int64_t row = 0; row < rows; ++row) {
      const uint8_t* const from = source + (begin + row) * blocks.row_bytes();
      std::memcpy(codes + bytes + row * int64_t{sizeof(float)}, from, sizeof(float));
      for (int64_t k = 0; k < blocks.cols; ++k) {
        const int64_t group = k / cuda::fp8::kGroup * cuda::fp8::kGroup;
        codes[row * row_bytes + group + cuda::fp8::place_of(static_cast<int>(k - group))] =
            from[k / block.size * block.bytes + int64_t{sizeof(float)} + k % block.size];
      }
    }
    check(cudaMemcpyAsync(out + begin * row_bytes, codes, static_cast<size_t>(bytes), cudaMemcpyHostToDevice, stream_),
          "cudaMemcpyAsync");
    check(cudaMemcpyAsync(scales + begin, codes + bytes, static_cast<size_t>(rows) * sizeof(float),
                          cudaMemcpyHostToDevice, stream_),
          "cudaMemcpyAsync");
    slot.is_free.record(stream_);
  }
}

void WeightUploader::upload_int4(const TensorView& values, DType dtype, int64_t first_feature, uint8_t* units) {
  upload_floats(values, [&](const float* x, int64_t begin, int64_t rows) {
    const int64_t first = first_feature + begin;
    if (dtype == DType::kF16) cuda::quantize_int4<__half>(x, rows, values.cols, first, units, stream_);
    else cuda::quantize_int4<__nv_bfloat16>(x, rows, values.cols, first, units, stream_);
  });
}

template <typename Use>
void WeightUploader::upload_blocks(const TensorView& blocks, const Use& use) {
  const auto* const source = static_cast<const uint8_t*>(blocks.data);
  const int64_t row_bytes = blocks.row_bytes(), chunk = kChunkBytes / row_bytes;
  LLMB_CHECK(chunk > 0);
  for (int64_t begin = 0; begin < blocks.rows; begin += chunk) {
    const int64_t rows = std::min(chunk, blocks.rows - begin), bytes = rows * row_bytes;
    const Slot& slot = take_slot();
    std::memcpy(slot.host.data(), source + begin * row_bytes, static_cast<size_t>(bytes));
    check(cudaMemcpyAsync(slot.device.data(), slot.host.data(), static_cast<size_t>(bytes), cudaMemcpyHostToDevice,
                          stream_),
          "cudaMemcpyAsync");
    use(slot.device.data<const uint8_t>(), begin, rows);
    slot.is_free.record(stream_);
  }
}

void WeightUploader::upload_int4_blocks(const TensorView& blocks, DType dtype, int64_t first_feature,
                                        cuda::int4::Meaning meaning, const cuda::BlockOrder& order, uint8_t* units) {
  upload_blocks(blocks, [&](const uint8_t* from, int64_t begin, int64_t rows) {
    const int64_t first = first_feature + begin;
    const auto pack = [&]<typename T>(T) {
      cuda::pack_int4_blocks<T>(from, rows, blocks.cols, first, meaning, units, stream_, order);
    };
    if (dtype == DType::kF16) pack(__half());
    else pack(__nv_bfloat16());
  });
}

void WeightUploader::upload_sparse24(const TensorView& blocks, DType dtype, int64_t first_feature, uint8_t* units) {
  upload_blocks(blocks, [&](const uint8_t* from, int64_t begin, int64_t rows) {
    const int64_t first = first_feature + begin;
    if (dtype == DType::kF16)
      cuda::pack_sparse24<__half>(from, blocks.blocks, rows, blocks.cols, first, units, stream_);
    else cuda::pack_sparse24<__nv_bfloat16>(from, blocks.blocks, rows, blocks.cols, first, units, stream_);
  });
}

}  // namespace llmb
