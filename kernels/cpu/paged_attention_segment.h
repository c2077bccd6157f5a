// One segment of positions of paged_attention: scores, exact softmax numerators and weighted values of the rows of one
// item; and how segments are merged. Private to kernels/cpu.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <utility>

#include "core/types.h"
#include "kernels/cpu/kv_cache.h"
#include "kernels/cpu/paged_attention.h"
#include "kernels/cpu/tuning.h"

namespace llmb::cpu {

class SegmentFetch;

constexpr int64_t kSegment = 256;     // positions; part of the results' definition
constexpr int64_t kMaxTileRows = 12;  // that scores are kept of at a time

// A new token: its row in the call, its position, and the end of the positions that it sees.
struct AttentionToken {
  int32_t row, position, limit;
};

struct AttentionCall {
  const float* qkv;
  int64_t qkv_stride;
  float* out;
  AttentionBatch batch;
  AttentionParams params;
  int64_t group;  // query heads of a KV head, absent ones too
  KvCacheView kv;
  const AttentionToken* tokens = nullptr;  // that items name
  // The state of row token * num_heads + head between two items that work on it: max and norm. Its values are in
  // `out`.
  float *max = nullptr, *norm = nullptr;

  // Query heads of a KV head: [head_begin, head_end).
  int64_t head_begin(int64_t kv_head) const { return std::max<int64_t>(0, kv_head * group - params.first_absent); }
  int64_t head_end(int64_t kv_head) const {
    return std::min<int64_t>(params.num_heads, (kv_head + 1) * group - params.first_absent);
  }
  int64_t num_heads_of(int64_t kv_head) const { return head_end(kv_head) - head_begin(kv_head); }

  int64_t padded_dim() const { return ceil_div(kv.value_dim(), 16) * 16; }       // of values
  int64_t padded_key_dim() const { return ceil_div(kv.head_dim, 16) * 16; }
  // Whether tiles can read keys and values as they are stored.
  bool is_regular() const { return kv.latent_dim == 0 && kv.block_size % 16 == 0 && kv.head_dim % 16 == 0; }
};

// Some tokens, in order of their limits, with all query heads of one KV head. They belong to one sequence, or to
// several that share the item's segments.
struct AttentionItem {
  int64_t seq;  // whose block table is read
  int64_t kv_head;
  int64_t token_begin, token_end;                      // into the call's tokens
  int64_t segment_begin = 0, segment_end = INT64_MAX;  // what lies before is done by another item, and what lies behind

  int64_t num_rows(const AttentionCall& c) const { return (token_end - token_begin) * c.num_heads_of(kv_head); }
  bool is_first() const { return segment_begin == 0; }            // to work on its rows
  bool is_continued() const { return segment_end != INT64_MAX; }  // by other items
  // A token sees positions [begin, limit).
  static int64_t limit(const AttentionCall& c, int64_t token) { return c.tokens[token].limit; }
  static int64_t begin(const AttentionCall& c, int64_t token) {
    const int64_t position = c.tokens[token].position;
    if (c.params.chunk > 0) return position / c.params.chunk * c.params.chunk;
    if (c.params.reach > 0) return std::max<int64_t>(0, position - c.params.reach);
    return c.params.window == 0 ? c.params.first : std::max<int64_t>(0, position + 1 - c.params.window);
  }
  // The segments that any of the tokens sees; there may be none.
  int64_t first_segment(const AttentionCall& c) const {
    return std::max(segment_begin, begin(c, token_begin) / kSegment);
  }
  int64_t end_segment(const AttentionCall& c) const {
    return std::clamp(ceil_div(limit(c, token_end - 1), kSegment), first_segment(c),
                      std::max(first_segment(c), segment_end));
  }
  // The positions of a segment that the tokens see, [first, second).
  std::pair<int64_t, int64_t> positions(const AttentionCall& c, int64_t segment) const {
    return {std::max(begin(c, token_begin), segment * kSegment),
            std::min(limit(c, token_end - 1), (segment + 1) * kSegment)};
  }
};

// One query head of one token. An item's rows are in order of tokens, so begin and limit do not fall.
struct AttentionRow {
  int64_t index;         // token * num_heads + head
  int64_t begin, limit;  // positions that it sees
  int64_t head;

