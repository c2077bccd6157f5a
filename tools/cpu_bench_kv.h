// Cases of bench_kernels that work on the KV cache: paged_attention, rope_and_kv_write, block_copy.
#pragma once

#include <algorithm>
#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include "core/kv_layout.h"
#include "kernels/cpu/aligned_buffer.h"
#include "kernels/cpu/block_copy.h"
#include "kernels/cpu/kv_groups.h"
#include "kernels/cpu/paged_attention.h"
#include "kernels/cpu/rope.h"
#include "tools/cpu_bench.h"

namespace llmb::bench {

// A cache of random numbers for `blocks` blocks, the same in each of `layers` layers.
struct Cache {
  cpu::AlignedBuffer memory;
  std::vector<cpu::KvCacheView> layers;
};
constexpr int32_t kBlockSize = 16;
constexpr int32_t block_size_of(DType dtype) { return dtype == DType::kI4 ? kKvGroup : kBlockSize; }

// Random numbers in each slot of the first `filled` blocks.
inline void fill_cache(const Shape& s, const cpu::KvCacheView& view, int64_t filled, ThreadPool& pool) {
  const bool has_groups = view.dtype == DType::kI4;
  cpu::KvCacheView open{nullptr, DType::kBF16, kKvGroup, s.kv_heads, s.head_dim};
  cpu::AlignedBuffer memory(has_groups ? filled * open.block_bytes() : 0);
  open.data = memory.data();
  const cpu::KvCacheView& to = has_groups ? open : view;
  const std::vector<float> k = make_floats(filled * view.block_size * s.kv(), 3), v = make_floats(k.size(), 9);
  for (int64_t slot = 0; slot < filled * view.block_size; ++slot)
    cpu::write_kv_slot(&k[slot * s.kv()], &v[slot * s.kv()], slot, to);
  if (!has_groups) return;
  std::vector<cpu::ClosingGroup> groups;
  for (int64_t i = 0; i < filled; ++i) groups.push_back({i, i * kKvGroup});
  cpu::close_kv_groups(open, view, groups, pool);
}

inline Cache make_cache(const Shape& s, DType dtype, int64_t blocks, int64_t layers, ThreadPool& pool) {
  cpu::KvCacheView view{nullptr, dtype, block_size_of(dtype), s.kv_heads, s.head_dim};
  const int64_t block_bytes = view.block_bytes();
  Cache cache{cpu::AlignedBuffer(blocks * layers * block_bytes), {}};
  view.data = cache.memory.data();
  const int64_t filled = std::min<int64_t>(blocks, 61);
  fill_cache(s, view, filled, pool);
  for (int64_t b = filled; b < blocks * layers; ++b)
    std::memcpy(view.data + b * block_bytes, view.data + b % blocks % filled * block_bytes, block_bytes);
  for (int64_t i = 0; i < layers; ++i, view.data += blocks * block_bytes) cache.layers.push_back(view);
  return cache;
}

// How the sequences of a case have blocks in common: the first `tokens` of each, attended to row by row or together.
struct Sharing {
  int32_t tokens = 0;
  bool is_grouped = false;

