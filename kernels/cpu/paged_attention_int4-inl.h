// Attention over an int4 cache: its groups, closed and open (kv_cache.h), become the fp32 numbers that they stand for.
// scale * code is exact in fp32, so the sum with the zero is rounded once on every target. Compiled once for each SIMD
// target; include after hwy/foreach_target.h.

#if defined(LLMB_KERNELS_CPU_PAGED_ATTENTION_INT4_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LLMB_KERNELS_CPU_PAGED_ATTENTION_INT4_INL_H_
#undef LLMB_KERNELS_CPU_PAGED_ATTENTION_INT4_INL_H_
#else
#define LLMB_KERNELS_CPU_PAGED_ATTENTION_INT4_INL_H_
#endif

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "base/float_formats.h"
#include "kernels/cpu/paged_attention_rows-inl.h"
#include "kernels/cpu/paged_attention_segment.h"
#include "kernels/cpu/paged_attention_shapes-inl.h"
#include "kernels/cpu/paged_attention_softmax-inl.h"
#include "kernels/cpu/paged_attention_tiles-inl.h"
#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace llmb::cpu {
namespace HWY_NAMESPACE {

// The begin of the group that is open for a row, and the end of those that are closed for it.
HWY_INLINE int64_t own_group(const AttentionRow& row) { return (row.limit - 1) / kKvGroup * kKvGroup; }

struct CodeScale {
  float scale, zero;
};

HWY_INLINE CodeScale load_scale(const uint8_t* at) {
  uint16_t halves[2];
  std::memcpy(halves, at, sizeof halves);
  return {bf16_to_f32(halves[0]), bf16_to_f32(halves[1])};
}

// 16 bytes of codes: what the low halves stand for, and what the high ones do.
HWY_INLINE void widen_codes(const uint8_t* bytes, CodeScale by, float* low, float* high) {
  const hn::Rebind<uint8_t, D> d8;
  const V scale = hn::Set(D(), by.scale), zero = hn::Set(D(), by.zero);
  LLMB_UNROLL for (int i = 0; i < kParts; ++i) {
    const auto both = hn::PromoteTo(DI(), hn::LoadU(d8, bytes + i * kLanes));
    const V first = hn::ConvertTo(D(), hn::And(both, hn::Set(DI(), 15)));
    const V second = hn::ConvertTo(D(), hn::ShiftRight<4>(both));
    hn::StoreU(hn::MulAdd(first, scale, zero), D(), low + i * kLanes);
    hn::StoreU(hn::MulAdd(second, scale, zero), D(), high + i * kLanes);
  }
}

// The keys of positions [position, position + n), whole groups, to `to` [head_dim, kSegmentChunk].
template <class Fetch>
HWY_INLINE void widen_closed_keys(const AttentionCall& c, const AttentionItem& item, int64_t position, int64_t n,
                                  float* to, Fetch& fetch) {
  const int64_t dim = c.kv.head_dim;
  fetch.pace(n / kKvGroup * c.kv.group_key_bytes(), n / kKvGroup * dim);
  for_block_runs(c, item, position, n, [&](int64_t i, int64_t run, int64_t block, int64_t offset) HWY_ATTR {
    for (int64_t p = 0; p < run; p += kKvGroup) {
      const uint8_t* codes = c.kv.keys(block, item.kv_head) + (offset + p) / kKvGroup * c.kv.group_key_bytes();
      const uint8_t* scales = codes + dim * kKvGroup / 2;
      float* at = to + i + p;
      for (int64_t channel = 0; channel < dim; ++channel, at += kSegmentChunk) {
        widen_codes(codes + channel * kKvGroup / 2, load_scale(scales + channel * 4), at, at + kKvGroup / 2);
        fetch.step();
      }
    }
  });
}

// The values of positions [position, position + n), whole groups, to `to` [n, padded_dim], zeros behind head_dim.
template <class Fetch>
HWY_INLINE void widen_closed_values(const AttentionCall& c, const AttentionItem& item, int64_t position, int64_t n,
                                    float* to, Fetch& fetch) {
  constexpr int64_t kShared = 32;  // channels that share a scale
  const int64_t dim = c.kv.head_dim, padded = c.padded_dim();
  fetch.pace(n / kKvGroup * c.kv.group_value_bytes(), n);
  for_block_runs(c, item, position, n, [&](int64_t i, int64_t run, int64_t block, int64_t offset) HWY_ATTR {
    for (int64_t p = 0; p < run; p += kKvGroup) {
      const uint8_t* codes = c.kv.values(block, item.kv_head) + (offset + p) / kKvGroup * c.kv.group_value_bytes();
      const uint8_t* scales = codes + dim * kKvGroup / 2;
      float* row = to + (i + p) * padded;
      for (int64_t j = 0; j < kKvGroup; ++j, row += padded) {
        for (int64_t first = 0; first < dim; first += kShared, scales += 4) {
          const int64_t half = std::min(kShared, dim - first) / 2;
          const CodeScale by = load_scale(scales);
          if (half == kShared / 2) {
            widen_codes(codes, by, row + first, row + first + half);
          } else {
            for (int64_t k = 0; k < half; ++k) {
              row[first + k] = static_cast<float>(codes[k] & 15) * by.scale + by.zero;
              row[first + half + k] = static_cast<float>(codes[k] >> 4) * by.scale + by.zero;
            }
          }
          codes += half;
        }
        std::fill(row + dim, row + padded, 0.0f);
        fetch.step();
      }
    }
  });
}

// A row's own group, as a sequence of one block.
struct OpenGroup {
  BlockId block;
  int32_t first = 0;
  AttentionCall call;
  AttentionItem item;