  bool sees(int64_t segment) const { return begin < (segment + 1) * kSegment && limit > segment * kSegment; }
};

// For each row: sum of exp(score - max) * value, max, and sum of exp(score - max).
struct AttentionState {
  float* values;  // [rows, padded_dim]
  float* max;     // [rows]
  float* norm;    // [rows]

  // Whole cache lines, as what lies behind it is read by the line.
  static int64_t floats(int64_t rows, int64_t padded_dim) { return ceil_div(rows * (padded_dim + 2), 16) * 16; }
  AttentionState(float* at, int64_t rows, int64_t padded_dim)
      : values(at), max(at + rows * padded_dim), norm(max + rows) {}
  // Those of rows behind `row`.
  AttentionState from(int64_t row, int64_t padded_dim) const {
    AttentionState rest = *this;
    rest.values += row * padded_dim, rest.max += row, rest.norm += row;
    return rest;
  }
};

// Memory of one thread while it works on an item.
struct AttentionScratch {
  std::span<const AttentionRow> rows;
  float* q;         // [rows, head_dim]
  float* scores;    // [kMaxTileRows, kSegment]
  float* k_wide;    // [kSegment / kSegmentChunk, padded_key_dim, kSegmentChunk]  a segment's keys, widened
  float* v_wide;    // [kSegment, padded_dim]
  float* k_scales;  // [kSegment]
  float* v_scales;  // [kSegment]
  float* k_open;    // [padded_key_dim, kSegmentChunk]  of a group of an int4 cache that is open for a row
  float* v_open;    // [kKvGroup, padded_dim]

  static int64_t floats(const AttentionCall& c, int64_t num_rows) {
    const int64_t key_dim = c.padded_key_dim();
    const int64_t open = c.kv.dtype == DType::kI4 ? kSegmentChunk * key_dim + kKvGroup * c.padded_dim() : 0;
    return num_rows * key_dim + (kMaxTileRows + 2) * kSegment + kSegment * (key_dim + c.padded_dim()) + open;
  }
  AttentionScratch(const AttentionCall& c, std::span<const AttentionRow> item_rows, float* at)
      : rows(item_rows),
        q(at),
        scores(q + static_cast<int64_t>(rows.size()) * c.padded_key_dim()),
        k_wide(scores + kMaxTileRows * kSegment),
        v_wide(k_wide + kSegment * c.padded_key_dim()),
        k_scales(v_wide + kSegment * c.padded_dim()),
        v_scales(k_scales + kSegment),
        k_open(c.kv.dtype == DType::kI4 ? v_scales + kSegment : nullptr),
        v_open(c.kv.dtype == DType::kI4 ? k_open + kSegmentChunk * c.padded_key_dim() : nullptr) {}
};

// The state of one item over one segment that some of its rows see. Rows that see nothing of it are left alone.
void attend_segment(const AttentionCall& c, const AttentionItem& item, int64_t segment, const AttentionScratch& scratch,
                    const AttentionState& state, SegmentFetch* fetch);

// Adds a later segment's state to the state of the segments before it.
void merge_segment(const AttentionCall& c, std::span<const AttentionRow> rows, int64_t segment,
                   const AttentionState& from, const AttentionState& into);

// States to where the next item that works on their rows finds them, and from there.
void save_rows(const AttentionCall& c, std::span<const AttentionRow> rows, const AttentionState& state);
void load_rows(const AttentionCall& c, std::span<const AttentionRow> rows, const AttentionState& state);

// Weighted values, divided by the sum of weights, to where the rows belong.
void write_rows(const AttentionCall& c, std::span<const AttentionRow> rows, const AttentionState& state);

}  // namespace llmb::cpu
