// Cases of bench_kernels_cuda for block_copy: within the pool, and to and from pinned host memory.
#pragma once

#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cuda/block_copy.h"
#include "tools/cuda_bench.h"

namespace llmb::bench {

// KV blocks of 16 tokens of a model of 32 layers in bf16, the pool as the engine lays it out.
inline void block_copy_cases(CudaBench& bench, int32_t kv_heads, int32_t head_dim, bool is_tiny) {
  const int32_t num_planes = is_tiny ? 4 : 64, num_blocks = is_tiny ? 6 : 128;
  const int64_t block_bytes = int64_t{kv_heads} * 16 * head_dim * 2, plane_bytes = num_blocks * block_bytes;
  const Copies pool(num_planes * plane_bytes);
  check(cudaMemsetAsync(pool.at<void>(0), 0x3c, static_cast<size_t>(pool.bytes()), bench.stream()), "cudaMemsetAsync");
  const cuda::BlockPool device{pool.at<void>(0), plane_bytes, block_bytes};
  const int32_t half = num_blocks / 2;
  std::vector<cuda::BlockPair> apart;  // the first half of the blocks in order, the second backwards
  for (int32_t i = 0; i < half; ++i) apart.push_back({i, num_blocks - 1 - i});
  const Copies pairs = upload(apart, bench.stream());
  for (const int32_t count : {1, half}) {
    const double bytes = static_cast<double>(num_planes * block_bytes) * count;
    const std::string what = std::to_string(count) + " blocks";
    const double seconds = bench.time_s(1, [&](int) {
      cuda::block_copy(device, device, num_planes, block_bytes, pairs.at<cuda::BlockPair>(0), count, bench.stream());
    });
    bench.report_copy("block_copy", what + " within the pool", seconds, 2 * bytes);
  }

  // The host keeps a block's planes together.
  const int64_t host_bytes = half * num_planes * block_bytes;
  const cuda::PinnedMemory memory(host_bytes);
  const cuda::BlockPool host{memory.data(), block_bytes, num_planes * block_bytes, true};
  std::vector<cuda::BlockPair> out, in;
  for (int32_t i = 0; i < half; ++i) out.push_back({2 * i, i}), in.push_back({i, 2 * i});
  const Copies out_pairs = upload(out, bench.stream()), in_pairs = upload(in, bench.stream());
  const auto link = [&](void* to, const void* from, cudaMemcpyKind kind) {
    const auto count = static_cast<size_t>(host_bytes);
    return static_cast<double>(host_bytes) / bench.time_s(1, [&](int) {
      check(cudaMemcpyAsync(to, from, count, kind, bench.stream()), "cudaMemcpyAsync");
    });
  };
  const auto time = [&](const cuda::BlockPool& from, const cuda::BlockPool& to, const Copies& of) {
    return bench.time_s(1, [&](int) {
      cuda::block_copy(from, to, num_planes, block_bytes, of.at<cuda::BlockPair>(0), half, bench.stream());
    });
  };
  const std::string what = std::to_string(half) + " blocks ";
  bench.report_link("block_copy", what + "out to the host", time(device, host, out_pairs),
                    static_cast<double>(host_bytes), link(memory.data(), pool.at<void>(0), cudaMemcpyDeviceToHost));
  bench.report_link("block_copy", what + "in from the host", time(host, device, in_pairs),
                    static_cast<double>(host_bytes), link(pool.at<void>(0), memory.data(), cudaMemcpyHostToDevice));
}

}  // namespace llmb::bench