  const char* name() const { return tokens == 0 ? "" : is_grouped ? ", shared" : ", shared, by row"; }
};

// Decode steps go through as many layers as it takes to find little in a cache that the calls before left there.
inline void attention_case(CpuBench& bench, const Shape& s, DType dtype, int32_t seqs, int32_t query_len,
                           int32_t context, const Sharing& sharing = {}) {
  constexpr int64_t kColdBytes = int64_t{1} << 30;
  const int32_t block_size = block_size_of(dtype);
  const KvLayout layout{1, s.kv_heads, s.head_dim, block_size, 0, dtype};
  const int32_t blocks = static_cast<int32_t>(ceil_div(context, block_size));
  const int32_t num_shared = sharing.tokens / block_size;
  const int64_t num_blocks = int64_t{seqs} * (blocks - num_shared) + num_shared;
  const int64_t layer_bytes = num_blocks * layout.bytes_per_block();
  if (layer_bytes > bench.options().max_weight_mib << 20) return;
  const int64_t layers = query_len > 1 || seqs < 8 ? 1 : std::min<int64_t>(64, ceil_div(kColdBytes, layer_bytes));
  const Cache cache = make_cache(s, dtype, num_blocks, layers, bench.pool());
  const int64_t tokens = int64_t{seqs} * query_len, stride = s.q() + 2 * s.kv();
  const std::vector<float> qkv = make_floats(tokens * stride, 4);
  std::vector<float> out(static_cast<size_t>(tokens * s.q()));
  std::vector<int32_t> query_start = {0}, context_len, block_start = {0};
  std::vector<BlockId> ids(static_cast<size_t>(seqs * blocks));
  std::vector<int32_t> entries(static_cast<size_t>(seqs));
  std::iota(entries.begin(), entries.end(), 0);
  for (int64_t i = 0; i < seqs; ++i)
    for (int64_t b = 0; b < blocks; ++b)
      ids[i * blocks + b] =
          static_cast<BlockId>((b < num_shared ? b : i * (blocks - num_shared) + b) * 7919 % num_blocks);
  for (int32_t i = 1; i <= seqs; ++i) {
    query_start.push_back(i * query_len);
    context_len.push_back(context);
    block_start.push_back(i * blocks);
  }
  cpu::AttentionBatch batch{seqs, query_start.data(), context_len.data(), block_start.data(), ids.data()};
  // The last group of an int4 cache is open: of each sequence.
  const int64_t num_open = dtype == DType::kI4 ? tokens : 0;
  const Cache open = make_cache(s, DType::kBF16, num_open * kKvGroup / kBlockSize, 1, bench.pool());
  const cpu::KvCacheView open_view{open.layers[0].data, DType::kBF16, kKvGroup, s.kv_heads, s.head_dim};
  std::vector<int32_t> open_blocks(static_cast<size_t>(tokens));
  for (int64_t i = 0; i < num_open; ++i)
    open_blocks[i] = static_cast<int32_t>(query_len == 1 ? i : (context - query_len + i) / kKvGroup);
  if (num_open > 0) batch.open = &open_view, batch.open_blocks = open_blocks.data();
  const SharedPrefix prefix{0, num_shared, 0, seqs};
  if (sharing.is_grouped) {
    batch.shared_prefixes = {&prefix, 1};
    batch.shared_entries = entries.data();
  }
  const double pairs = static_cast<double>(tokens) * (context - (query_len - 1) / 2.0);
  size_t layer = 0;
  bench.time(
      "paged_attention", s,
      std::to_string(seqs) + " x " + std::to_string(query_len) + " of " + std::to_string(context) + ", " +
          dtype_name(dtype) + sharing.name(),
      4 * pairs * s.q(),
      static_cast<double>(num_blocks * block_size) * static_cast<double>(layout.bytes_per_token()) +
          8.0 * static_cast<double>(tokens) * s.q(),
      [&] {
        cpu::paged_attention(qkv.data(), stride, out.data(), batch, {s.heads, 0.125f},
                             cache.layers[layer++ % cache.layers.size()], bench.pool());
      },
      [&] { return hash_floats(out); });
}

inline void attention_cases(CpuBench& bench, const Shape& s) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kI8, DType::kF8, DType::kI4}) {
    if (std::find(bench.options().kv_dtypes.begin(), bench.options().kv_dtypes.end(), dtype_name(dtype)) ==
        bench.options().kv_dtypes.end())
      continue;
    for (const int32_t context : bench.options().contexts) {
      for (const int32_t seqs : {1, 8, 64}) attention_case(bench, s, dtype, seqs, 1, context);
      attention_case(bench, s, dtype, 1, std::min(context, 2048), std::min(context, 2048));
    }
    // A prompt of 2,048 tokens that 64 sequences share, and 64 tokens of each; then blocks of their own for all.
    for (const Sharing& sharing : {Sharing{2048, false}, Sharing{2048, true}, Sharing()})
      attention_case(bench, s, dtype, 64, 1, 2112, sharing);
  }
}

inline void rope_case(CpuBench& bench, const Shape& s, int64_t rows) {
  const int64_t stride = s.q() + 2 * s.kv();
  std::vector<float> qkv = make_floats(rows * stride, 7);
  const Cache cache = make_cache(s, DType::kBF16, ceil_div(rows, kBlockSize), 1, bench.pool());
  const std::vector<float> cos(static_cast<size_t>(rows * s.head_dim / 2), 0.8f), sin(cos.size(), 0.6f);
  std::vector<int32_t> positions(static_cast<size_t>(rows));
  std::iota(positions.begin(), positions.end(), 0);
  bench.time(
      "rope_and_kv_write", s, std::to_string(rows) + " rows", 0,
      static_cast<double>(rows) * ((2.0 * s.q() + 2.0 * s.kv()) * 4 + 2.0 * s.kv() * 2),
      [&] {
        cpu::rope_and_kv_write(qkv.data(), positions.data(), positions.data(), rows, s.heads, s.kv_heads, s.head_dim,
                               s.head_dim, cos.data(), sin.data(), cache.layers[0], bench.pool());
      },
      [&] { return hash_bytes(cache.memory.data(), static_cast<size_t>(cache.memory.size_bytes())); });
}

// Blocks of all layers within the pool, as for a choice that writes to a block it shares.
inline void block_copy_cases(CpuBench& bench, const Shape& s) {
  constexpr int32_t kLayers = 32, kBlocks = 128, kHalf = kBlocks / 2;
  const KvLayout layout{kLayers, s.kv_heads, s.head_dim, kBlockSize, kBlocks, DType::kBF16};
  const Cache cache = make_cache(s, layout.dtype, kBlocks, kLayers, bench.pool());
  const int64_t block_bytes = layout.bytes_per_block() / kLayers;
  const cpu::BlockPool pool{cache.layers[0].data, kBlocks * block_bytes, block_bytes};
  std::vector<BlockCopy> copies;  // the first half of the blocks in order, the second backwards
  for (int32_t i = 0; i < kHalf; ++i) copies.push_back({0, i, kBlocks - 1 - i});
  for (const int32_t count : {1, kHalf})
    bench.time(
        "block_copy", s, std::to_string(count) + " blocks of " + std::to_string(kLayers) + " layers", 0,
        2.0 * static_cast<double>(count * layout.bytes_per_block()),
        [&] {
          cpu::block_copy(pool, pool, kLayers, block_bytes, {copies.data(), static_cast<size_t>(count)}, bench.pool());
        },
        [&] { return hash_bytes(cache.memory.data(), static_cast<size_t>(cache.memory.size_bytes())); });
}

}  // namespace llmb::bench