  OpenGroup(const AttentionCall& c, const AttentionItem& of, const AttentionRow& row)
      : block(c.batch.open_blocks[row.index / c.params.num_heads]), call(c), item{0, of.kv_head, 0, 0} {
    call.kv = *c.batch.open;
    call.batch.block_ids = &block;
    call.batch.block_start = &first;
  }
};

HWY_INLINE void widen_open_keys(const AttentionCall& c, const AttentionItem& item, const AttentionRow& row,
                                float* to) {  // [head_dim, kSegmentChunk]
  const OpenGroup open(c, item, row);
  widen_keys<BFloat16>(open.call, open.item, 0, kKvGroup, to);
}
HWY_INLINE void widen_open_values(const AttentionCall& c, const AttentionItem& item, const AttentionRow& row,
                                  float* to) {  // [kKvGroup, padded_dim]
  const OpenGroup open(c, item, row);
  widen_values<BFloat16>(open.call, open.item, 0, kKvGroup, to);
}

// Calls body(rows, their group's begin) for the rows of a tile whose own group lies in the segment, those of one group in
// turn.
template <class Body>
HWY_INLINE void for_rows_of_group(const AttentionCall& c, const SegmentRows& s, const Body& body) {
  const auto block = [&](int64_t row) { return c.batch.open_blocks[s.rows[row].index / c.params.num_heads]; };
  for (int64_t first = s.first_row, end = 0; first < s.end_row; first = end) {
    end = first + 1;
    while (end < s.end_row && block(end) == block(first)) ++end;
    const int64_t group = own_group(s.rows[first]);
    if (group < s.begin || group >= s.begin + kSegment) continue;
    SegmentRows run = s;
    run.first_row = first;
    run.end_row = end;
    body(run, group);
  }
}

// The rows of `s` with other ends of what they see, as a tile that begins with row 0.
struct CutRows {
  AttentionRow rows[kMaxTileRows];
  SegmentRows s;

  template <class Cut>
  HWY_INLINE CutRows(const SegmentRows& from, const Cut& cut) : s(from) {
    s.rows = rows;
    s.first_row = 0;
    s.end_row = from.end_row - from.first_row;
    for (int64_t row = 0; row < s.end_row; ++row) {
      rows[row] = from.rows[from.first_row + row];
      cut(&rows[row]);
    }
  }
};

// int4: a row sees the groups before its own as they are stored, and then its own, which is open.

// A tile of rows, and what they see before their own groups. scratch, sums: the tile's.
struct GroupTile {
  SegmentRows part;
  CutRows before;
  AttentionScratch scratch;
  float* sums;

