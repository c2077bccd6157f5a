// Bound by bytes of many rows, of few by the latency of a launch. A block brings a row to shared memory, where columns
// lie in as many banks as they can, and writes a part of it, eight columns a thread. Not timed yet.
#include "kernels/cuda/order_columns.h"

#include <algorithm>

#include "base/check.h"
#include "core/types.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/ptx.h"

namespace llmb::cuda {

namespace {

constexpr int kThreads = 256, kAtOnce = 8;  // columns of a thread
constexpr int64_t kMostShared = 96 * 1024;  // bytes that every device has for a block; longer rows stay where they are
constexpr int64_t kWantedBlocks = 256;      // of few rows

__global__ void __launch_bounds__(kThreads)
    order_columns_kernel(const uint16_t* __restrict__ x, const int32_t* __restrict__ columns, int64_t width,
                         bool in_shared, uint16_t* __restrict__ out) {
  ptx::follow_previous_grid();
  const uint16_t* row = x + int64_t{blockIdx.x} * width;
  if (in_shared) {
    auto* const copy = dynamic_shared<uint16_t>();
    for (int64_t at = int64_t{threadIdx.x} * kAtOnce; at < width; at += kThreads * kAtOnce)
      *reinterpret_cast<uint4*>(copy + at) = *reinterpret_cast<const uint4*>(row + at);
    __syncthreads();
    row = copy;
  }
  const int64_t stride = int64_t{gridDim.y} * kThreads * kAtOnce;
  for (int64_t at = (int64_t{blockIdx.y} * kThreads + threadIdx.x) * kAtOnce; at < width; at += stride) {
    const int4 low = *reinterpret_cast<const int4*>(columns + at),
               high = *reinterpret_cast<const int4*>(columns + at + 4);
    const auto two = [&](int32_t first, int32_t second) { return row[first] | uint32_t{row[second]} << 16; };
    *reinterpret_cast<uint4*>(out + int64_t{blockIdx.x} * width + at) =
        make_uint4(two(low.x, low.y), two(low.z, low.w), two(high.x, high.y), two(high.z, high.w));
  }
}

}  // namespace

void order_columns(const uint16_t* x, const int32_t* columns, int64_t rows, int64_t width, uint16_t* out,
                   cudaStream_t stream) {
  if (rows == 0 || width == 0) return;
  LLMB_CHECK(width % kAtOnce == 0);
  const int64_t bytes = width * int64_t{sizeof(uint16_t)};
  const bool in_shared = bytes <= kMostShared;
  const int64_t parts = std::clamp<int64_t>(kWantedBlocks / rows, 1, ceil_div(width, int64_t{kThreads * kAtOnce}));
  launch_ahead({dim3(static_cast<unsigned>(rows), static_cast<unsigned>(parts)), dim3(kThreads),
                static_cast<size_t>(in_shared ? bytes : 0), stream},
               order_columns_kernel, x, columns, width, in_shared, out);
}

}  // namespace llmb::cuda
