// Bound by bytes: each row is read once and written once. A thread moves one pack. keep_rows: a block owns columns, so that
// it alone reads and writes them; its warps take a tile of rows at a time, which they have all read before any of them
// writes. Rows come from further back, or stay: what later tiles read was not written. mean_rows: a block is a run of rows
// by a pack of columns for each lane; its warps share out the rows, whose sums meet in shared memory in the order of
// warps.
#include "kernels/cuda/gather.h"

#include "base/check.h"
#include "core/types.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/pack.h"
#include "kernels/cuda/ptx.h"
#include "kernels/cuda/warp.h"

namespace llmb::cuda {

namespace {

constexpr int kThreads = 128;

template <class T, int kWidth>
__global__ void __launch_bounds__(kThreads)
    gather_rows_kernel(const T* __restrict__ x, const int32_t* __restrict__ rows, int64_t width, T* __restrict__ out) {
  ptx::follow_previous_grid();
  const int64_t row = blockIdx.x, at = (int64_t{blockIdx.y} * kThreads + threadIdx.x) * kWidth;
  if (at >= width) return;
  const int64_t from = rows[row];
  if (from >= 0) return copy_pack<kWidth>(x + from * width + at, out + row * width + at);
  const float zeros[kWidth] = {};
  store_floats(zeros, out + row * width + at);
}

template <class T, int kWidth>
void launch_rows(const T* x, const int32_t* rows, int64_t num_rows, int64_t width, T* out, cudaStream_t stream) {
  const auto chunks = static_cast<unsigned>(ceil_div(width, kThreads * kWidth));
  launch_ahead({dim3(static_cast<unsigned>(num_rows), chunks), dim3(kThreads), 0, stream},
               gather_rows_kernel<T, kWidth>, x, rows, width, out);
}

constexpr int kKeepWarps = 16, kKeepThreads = kKeepWarps * kWarp;
constexpr int kKeepUnroll = 4;  // loads under way in a thread

// Word: what a thread moves at once.
template <class Word>
__global__ void __launch_bounds__(kKeepThreads)
    keep_rows_kernel(Word* x, const int32_t* __restrict__ kept, int64_t num_kept, int64_t row_words) {
  ptx::follow_previous_grid();
  const int64_t warp = threadIdx.x / kWarp, column = int64_t{blockIdx.x} * kWarp + threadIdx.x % kWarp;
  for (int64_t tile = 0; tile < num_kept; tile += kKeepWarps * kKeepUnroll) {
    Word words[kKeepUnroll];
#pragma unroll
    for (int i = 0; i < kKeepUnroll; ++i) {
      const int64_t row = tile + i * kKeepWarps + warp;
      if (row < num_kept && column < row_words) words[i] = x[kept[row] * row_words + column];
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kKeepUnroll; ++i) {
      const int64_t row = tile + i * kKeepWarps + warp;
      if (row < num_kept && column < row_words) x[row * row_words + column] = words[i];
    }
  }
}

template <class Word>
void launch_keep(void* x, const int32_t* kept, int64_t num_kept, int64_t row_bytes, cudaStream_t stream) {
  const int64_t row_words = row_bytes / int64_t{sizeof(Word)};
  launch_ahead({dim3(static_cast<unsigned>(ceil_div(row_words, kWarp))), dim3(kKeepThreads), 0, stream},
               keep_rows_kernel<Word>, static_cast<Word*>(x), kept, num_kept, row_words);
}

constexpr int kMeanWarps = 8, kMeanThreads = kMeanWarps * kWarp;

template <class T, class Out, int kWidth>
__global__ void __launch_bounds__(kMeanThreads)
    mean_rows_kernel(const T* __restrict__ x, const int32_t* __restrict__ begins, const int32_t* __restrict__ ends,
                     int64_t width, Out* __restrict__ out) {
  ptx::follow_previous_grid();
  constexpr int kColumns = kWarp * kWidth;
  __shared__ float sums[kMeanWarps * kColumns];
  const int warp = static_cast<int>(threadIdx.x / kWarp), lane = static_cast<int>(threadIdx.x % kWarp);
  const int64_t run = blockIdx.x, first = int64_t{blockIdx.y} * kColumns, at = first + lane * kWidth;
  const int32_t begin = begins[run], end = ends[run];
  float sum[kWidth] = {};
  for (int64_t row = begin + warp; row < end && at < width; row += kMeanWarps) {
    float values[kWidth];
    load_floats(x + row * width + at, values);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) sum[i] += values[i];
  }
#pragma unroll
  for (int i = 0; i < kWidth; ++i) sums[warp * kColumns + lane * kWidth + i] = sum[i];
  __syncthreads();
  const auto count = static_cast<float>(max(end - begin, 1));
  for (int column = static_cast<int>(threadIdx.x); column < kColumns; column += kMeanThreads) {
    if (first + column >= width) continue;
    float total = sums[column];
    for (int w = 1; w < kMeanWarps; ++w) total += sums[w * kColumns + column];
    out[run * width + first + column] = from_float<Out>(total / count);
  }
}

template <class T, class Out, int kWidth>
void launch_means(const T* x, const int32_t* begins, const int32_t* ends, int64_t num_runs, int64_t width, Out* out,
                  cudaStream_t stream) {
  const auto chunks = static_cast<unsigned>(ceil_div(width, kWarp * kWidth));
  launch_ahead({dim3(static_cast<unsigned>(num_runs), chunks), dim3(kMeanThreads), 0, stream},
               mean_rows_kernel<T, Out, kWidth>, x, begins, ends, width, out);
}

}  // namespace

