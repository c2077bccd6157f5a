// Positions are cut into segments of kSegment at fixed absolute boundaries. Within a segment: scores of all rows, exact
// softmax numerators, weighted sum of values; segments are merged in order as in online softmax (Milakov and Gimelshein
// 2018; splits over the context as in Flash-Decoding, 2023).
//
// A row is one query head of one token. An item is a few tokens of one sequence with all query heads of one KV head, so
// that each key and value loaded serves every row of the item. Decode is bound by the bytes of K and V, prefill by
// multiply-adds. With few items, the segments of an item run on different threads.
#include "kernels/cpu/paged_attention.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

#include "base/check.h"
#include "kernels/cpu/aligned_buffer.h"
#include "kernels/cpu/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/paged_attention.cpp"
#include "hwy/foreach_target.h"  // must come before highway.h
#include "kernels/cpu/simd-inl.h"

#ifndef LLMB_KERNELS_CPU_PAGED_ATTENTION_ONCE_
#define LLMB_KERNELS_CPU_PAGED_ATTENTION_ONCE_
namespace llmb::cpu {

constexpr int64_t kSegment = 256;  // positions; part of the results' definition
constexpr int64_t kChunk = 64;     // positions whose keys or values stay in the first-level cache

struct AttentionCall {
  const float* qkv;
  int64_t qkv_stride;
  float* out;
  AttentionBatch batch;
  int64_t num_heads, group;  // group: query heads of a KV head
  float scale;
  KvCacheView kv;

  int64_t padded_dim() const { return ceil_div(kv.head_dim, 16) * 16; }
};

// Tokens [token_begin, token_end) of one sequence, all query heads of one KV head.
struct AttentionItem {
  int64_t seq, kv_head, token_begin, token_end;

  int64_t num_rows(const AttentionCall& c) const { return (token_end - token_begin) * c.group; }
  // Positions that a token sees.
  int64_t limit(const AttentionCall& c, int64_t token) const {
    return c.batch.context_len[seq] - (c.batch.query_start[seq + 1] - 1 - token);
  }
  int64_t num_segments(const AttentionCall& c) const { return ceil_div(limit(c, token_end - 1), kSegment); }
};

// One query head of one token. An item's rows are in order of tokens, so limit does not fall.
struct AttentionRow {
  const float* q;  // [head_dim]
  float* out;      // [head_dim]
  int64_t limit;
};

// Of each row: sum of exp(score - max) * value, max, and sum of exp(score - max).
struct AttentionState {
  float* values;  // [rows, padded_dim]
  float* max;     // [rows]
  float* norm;    // [rows]

  static int64_t floats(int64_t rows, int64_t padded_dim) { return rows * (padded_dim + 2); }
  AttentionState(float* at, int64_t rows, int64_t padded_dim)
      : values(at), max(at + rows * padded_dim), norm(max + rows) {}
};

// Memory of one thread while it works on an item.
struct AttentionScratch {
  std::span<const AttentionRow> rows;
  float* scores;    // [rows, kSegment]
  float* k_gather;  // [padded_dim, kChunk]
  float* v_gather;  // [kChunk, padded_dim]

  static int64_t floats(int64_t num_rows, int64_t padded_dim) { return num_rows * kSegment + 2 * kChunk * padded_dim; }
  AttentionScratch(std::span<const AttentionRow> item_rows, float* at, int64_t padded_dim)
      : rows(item_rows),
        scores(at),
        k_gather(at + static_cast<int64_t>(rows.size()) * kSegment),
        v_gather(k_gather + kChunk * padded_dim) {}
};

}  // namespace llmb::cpu
#endif

