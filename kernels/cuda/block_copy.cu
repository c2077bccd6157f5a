// to[p, pairs[i].to] = from[p, pairs[i].from] for all planes p. A thread block copies one KV block of one plane at a
// time; bound by the bytes of the memory or of the link to the host.
#include "kernels/cuda/block_copy.h"

#include <algorithm>

#include "base/check.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/tuning.h"

namespace llmb::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kUnroll = 4;  // loads under way in a thread

// Word: what a thread copies at once.
template <class Word>
__global__ void __launch_bounds__(kThreads)
    block_copy_kernel(const BlockPool from, const BlockPool to, int32_t num_planes, int64_t num_words,
                      const BlockPair* pairs, int32_t num_pairs) {
  for (int64_t unit = blockIdx.x; unit < int64_t{num_pairs} * num_planes; unit += gridDim.x) {
    const BlockPair pair = pairs[unit / num_planes];
    const int64_t plane = unit % num_planes;
    const Word* source = reinterpret_cast<const Word*>(static_cast<const char*>(from.data) + plane * from.plane_stride +
                                                       pair.from * from.block_stride);
    Word* target =
        reinterpret_cast<Word*>(static_cast<char*>(to.data) + plane * to.plane_stride + pair.to * to.block_stride);
    for (int64_t first = threadIdx.x; first < num_words; first += kThreads * kUnroll) {
      Word words[kUnroll];
#pragma unroll
      for (int i = 0; i < kUnroll; ++i)
        if (first + i * kThreads < num_words) words[i] = source[first + i * kThreads];
#pragma unroll
      for (int i = 0; i < kUnroll; ++i)
        if (first + i * kThreads < num_words) target[first + i * kThreads] = words[i];
    }
  }
}

bool is_multiple_of_16(const BlockPool& pool) {
  return reinterpret_cast<uintptr_t>(pool.data) % 16 == 0 && pool.plane_stride % 16 == 0 && pool.block_stride % 16 == 0;
}

}  // namespace

void block_copy(const BlockPool& from, const BlockPool& to, int32_t num_planes, int64_t block_bytes,
                const BlockPair* pairs, int32_t num_pairs, cudaStream_t stream) {
  LLMB_CHECK(num_planes >= 0 && num_pairs >= 0 && block_bytes >= 0);
  const int64_t num_units = int64_t{num_pairs} * num_planes;
  if (num_units == 0 || block_bytes == 0) return;
  const int64_t max_blocks = from.on_host || to.on_host ? tuning::kMaxCopyBlocksToHost : tuning::kMaxCopyBlocks;
  const LaunchShape shape{dim3(static_cast<unsigned>(std::min(num_units, max_blocks))), dim3(kThreads), 0, stream};
  if (is_multiple_of_16(from) && is_multiple_of_16(to) && block_bytes % 16 == 0) {
    launch(shape, block_copy_kernel<uint4>, from, to, num_planes, block_bytes / 16, pairs, num_pairs);
  } else {
    launch(shape, block_copy_kernel<uint8_t>, from, to, num_planes, block_bytes, pairs, num_pairs);
  }
}

}  // namespace llmb::cuda
