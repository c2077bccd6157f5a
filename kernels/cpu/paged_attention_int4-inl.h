// Groups of an int4 cache, closed and open (kv_cache.h), as the fp32 numbers that they stand for. scale * code is exact in
// fp32, so the sum with the zero is rounded once on every target. Compiled once for each SIMD target; include after
// hwy/foreach_target.h.

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
HWY_INLINE void widen_closed_keys(const AttentionCall& c, const AttentionItem& item, int64_t position, int64_t n,
                                  float* to) {
  const int64_t dim = c.kv.head_dim;
  for_block_runs(c, item, position, n, [&](int64_t i, int64_t run, int64_t block, int64_t offset) HWY_ATTR {
    for (int64_t p = 0; p < run; p += kKvGroup) {
      const uint8_t* codes = c.kv.keys(block, item.kv_head) + (offset + p) / kKvGroup * c.kv.group_key_bytes();
      const uint8_t* scales = codes + dim * kKvGroup / 2;
      float* at = to + i + p;
      for (int64_t channel = 0; channel < dim; ++channel, at += kSegmentChunk)
        widen_codes(codes + channel * kKvGroup / 2, load_scale(scales + channel * 4), at, at + kKvGroup / 2);
    }
  });
}

// The values of positions [position, position + n), whole groups, to `to` [n, padded_dim], zeros behind head_dim.
HWY_INLINE void widen_closed_values(const AttentionCall& c, const AttentionItem& item, int64_t position, int64_t n,
                                    float* to) {
  constexpr int64_t kShared = 32;  // channels that share a scale
  const int64_t dim = c.kv.head_dim, padded = c.padded_dim();
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

}  // namespace HWY_NAMESPACE
}  // namespace llmb::cpu
HWY_AFTER_NAMESPACE();

#endif
