#include "backend/cpu/kv_pool.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "backend/cpu/tree_batch.h"
#include "kernels/cpu/block_copy.h"

namespace llmb {

namespace {

constexpr double kMaxShareOfMemory = 0.4;

constexpr int64_t kUnknownMemoryBytes = int64_t{1} << 46;  // keeps sizes far from overflow

// In double: a message about a size that is too large must not overflow.
std::string mib(double bytes) { return std::to_string(static_cast<int64_t>(std::ceil(bytes / (1 << 20)))) + " MiB"; }

}  // namespace

int32_t num_scratch_blocks(const LoadOptions& options) {
  return TreeBatch::num_scratch_blocks(options.max_num_drafts, options.block_size);
}

Result<KvLayout> plan_kv_layout(const ModelConfig& config, const LoadOptions& options, int64_t available_bytes) {
  const DType dtype = options.kv_cache_dtype.value_or(config.cpu_kv_dtype(options.cpu.quantization));
  KvLayout kv{config.num_hidden_layers, config.num_key_value_heads, config.head_dim, options.block_size, 0, dtype,
              layer_groups(config, options)};
  const int64_t bytes_per_block = kv.bytes_per_block(), num_scratch = num_scratch_blocks(options);
  const int64_t memory_bytes =
      (available_bytes > 0 ? available_bytes : kUnknownMemoryBytes) - num_scratch * bytes_per_block;
  const int64_t blocks_per_seq = max_blocks_per_seq(kv, options);
  // Slots are 32-bit.
  const int64_t max_blocks = INT32_MAX / options.block_size - num_scratch;
  int64_t num_blocks = options.num_blocks_override;
  if (num_blocks == 0) {
    int64_t budget = options.kv_cache_bytes;
    if (budget == 0) budget = static_cast<int64_t>(static_cast<double>(memory_bytes) * kMaxShareOfMemory);
    num_blocks = budget / bytes_per_block;
    if (options.kv_cache_bytes == 0) num_blocks = std::min(num_blocks, options.max_num_seqs * blocks_per_seq);
    if (num_blocks < blocks_per_seq)
      return resource_exhausted("the KV cache of " + mib(static_cast<double>(budget)) +
                                " cannot hold one sequence of max_model_len " + std::to_string(options.max_model_len) +
                                ", which needs " +
                                mib(static_cast<double>(blocks_per_seq) * static_cast<double>(bytes_per_block)) +
                                "; lower --max-model-len or give the cache more memory");
  }
  num_blocks = std::min(num_blocks, max_blocks);
  if (num_blocks > memory_bytes / bytes_per_block)
    return resource_exhausted("the KV cache needs " +
                              mib(static_cast<double>(num_blocks) * static_cast<double>(bytes_per_block)) +
                              ", but only " + mib(static_cast<double>(memory_bytes)) + " of memory are available");
  kv.num_blocks = static_cast<int32_t>(num_blocks);
  return kv;
}

int32_t max_idle_blocks(const KvLayout& layout, const LoadOptions& options) {
  constexpr int64_t kMaxBytes = int64_t{1} << 30;
  if (options.kv_cache_bytes > 0 || options.num_blocks_override > 0) return INT32_MAX;
  const int64_t of_a_sequence = max_blocks_per_seq(layout, options);
  const int64_t num_blocks = std::max(kMaxBytes / layout.bytes_per_block(), of_a_sequence);
  return static_cast<int32_t>(std::clamp<int64_t>(num_blocks, 1, INT32_MAX));
}

KvPool::KvPool(const KvLayout& layout, int32_t num_scratch)
    : layout_(layout), num_scratch_(num_scratch), memory_(layout.num_planes() * plane_bytes() / 4) {}

int64_t KvPool::plane_bytes() const {
  const int64_t num_blocks = int64_t{layout_.num_blocks} + num_scratch_;
  return ceil_div(num_blocks * view(nullptr).block_bytes(), 64) * 64;
}

cpu::KvCacheView KvPool::view(uint8_t* data) const {
  return {data, layout_.dtype, layout_.block_size, layout_.num_kv_heads, layout_.head_dim};
}

void KvPool::copy_blocks(std::span<const BlockCopy> copies, ThreadPool& pool) {
  const int64_t block_bytes = view(nullptr).block_bytes();
  const cpu::BlockPool blocks{plane(0).data, plane_bytes(), block_bytes};
  cpu::block_copy(blocks, blocks, layout_.num_planes(), block_bytes, copies, pool);
}

cpu::KvCacheView KvPool::plane(int32_t plane) {
  return view(reinterpret_cast<uint8_t*>(memory_.data()) + plane * plane_bytes());
}

}  // namespace llmb
