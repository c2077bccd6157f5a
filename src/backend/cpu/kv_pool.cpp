#include "backend/cpu/kv_pool.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "backend/cpu/cpu_backend.h"
#include "backend/cpu/tree_batch.h"
#include "base/check.h"
#include "base/clock.h"

namespace llmb {

namespace {

constexpr double kMaxShareOfMemory = 0.4;

constexpr int64_t kUnknownMemoryBytes = int64_t{1} << 46;  // keeps sizes far from overflow

// In double: a message about a size that is too large must not overflow.
std::string mib(double bytes) { return std::to_string(static_cast<int64_t>(std::ceil(bytes / (1 << 20)))) + " MiB"; }

// Without blocks yet.
KvLayout kv_layout(const ModelConfig& config, const LoadOptions& options) {
  const DType dtype = options.kv_cache_dtype.value_or(config.cpu_kv_dtype(options.cpu.quantization));
  return make_kv_layout(config, options.block_size, dtype, layer_groups(config, options));
}

int64_t layer_bytes(const KvLayout& layout, int32_t layer) {  // of a block
  const KvHeads heads = layout.heads_of(layer);
  return cpu::KvCacheView{nullptr, layout.dtype, layout.block_size, heads.num_heads, heads.head_dim, 0,
                          layout.latent_dim}
      .block_bytes();
}

}  // namespace

int32_t num_scratch_blocks(const LoadOptions& options) {
  if (!options.verifies_trees) return 0;
  const int32_t size = std::min(options.block_size, kSliceTokens);
  return TreeBatch::num_scratch_blocks(options.max_num_drafts, size) + num_row_slices(options);
}

int32_t num_row_slices(const LoadOptions& options) {
  const bool may_divide = options.verifies_trees && options.block_size > kSliceTokens;
  return may_divide ? static_cast<int32_t>(ceil_div(options.max_num_drafts, kSliceTokens)) : 0;
}

Result<KvLayout> plan_kv_layout(const ModelConfig& config, const LoadOptions& options, int64_t available_bytes) {
  KvLayout kv = kv_layout(config, options);
  const DType dtype = kv.dtype;
  if (config.has_latent() && (dtype == DType::kI8 || dtype == DType::kF8))
    return unsupported(std::string("kv-cache-dtype ") + dtype_name(dtype) + ": not for model_type \"" + config.model_type +
                       "\", whose cache holds latents; use float32 or bfloat16");
  const int64_t bytes_per_block = kv.bytes_per_block() + options.draft_block_bytes;
  const int64_t num_scratch = num_scratch_blocks(options);
  const int64_t memory_bytes =
      (available_bytes > 0 ? available_bytes : kUnknownMemoryBytes) - num_scratch * kv.bytes_per_block();
  const int64_t blocks_per_seq = max_blocks_per_seq(kv, options);
  // Slots are 32-bit.
  const int64_t max_blocks = INT32_MAX / std::max(options.block_size, options.lent_tokens) - num_scratch;
  int64_t num_blocks = options.num_blocks_override;
  if (num_blocks == 0) {
    int64_t budget = options.kv_cache_bytes;
    if (budget == 0) budget = static_cast<int64_t>(static_cast<double>(memory_bytes) * kMaxShareOfMemory);
    num_blocks = budget / bytes_per_block;
    if (options.kv_cache_bytes == 0) num_blocks = std::min(num_blocks, most_blocks(kv, options));
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

KvLayout borrowed_kv_layout(const ModelConfig& config, const LoadOptions& options, const LentBlocks& lent) {
  KvLayout kv = kv_layout(config, options);
  kv.num_blocks = static_cast<int32_t>(lent.num_own());
  return kv;
}

LentBlocks lent_cpu_blocks(const ModelConfig& config, const LoadOptions& options, const ModelConfig& draft_config,
                           LoadOptions draft) {
  constexpr int32_t kAlignment = 64;  // of planes
  const PoolArrays lending = arrays_of(kv_layout(config, options));
  LentBlocks best;
  if (lending.block_bytes == 0 || lending.block_bytes % kAlignment != 0) return best;
  for (const int32_t size : kLentBlockSizes) {
    draft.block_size = size;
    const KvLayout kv = kv_layout(draft_config, draft);
    if (kv.groups.num_groups() > 1 || kv.hidden_size > 0) return {};
    const LentBlocks lent = fit_blocks(lending, arrays_of(kv), /*may_pad=*/true);
    if (lent && (!best || lent.num_tokens() > best.num_tokens())) best = lent;
  }
  return best;
}

KvLayout kv_of_rank(const ModelConfig& config, const KvLayout& whole, const RankPart& part) {
  const ModelShare share = share_of(config, part);
  const ModelConfig own = config_of(config, share);
  const int64_t end = share.layers.begin + own.num_used_layers();  // behind that of a layer behind the last one
  LayerGroups groups =
      part.num_stages == 1 ? whole.groups : groups_of_layers(whole.groups, share.layers.begin, end);
  KvLayout kv = make_kv_layout(own, whole.block_size / part.num_slices(), whole.dtype, std::move(groups));
  kv.num_blocks = whole.num_blocks;
  return kv;
}

int32_t num_blocks_of_ranks(const ModelConfig& config, const LoadOptions& options, const KvLayout& whole,
                            const RankPart& grid) {
  if (options.num_blocks_override > 0) return whole.num_blocks;
  int64_t bytes = 0;  // of a block, on all ranks
  RankPart part = grid;
  for (part.rank = 0; part.rank < grid.num_ranks(); ++part.rank)
    bytes += kv_of_rank(config, whole, part).bytes_per_block();
  const int64_t fitting = int64_t{whole.num_blocks} * whole.bytes_per_block() / bytes;
  const int64_t least = std::min<int64_t>(whole.num_blocks, max_blocks_per_seq(whole, options));
  return static_cast<int32_t>(std::clamp<int64_t>(fitting, least, whole.num_blocks));
}

int32_t max_idle_blocks(const KvLayout& layout, const LoadOptions& options) {
  constexpr int64_t kMaxBytes = int64_t{1} << 30;
  if (options.kv_cache_bytes > 0 || options.num_blocks_override > 0) return INT32_MAX;
  const int64_t of_a_sequence = max_blocks_per_seq(layout, options);
  const int64_t num_blocks = std::max(kMaxBytes / layout.bytes_per_block(), of_a_sequence);
  return static_cast<int32_t>(std::clamp<int64_t>(num_blocks, 1, INT32_MAX));
}

int32_t plan_host_blocks(const KvLayout& layout, const LoadOptions& options, int64_t free_bytes) {
  const int64_t most = std::max<int64_t>(free_bytes / 2 / layout.bytes_per_block(), 0);
  return static_cast<int32_t>(std::min<int64_t>(num_host_blocks(layout, options), most));
}

double measure_copy_bytes_per_s(ThreadPool& pool) {
  constexpr int32_t kNumBlocks = 64;
  constexpr int64_t kBlockBytes = 1 << 16;
  MappedFloats from(kNumBlocks * kBlockBytes / 4), to(kNumBlocks * kBlockBytes / 4);
  std::vector<BlockCopy> copies;
  for (BlockId block = 0; block < kNumBlocks; ++block) copies.push_back({0, block, block});
  const auto blocks = [](const MappedFloats& memory) {
    return cpu::BlockPool{reinterpret_cast<uint8_t*>(memory.data()), 0, kBlockBytes};
  };
  const SteadyClock clock;
  double begin_ms = 0;
  for (int round = 0; round < 2; ++round) {  // the first one touches the memory
    begin_ms = clock.now_ms();
    cpu::block_copy(blocks(from), blocks(to), 1, kBlockBytes, copies, pool);
  }
  return kNumBlocks * kBlockBytes * 1000 / std::max(clock.now_ms() - begin_ms, 1e-3);
}

PoolArrays arrays_of(const KvLayout& layout) {
  int64_t bytes = 0;
  for (int32_t i = 0; i < layout.num_layers; ++i)
    bytes = std::max(bytes, layout.groups.layers_of_plane(i) * layer_bytes(layout, i));
  return {layout.num_planes(), bytes, layout.block_size};
}

KvPool::KvPool(const KvLayout& layout, int32_t num_scratch)
    : layout_(layout), block_stride_(arrays_of(layout).block_bytes) {
  plane_bytes_ = ceil_div((int64_t{layout.num_blocks} + num_scratch) * block_stride_, 64) * 64;
  memory_ = MappedFloats(layout.num_planes() * plane_bytes_ / 4);
  data_ = reinterpret_cast<uint8_t*>(memory_.data());
  if (layout.hidden_size > 0) hidden_ = HiddenRows(layout);
}

KvPool::KvPool(const KvLayout& layout, KvPool& lending, const LentBlocks& lent)
    : layout_(layout),
      block_stride_(lending.block_stride_ / lent.per_block),
      plane_bytes_(lent.num_arrays * lending.plane_bytes_),
      data_(lending.data_) {
  LLMB_CHECK(layout.num_blocks == lent.num_own() && lent.num_blocks == lending.num_in_plane());
  LLMB_CHECK(arrays_of(layout).block_bytes <= block_stride_ && layout.hidden_size == 0);
  LLMB_CHECK(layout.num_planes() * lent.num_arrays <= lending.layout_.num_planes());
}

cpu::KvCacheView KvPool::layer(int32_t layer) {
  const LayerGroups& groups = layout_.groups;
  const KvHeads heads = layout_.heads_of(layer);
  uint8_t* const data = plane(groups.plane(layer)) + groups.part(layer) * layer_bytes(layout_, layer);
  return {data, layout_.dtype, layout_.block_size, heads.num_heads, heads.head_dim, block_stride_,
          layout_.latent_dim};
}

void KvPool::copy_blocks_to(KvPool& other, std::span<const BlockCopy> copies, ThreadPool& pool) {
  if (copies.empty()) return;
  cpu::block_copy(blocks(), other.blocks(), layout_.num_planes(), block_stride_, copies, pool);
  if (layout_.hidden_size > 0) hidden_.copy_blocks_to(other.hidden_, copies, pool);
}

int64_t KvPool::block_bytes() const {
  return layout_.num_planes() * block_stride_ + layout_.block_size * layout_.hidden_bytes();
}

template <class Copy>
void KvPool::for_each_part(std::span<const BlockId> blocks, const Copy& copy) {
  for (const BlockId block : blocks) {
    for (int32_t i = 0; i < layout_.num_planes(); ++i)
      copy(plane(i) + block * block_stride_, static_cast<size_t>(block_stride_));
    if (layout_.hidden_size > 0)
      copy(hidden_.block(block), static_cast<size_t>(layout_.block_size * layout_.hidden_bytes()));
  }
}

void KvPool::read_blocks(std::span<const BlockId> blocks, uint8_t* bytes) {
  for_each_part(blocks, [&](const uint8_t* part, size_t size) {
    std::memcpy(bytes, part, size);
    bytes += size;
  });
}

void KvPool::write_blocks(std::span<const BlockId> blocks, const uint8_t* bytes) {
  for_each_part(blocks, [&](uint8_t* part, size_t size) {
    std::memcpy(part, bytes, size);
    bytes += size;
  });
}

uint8_t* KvPool::plane(int32_t plane) { return data_ + plane * plane_bytes_; }

}  // namespace llmb