  // index: of the tile's first row among those of `s`. scores: the tile's.
  GroupTile(const AttentionCall& c, const SegmentRows& s, int64_t index, int64_t num_rows, const AttentionScratch& all,
            float* scores, const AttentionState& state)
      : part(s.part(index, num_rows)),
        before(part,
               [](AttentionRow* row) {
                 row->limit = own_group(*row);
                 row->begin = std::min(row->begin, row->limit);
               }),
        scratch(all),
        sums(state.values + part.first_row * c.padded_dim()) {
    scratch.q += part.first_row * c.kv.head_dim;
    scratch.scores = scores;
  }

  // Calls body(how many rows, these, the first one's place in the tile, where their own group begins in the segment).
  template <class Body>
  HWY_INLINE void for_open_groups(const AttentionCall& c, const Body& body) const {
    for_rows_of_group(c, part, [&](const SegmentRows& run, int64_t group) HWY_ATTR {
      const CutRows own(run, [group](AttentionRow* row) { row->begin = std::max(row->begin, group); });
      with_rows<1, kTallTileRows>(run.end_row - run.first_row, [&](auto count) HWY_ATTR {
        body(count, own.s, run.first_row - part.first_row, group - part.begin);
      });
    });
  }
};

HWY_INLINE void score_open_groups(const AttentionCall& c, const AttentionItem& item, const GroupTile& tile) {
  tile.for_open_groups(c, [&](auto count, const SegmentRows& own, int64_t first, int64_t at) HWY_ATTR {
    float* const wide = tile.scratch.k_open;
    widen_open_keys(c, item, tile.part.rows[tile.part.first_row + first], wide);
    KeyChunk<Float32> chunk = widened_keys(wide);
    for (int64_t g = kGroups - 1; g >= 0; --g)  // they lie at their place in the chunk
      chunk.group[g] = wide + std::max<int64_t>(g - at % kSegmentChunk / kLogicalLanes, 0) * kLogicalLanes;
    AttentionScratch of_rows = tile.scratch;
    of_rows.q += first * c.kv.head_dim;
    of_rows.scores += first * kSegment;
    score_wide<decltype(count)::value>(c, own, chunk, at / kSegmentChunk * kSegmentChunk, of_rows);
  });
}

HWY_INLINE void add_open_groups(const AttentionCall& c, const AttentionItem& item, const GroupTile& tile) {
  const int64_t padded = c.padded_dim();
  const float* values[kSegment];
  tile.for_open_groups(c, [&](auto count, const SegmentRows& own, int64_t first, int64_t at) HWY_ATTR {
    widen_open_values(c, item, tile.part.rows[tile.part.first_row + first], tile.scratch.v_open);
    for (int64_t p = 0; p < kKvGroup; ++p) values[at + p] = tile.scratch.v_open + p * padded;
    add_wide<decltype(count)::value>(c, own, values, tile.scratch.scores + first * kSegment,
                                     tile.sums + first * padded);
  });
}

// The closed groups of a segment before any row's own. The last row has the most of them behind it.
HWY_INLINE Span closed_groups(const SegmentRows& s) {
  return {seen_chunks(s).begin, std::clamp<int64_t>(own_group(s.rows[s.end_row - 1]) - s.begin, 0, kSegment)};
}

// At most kMaxDirectRows: a chunk is widened when it is needed, into the first-level cache.
HWY_INLINE void attend_few_groups(const AttentionCall& c, const AttentionItem& item, const SegmentRows& s,
                                  const AttentionScratch& scratch, const AttentionState& state, SegmentFetch& fetch) {
  const int64_t padded = c.padded_dim();
  const Span closed = closed_groups(s);
  NoFetch none;
  // Calls body(the tile).
  const auto for_tiles = [&](const auto& body) HWY_ATTR {
    for_attention_tiles(s.end_row - s.first_row, [&](int64_t index, auto rows) HWY_ATTR {
      body(GroupTile(c, s, index, decltype(rows)::value, scratch, scratch.scores + index * kSegment, state), rows);
    });
  };
  for_chunks(closed, [&](int64_t at, int64_t n) HWY_ATTR {
    widen_closed_keys(c, item, s.begin + at, n, scratch.k_wide, fetch);
    for_tiles([&](const GroupTile& tile, auto rows) HWY_ATTR {
      score_wide<decltype(rows)::value>(c, tile.before.s, widened_keys(scratch.k_wide), at, tile.scratch);
    });
  });
  for_tiles([&](const GroupTile& tile, auto) HWY_ATTR { score_open_groups(c, item, tile); });
  weigh<Float32>(c, s, scratch, state, none);
  const float* values[kSegmentChunk];
  for (int64_t p = 0; p < kSegmentChunk; ++p) values[p] = scratch.v_wide + p * padded;
  for_chunks(closed, [&](int64_t at, int64_t n) HWY_ATTR {
    widen_closed_values(c, item, s.begin + at, n, scratch.v_wide, fetch);
    for_tiles([&](const GroupTile& tile, auto rows) HWY_ATTR {
      add_to_rows<Float32, decltype(rows)::value>(c, tile.before.s, values, at, kSegmentChunk, tile.scratch.scores,
                                                  tile.sums, none);
    });
  });
  for_tiles([&](const GroupTile& tile, auto) HWY_ATTR { add_open_groups(c, item, tile); });
}

// Any number of rows: a segment is widened once, as in attend_many.
HWY_INLINE void attend_many_groups(const AttentionCall& c, const AttentionItem& item, const SegmentRows& s,
                                   const AttentionScratch& scratch, const AttentionState& state) {
  const int64_t padded = c.padded_dim();
  const float* values[kSegment];
  NoFetch none;
  const auto wide_keys = [&](int64_t at) { return scratch.k_wide + at * c.padded_key_dim(); };
  for_chunks(closed_groups(s), [&](int64_t at, int64_t n) HWY_ATTR {
    float* const v_wide = scratch.v_wide + at * padded;
    widen_closed_keys(c, item, s.begin + at, n, wide_keys(at), none);
    widen_closed_values(c, item, s.begin + at, n, v_wide, none);
    for (int64_t p = 0; p < n; ++p) values[at + p] = v_wide + p * padded;
  });
  for_attention_tiles(s.end_row - s.first_row, [&](int64_t index, auto rows) HWY_ATTR {
    constexpr int kRows = decltype(rows)::value;
    const GroupTile tile(c, s, index, kRows, scratch, scratch.scores, state);
    for_chunks(seen_chunks(tile.before.s), [&](int64_t at, int64_t) HWY_ATTR {
      score_wide<kRows>(c, tile.before.s, widened_keys(wide_keys(at)), at, tile.scratch);
    });
    score_open_groups(c, item, tile);
    weigh<Float32>(c, tile.part, scratch, state, none);
    add_wide<kRows>(c, tile.before.s, values, tile.scratch.scores, tile.sums);
    add_open_groups(c, item, tile);
  });
}

HWY_INLINE void attend_groups(const AttentionCall& c, const AttentionItem& item, int64_t segment,
                              const AttentionScratch& scratch, const AttentionState& state,
                              SegmentFetch* shared_fetch) {
  const SegmentRows s(scratch.rows, segment);
  if (s.end_row - s.first_row > kMaxDirectRows) return attend_many_groups(c, item, s, scratch, state);
  SegmentFetch fetch = *shared_fetch;
  attend_few_groups(c, item, s, scratch, state, fetch);
  *shared_fetch = fetch;
}

}  // namespace HWY_NAMESPACE
}  // namespace llmb::cpu
HWY_AFTER_NAMESPACE();

#endif