HWY_BEFORE_NAMESPACE();
namespace llmb::cpu {
namespace HWY_NAMESPACE {

constexpr int kGroups = static_cast<int>(kChunk) / kLogicalLanes;  // of 16 positions in a chunk

// Where the keys of 16 consecutive positions start, for each 16 of a chunk; channel i is at [i * stride].
struct KeyChunk {
  const float* group[kGroups];
  int64_t stride;
};

// Positions past the context come from allocated memory, but may hold anything.
HWY_INLINE KeyChunk key_chunk(const AttentionCall& c, const AttentionItem& item, int64_t position, float* gather) {
  const int64_t bs = c.kv.block_size, context = c.batch.context_len[item.seq];
  const BlockId* blocks = c.batch.block_ids + c.batch.block_start[item.seq];
  KeyChunk chunk;
  if (bs % kLogicalLanes == 0) {
    chunk.stride = bs;
    for (int64_t g = 0; g < kGroups; ++g) {
      const int64_t p = position + g * kLogicalLanes;
      chunk.group[g] = p < context ? c.kv.k + c.kv.block_offset(blocks[p / bs], item.kv_head) + p % bs : chunk.group[0];
    }
    return chunk;
  }
  chunk.stride = kChunk;
  for (int64_t g = 0; g < kGroups; ++g) chunk.group[g] = gather + g * kLogicalLanes;
  const int64_t end = std::min(context, position + kChunk);
  for (int64_t p = position; p < end;) {
    const int64_t run = std::min(end - p, bs - p % bs);
    const float* from = c.kv.k + c.kv.block_offset(blocks[p / bs], item.kv_head) + p % bs;
    for (int64_t i = 0; i < c.kv.head_dim; ++i)
      std::memcpy(gather + i * kChunk + (p - position), from + i * bs, static_cast<size_t>(run) * sizeof(float));
    p += run;
  }
  return chunk;
}

// Rows of the values of positions [position, position + n), padded_dim floats readable in each.
HWY_INLINE void value_rows(const AttentionCall& c, const AttentionItem& item, int64_t position, int64_t n,
                           float* gather, const float** rows) {
  const int64_t bs = c.kv.block_size, dim = c.kv.head_dim, padded = c.padded_dim();
  const BlockId* block = c.batch.block_ids + c.batch.block_start[item.seq] + position / bs;
  for (int64_t i = 0, offset = position % bs; i < n; offset = 0, ++block) {
    const float* row = c.kv.v + c.kv.block_offset(*block, item.kv_head) + offset * dim;
    for (const int64_t end = std::min(n, i + bs - offset); i < end; ++i, row += dim) rows[i] = row;
  }
  if (padded == dim) return;
  for (int64_t i = 0; i < n; ++i) {
    float* row = gather + i * padded;
    std::memcpy(row, rows[i], static_cast<size_t>(dim) * sizeof(float));
    std::memset(row + dim, 0, static_cast<size_t>(padded - dim) * sizeof(float));
    rows[i] = row;
  }
}

template <int kRows>
HWY_INLINE void score_tile(const float* const* q, int64_t dim, const KeyChunk& keys, float* scores) {
  constexpr int kVecs = kTileColumns / kLanes;
  for (int64_t column = 0; column < kChunk; column += kTileColumns) {
    const float* b[kVecs];
    LLMB_UNROLL for (int v = 0; v < kVecs; ++v) {
      const int64_t lane = column + v * kLanes;
      b[v] = keys.group[lane / kLogicalLanes] + lane % kLogicalLanes;
    }
    V acc[kRows * kVecs];
    LLMB_UNROLL for (int i = 0; i < kRows * kVecs; ++i) acc[i] = hn::Zero(D());
    mul_add_tile<kRows, kVecs>(q, dim, b, keys.stride, acc);
    LLMB_UNROLL for (int r = 0; r < kRows; ++r) {
      LLMB_UNROLL for (int v = 0; v < kVecs; ++v)
          hn::StoreU(acc[r * kVecs + v], D(), scores + r * kSegment + column + v * kLanes);
    }
  }
}

// Turns n scores into exp(scale * score - max), writes the max and their sum.
HWY_INLINE void softmax_numerators(float* scores, int64_t n, float scale, float* max_out, float* norm_out) {
  const int64_t padded = (n + kLogicalLanes - 1) / kLogicalLanes * kLogicalLanes;
  for (int64_t i = n; i < padded; ++i) scores[i] = -HUGE_VALF;
  const V s = hn::Set(D(), scale);
  V16 max = set16(-HUGE_VALF);
  for (int64_t i = 0; i < padded; i += kLogicalLanes) {
    const V16 x = map16(load16(scores + i), [s](V a) HWY_ATTR { return hn::Mul(a, s); });
    store16(x, scores + i);
    max = map16(max, x, [](V a, V b) HWY_ATTR { return hn::Max(a, b); });
  }
  *max_out = max16(max);
  const V m = hn::Set(D(), *max_out);
  V16 norm = set16(0);
  for (int64_t i = 0; i < padded; i += kLogicalLanes) {
    const V16 p = map16(load16(scores + i), [m](V a) HWY_ATTR { return exp_v(hn::Sub(a, m)); });
    store16(p, scores + i);
    norm = map16(norm, p, [](V a, V b) HWY_ATTR { return hn::Add(a, b); });
  }
  *norm_out = sum16(norm);
}

// values[r] += p[r][0 … n) · v[0 … n) over kVecs vectors of columns.
template <int kRows, int kVecs>
HWY_INLINE void value_tile(const float* const* p, int64_t n, const float* const* v, int64_t column, int64_t dim,
                           bool first, float* values) {
  const D d;
  V acc[kRows * kVecs];
  LLMB_UNROLL for (int r = 0; r < kRows; ++r) {
    LLMB_UNROLL for (int i = 0; i < kVecs; ++i) acc[r * kVecs + i] =
        first ? hn::Zero(d) : hn::LoadU(d, values + r * dim + column + i * kLanes);
  }
  mul_add_rows<kRows, kVecs>(p, n, v, column, acc);
  LLMB_UNROLL for (int r = 0; r < kRows; ++r) {
    LLMB_UNROLL for (int i = 0; i < kVecs; ++i)
        hn::StoreU(acc[r * kVecs + i], d, values + r * dim + column + i * kLanes);
  }
}

template <int kRows>
HWY_INLINE void value_columns(const float* const* p, int64_t n, const float* const* v, int64_t dim, bool first,
                              float* values) {
  int64_t column = 0;
  for (; column + kTileColumns <= dim; column += kTileColumns)
    value_tile<kRows, kTileColumns / kLanes>(p, n, v, column, dim, first, values);
  if constexpr (kTileColumns > kLogicalLanes) {
    for (; column < dim; column += kLogicalLanes) value_tile<kRows, kParts>(p, n, v, column, dim, first, values);
  }
}

// The state of one item over one segment. Rows that see nothing of it are left alone.
void attend_segment(const AttentionCall& c, const AttentionItem& item, int64_t segment, const AttentionScratch& scratch,
                    const AttentionState& state) {
  const AttentionRow* rows = scratch.rows.data();
  const int64_t dim = c.kv.head_dim, padded = c.padded_dim(), begin = segment * kSegment;
  const auto visible = [&](int64_t row) { return std::min(rows[row].limit - begin, kSegment); };
  int64_t first_row = 0;
  while (visible(first_row) <= 0) ++first_row;
  const int64_t end_row = static_cast<int64_t>(scratch.rows.size()), num_positions = visible(end_row - 1);

  for (int64_t at = 0; at < num_positions; at += kChunk) {
    const KeyChunk keys = key_chunk(c, item, begin + at, scratch.k_gather);
    for_row_tiles(end_row - first_row, [&](int64_t tile, auto tile_rows) HWY_ATTR {
      constexpr int kRows = decltype(tile_rows)::value;
      const int64_t row = first_row + tile;
      if (visible(row + kRows - 1) <= at) return;
      const float* q[kRows];
      for (int r = 0; r < kRows; ++r) q[r] = rows[row + r].q;
      score_tile<kRows>(q, dim, keys, scratch.scores + row * kSegment + at);
    });
  }
  for (int64_t row = first_row; row < end_row; ++row)
    softmax_numerators(scratch.scores + row * kSegment, visible(row), c.scale, &state.max[row], &state.norm[row]);
  for (int64_t at = 0; at < num_positions; at += kChunk) {
    const float* v[kChunk];
    value_rows(c, item, begin + at, std::min(kChunk, num_positions - at), scratch.v_gather, v);
    for_row_tiles(end_row - first_row, [&](int64_t tile, auto tile_rows) HWY_ATTR {
      constexpr int kRows = decltype(tile_rows)::value;
      const int64_t row = first_row + tile;
      if (visible(row + kRows - 1) <= at) return;
      const float* p[kRows];
      for (int r = 0; r < kRows; ++r) p[r] = scratch.scores + (row + r) * kSegment + at;
      const int64_t shared = std::clamp<int64_t>(visible(row) - at, 0, kChunk);
      value_columns<kRows>(p, shared, v, padded, at == 0, state.values + row * padded);
      for (int r = 1; r < kRows; ++r) {  // later tokens see a little more
        const int64_t n = std::clamp<int64_t>(visible(row + r) - at, 0, kChunk);
        const float* rest = p[r] + shared;
        if (n > shared)
          value_columns<1>(&rest, n - shared, v + shared, padded, false, state.values + (row + r) * padded);
      }
    });
  }
}

// Adds a later segment's state to the state of the segments before it.
void merge_segment(const AttentionCall& c, std::span<const AttentionRow> rows, int64_t segment,
                   const AttentionState& from, const AttentionState& into) {
  const int64_t padded = c.padded_dim();
  for (size_t row = 0; row < rows.size(); ++row) {
    if (rows[row].limit <= segment * kSegment) continue;
    const float max = std::max(into.max[row], from.max[row]);
    const V keep = exp_v(hn::Set(D(), into.max[row] - max)), add = exp_v(hn::Set(D(), from.max[row] - max));
    const V norm = hn::Set(D(), into.norm[row]), more = hn::Set(D(), from.norm[row]);
    into.max[row] = max;
    into.norm[row] = hn::GetLane(hn::MulAdd(norm, keep, hn::Mul(more, add)));
    float* at = into.values + static_cast<int64_t>(row) * padded;
    const float* values = from.values + static_cast<int64_t>(row) * padded;
    for (int64_t i = 0; i < padded; i += kLogicalLanes)
      store16(map16(load16(at + i), load16(values + i),
                    [keep, add](V a, V b) HWY_ATTR { return hn::MulAdd(a, keep, hn::Mul(b, add)); }),
              at + i);
  }
}

void write_rows(const AttentionCall& c, std::span<const AttentionRow> rows, const AttentionState& state) {
  const int64_t dim = c.kv.head_dim, padded = c.padded_dim();
  for (size_t row = 0; row < rows.size(); ++row) {
    const V inverse = hn::Set(D(), 1.0f / state.norm[row]);
    const float* values = state.values + static_cast<int64_t>(row) * padded;
    for (int64_t i = 0; i < dim; i += kLogicalLanes) {
      const V16 x = map16(load16(values + i), [inverse](V a) HWY_ATTR { return hn::Mul(a, inverse); });
      if (dim - i >= kLogicalLanes) {
        store16(x, rows[row].out + i);
      } else {
        store16_partial(x, rows[row].out + i, dim - i);
      }
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace llmb::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace llmb::cpu {

HWY_EXPORT(attend_segment);
HWY_EXPORT(merge_segment);
HWY_EXPORT(write_rows);

namespace {

// Grows to what the largest call on this thread needs, so that no step allocates.
float* thread_scratch(int64_t floats) {
  thread_local AlignedBuffer buffer;
  const int64_t bytes = floats * int64_t{sizeof(float)};
  if (buffer.size_bytes() < bytes) buffer = AlignedBuffer(bytes);
  return reinterpret_cast<float*>(buffer.data());
}

// An item's rows; valid until the thread's next call.
std::span<const AttentionRow> make_rows(const AttentionCall& c, const AttentionItem& item) {
  thread_local std::vector<AttentionRow> rows;
  rows.clear();
  const int64_t dim = c.kv.head_dim, first_head = item.kv_head * c.group;
  for (int64_t token = item.token_begin; token < item.token_end; ++token)
    for (int64_t head = first_head; head < first_head + c.group; ++head)
      rows.push_back({c.qkv + token * c.qkv_stride + head * dim, c.out + (token * c.num_heads + head) * dim,
                      item.limit(c, token)});
  return rows;
}

// The longest first within each sequence, so that threads finish together.
std::vector<AttentionItem> make_items(const AttentionCall& c) {
  constexpr int64_t kRowsPerItem = 48;
  const int64_t tokens_per_item = std::max<int64_t>(1, kRowsPerItem / c.group);
  std::vector<AttentionItem> items;
  for (int64_t s = 0; s < c.batch.num_seqs; ++s) {
    const int64_t begin = c.batch.query_start[s];
    for (int64_t end = c.batch.query_start[s + 1]; end > begin; end -= tokens_per_item) {
      const int64_t first = std::max(begin, end - tokens_per_item);
      for (int64_t h = 0; h < c.kv.num_kv_heads; ++h) items.push_back({s, h, first, end});
    }
  }
  return items;
}

void attend_item(const AttentionCall& c, const AttentionItem& item) {
  const std::span<const AttentionRow> rows = make_rows(c, item);
  const int64_t num_rows = item.num_rows(c), dim = c.padded_dim(), state_floats = AttentionState::floats(num_rows, dim);
  float* at = thread_scratch(2 * state_floats + AttentionScratch::floats(num_rows, dim));
  const AttentionState total(at, num_rows, dim), state(at + state_floats, num_rows, dim);
  const AttentionScratch scratch(rows, at + 2 * state_floats, dim);
  HWY_DYNAMIC_DISPATCH(attend_segment)(c, item, 0, scratch, total);
  for (int64_t segment = 1; segment < item.num_segments(c); ++segment) {
    HWY_DYNAMIC_DISPATCH(attend_segment)(c, item, segment, scratch, state);
    HWY_DYNAMIC_DISPATCH(merge_segment)(c, rows, segment, state, total);
  }
  HWY_DYNAMIC_DISPATCH(write_rows)(c, rows, total);
}

// As attend_item for each item, with the segments as tasks of their own.
void attend_split(const AttentionCall& c, const std::vector<AttentionItem>& items, ThreadPool& pool) {
  struct Task {
    const AttentionItem* item;
    int64_t segment, offset;  // offset: of its state in `states`
  };
  const int64_t dim = c.padded_dim();
  std::vector<Task> tasks;
  std::vector<size_t> first_task;
  int64_t num_floats = 0;
  for (const AttentionItem& item : items) {
    first_task.push_back(tasks.size());
    for (int64_t segment = 0; segment < item.num_segments(c); ++segment) {
      tasks.push_back({&item, segment, num_floats});
      num_floats += AttentionState::floats(item.num_rows(c), dim);
    }
  }
  AlignedBuffer buffer(num_floats * int64_t{sizeof(float)});
  float* states = reinterpret_cast<float*>(buffer.data());
  const auto state = [&](const Task& t) { return AttentionState(states + t.offset, t.item->num_rows(c), dim); };
  pool.parallel_for(static_cast<int64_t>(tasks.size()), [&](int64_t i, int) {
    const Task& t = tasks[i];
    const AttentionScratch scratch(make_rows(c, *t.item),
                                   thread_scratch(AttentionScratch::floats(t.item->num_rows(c), dim)), dim);
    HWY_DYNAMIC_DISPATCH(attend_segment)(c, *t.item, t.segment, scratch, state(t));
  });
  pool.parallel_for(static_cast<int64_t>(items.size()), [&](int64_t i, int) {
    const std::span<const AttentionRow> rows = make_rows(c, items[i]);
    const Task* t = &tasks[first_task[i]];
    for (int64_t segment = 1; segment < items[i].num_segments(c); ++segment)
      HWY_DYNAMIC_DISPATCH(merge_segment)(c, rows, segment, state(t[segment]), state(t[0]));
    HWY_DYNAMIC_DISPATCH(write_rows)(c, rows, state(t[0]));
  });
}

}  // namespace

void paged_attention(const float* qkv, int64_t qkv_stride, float* out, const AttentionBatch& batch, int32_t num_heads,
                     float scale, const KvCacheView& kv, ThreadPool& pool) {
  LLMB_CHECK(kv.num_kv_heads > 0 && num_heads % kv.num_kv_heads == 0);
  const AttentionCall c{qkv, qkv_stride, out, batch, num_heads, num_heads / kv.num_kv_heads, scale, kv};
  const std::vector<AttentionItem> items = make_items(c);
  const int64_t num_items = static_cast<int64_t>(items.size());
  if (pool.num_threads() > 1 && num_items < 4 * pool.num_threads()) {
    attend_split(c, items, pool);
  } else {
    pool.parallel_for(num_items, [&](int64_t i, int) { attend_item(c, items[i]); });
  }
}

}  // namespace llmb::cpu
#endif