void keep_rows(void* x, const int32_t* kept, int64_t num_kept, int64_t row_bytes, cudaStream_t stream) {
  LLMB_CHECK(row_bytes % 2 == 0);
  if (num_kept == 0 || row_bytes == 0) return;
  const auto is_multiple_of = [&](int64_t bytes) {
    return row_bytes % bytes == 0 && reinterpret_cast<uintptr_t>(x) % static_cast<uintptr_t>(bytes) == 0;
  };
  if (is_multiple_of(16)) launch_keep<uint4>(x, kept, num_kept, row_bytes, stream);
  else if (is_multiple_of(4)) launch_keep<uint32_t>(x, kept, num_kept, row_bytes, stream);
  else launch_keep<uint16_t>(x, kept, num_kept, row_bytes, stream);
}

template <class T, class Out>
void mean_rows(const T* x, const int32_t* begins, const int32_t* ends, int64_t num_runs, int64_t width, Out* out,
               cudaStream_t stream) {
  if (num_runs == 0) return;
  if (can_pack(width, x)) launch_means<T, Out, kPackWidth>(x, begins, ends, num_runs, width, out, stream);
  else launch_means<T, Out, 1>(x, begins, ends, num_runs, width, out, stream);
}

template void mean_rows(const float*, const int32_t*, const int32_t*, int64_t, int64_t, float*, cudaStream_t);
template void mean_rows(const __nv_bfloat16*, const int32_t*, const int32_t*, int64_t, int64_t, float*, cudaStream_t);
template void mean_rows(const __nv_bfloat16*, const int32_t*, const int32_t*, int64_t, int64_t, __nv_bfloat16*,
                        cudaStream_t);
template void mean_rows(const __half*, const int32_t*, const int32_t*, int64_t, int64_t, float*, cudaStream_t);
template void mean_rows(const __half*, const int32_t*, const int32_t*, int64_t, int64_t, __half*, cudaStream_t);

template <class T>
void gather_rows(const T* x, const int32_t* rows, int64_t num_rows, int64_t width, T* out, cudaStream_t stream) {
  if (num_rows == 0) return;
  if (can_pack(width, x, out)) launch_rows<T, kPackWidth>(x, rows, num_rows, width, out, stream);
  else launch_rows<T, 1>(x, rows, num_rows, width, out, stream);
}

template void gather_rows(const float*, const int32_t*, int64_t, int64_t, float*, cudaStream_t);
template void gather_rows(const __nv_bfloat16*, const int32_t*, int64_t, int64_t, __nv_bfloat16*, cudaStream_t);
template void gather_rows(const __half*, const int32_t*, int64_t, int64_t, __half*, cudaStream_t);

}  // namespace llmb::cuda
