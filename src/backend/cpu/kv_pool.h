// The KV cache's memory on the CPU: how many blocks it gets, and where each layer's blocks are.
#pragma once

#include <cstdint>
#include <span>

#include "backend/backend.h"
#include "backend/cpu/hidden_rows.h"
#include "backend/cpu/mapped_floats.h"
#include "base/status.h"
#include "base/thread_pool.h"
#include "core/kv_layout.h"
#include "core/lent_blocks.h"
#include "core/model_config.h"
#include "core/rank_part.h"
#include "core/step_plan.h"
#include "kernels/cpu/block_copy.h"
#include "kernels/cpu/kv_cache.h"

namespace llmb {

// Blocks of every plane beside those of the layout, for the backend's own use (backend/cpu/tree_batch.h); where ranks may
// divide blocks, slices, those for rows the last (backend/cpu/kv_slices.h).
int32_t num_scratch_blocks(const LoadOptions& options);
int32_t num_row_slices(const LoadOptions& options);

// The layout with num_blocks chosen: options.num_blocks_override, or what fits options.kv_cache_bytes, or enough for
// max_num_seqs sequences of max_model_len within a fixed share of `available_bytes` (0: unknown, no limit).
// kResourceExhausted where that is more than is available, or where not even one sequence of max_model_len fits a pool
// that was not given in blocks.
Result<KvLayout> plan_kv_layout(const ModelConfig& config, const LoadOptions& options, int64_t available_bytes);

// A pool whose blocks lie in lent ones.
KvLayout borrowed_kv_layout(const ModelConfig& config, const LoadOptions& options, const LentBlocks& lent);

// The pool of one of several ranks: its part of each block of `whole`.
KvLayout kv_of_rank(const ModelConfig& config, const KvLayout& whole, const RankPart& part);
// Blocks that all ranks of a machine can have in the memory of whole.num_blocks: fewer where ranks share keys and
// values, which each of them has. As many as options.num_blocks_override, where that is given.
int32_t num_blocks_of_ranks(const ModelConfig& config, const LoadOptions& options, const KvLayout& whole,
                            const RankPart& grid);

// Blocks that a prefix cache may keep in the pool: all where the pool's size was given, else 1 GiB of them, or those of one
// sequence of max_model_len. Memory of the pool is taken when it is first used.
int32_t max_idle_blocks(const KvLayout& layout, const LoadOptions& options);

// Blocks of the host's pool: num_host_blocks(), and no more than half of `free_bytes` holds.
int32_t plan_host_blocks(const KvLayout& layout, const LoadOptions& options, int64_t free_bytes);
double measure_copy_bytes_per_s(ThreadPool& pool);  // in some milliseconds

// A pool's planes.
PoolArrays arrays_of(const KvLayout& layout);

// Memory is touched, and so resident, only as blocks are written. Move-only.
class KvPool {
 public:
  KvPool() = default;
  explicit KvPool(const KvLayout& layout, int32_t num_scratch = 0);  // throws std::bad_alloc
  // In the memory of `lending`, which outlives it. REQUIRES: layout.num_blocks is lent.num_own(), of arrays_of() both
  KvPool(const KvLayout& layout, KvPool& lending, const LentBlocks& lent);
  // Blocks that follow each other in a plane; 0: they do not all begin at the same distance.
  int32_t num_in_plane() const {
    return plane_bytes_ % block_stride_ == 0 ? static_cast<int32_t>(plane_bytes_ / block_stride_) : 0;
  }
  // Block ids from layout.num_blocks on are scratch.
  cpu::KvCacheView layer(int32_t layer);  // REQUIRES: it has keys and values of its own
  HiddenRows& hidden() { return hidden_; }  // REQUIRES: layout.hidden_size > 0
  // To a pool of the same layout but for num_blocks, or within this one; in all planes.
  void copy_blocks_to(KvPool& other, std::span<const BlockCopy> copies, ThreadPool& pool);
  int64_t block_bytes() const;  // of a block in all planes
  void read_blocks(std::span<const BlockId> blocks, uint8_t* bytes);         // [blocks, block_bytes()]
  void write_blocks(std::span<const BlockId> blocks, const uint8_t* bytes);  // [blocks, block_bytes()]

 private:
  template <class Copy>
  void for_each_part(std::span<const BlockId> blocks, const Copy& copy);
  uint8_t* plane(int32_t plane);
  cpu::BlockPool blocks() { return {plane(0), plane_bytes_, block_stride_}; }
  KvLayout layout_;
  int64_t block_stride_ = 0;  // from one block to the next, in a plane
  int64_t plane_bytes_ = 0;
  MappedFloats memory_;      // [num_planes, plane_bytes_ / 4]
  uint8_t* data_ = nullptr;  // of that, or of another pool's
  HiddenRows hidden_;    // of no blocks without layout.hidden_size
};

}  // namespace llmb
