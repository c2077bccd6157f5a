// Constants of kernels/cpu that were fitted by measuring. All were fitted on one machine: 2 cores of an Intel Xeon
// (Emerald Rapids, AVX-512; caches: kFittedCaches), data/measurements/intel-xeon-emerald-rapids-2-cores.md.
// For 64-bit ARM none is fitted: no such machine yet, only emulated ones.
// 1. None of them changes a byte of a result, so that each may follow the machine: they decide how work is cut into
//    tasks and blocks, and what is fetched ahead. Sums go on from block to block in the same order.
// 2. What a result's bytes depend on stands with its definition and follows nothing: kSegment
//    (paged_attention_segment.h), kSumBlock (logit_passes.h), where sampling stops to bisect (sample.cpp), kPanelWidth
//    and kInt4Group (linear.h).
// 3. Shapes of register tiles follow from the number of registers (simd-inl.h).
// Private to kernels/cpu.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/cpu/caches.h"

namespace llmb::cpu {

constexpr CacheSizes kFittedCaches = {int64_t{48} << 10, int64_t{2} << 20};

// ---- blocks that follow the caches: as fitted, or what fits a smaller cache ---------------------------------------

// Rows of a task of linear: partial sums and a block of x stay in the second-level cache. An array's size, so fixed.
constexpr int64_t kLinearTaskRows = 128;

// k of a block of float and int4 weights, a multiple of kLinearBlockStep: as fp32, 64 columns of it and as many k of a
// task's rows of x take at most half of the second-level cache.
constexpr int64_t kMaxLinearBlockK = 640, kLinearBlockStep = 32;
constexpr int64_t linear_block_k(const CacheSizes& caches) {
  const int64_t fits = caches.second_level / 2 / ((64 + kLinearTaskRows) * int64_t{sizeof(float)});
  return std::clamp(fits / kLinearBlockStep * kLinearBlockStep, kLinearBlockStep, kMaxLinearBlockK);
}

// k of blocks of few bits that are decoded at a time for a lone tile, in the first-level cache: a multiple of 32.
constexpr int64_t kLoneTileK = 64;

// Words (of four k with int8, of two with bf16) of a block of 64 columns: with int8 five sixths of the first-level
// cache; with bf16, whose rows of x are twice as long, half of it, or with two or three tiles of rows a quarter or three
// eighths, since the next block comes into the same cache. Steps of 8 rows over SmolLM2-135M's weights take one thread of
// an EPYC of family 26 0.82 of the time that they take with half of the cache and the next block in the second level,
// those of 16 rows 0.90 (2026-11-28).
constexpr int64_t kMaxInt8BlockWords = 160, kMaxBf16BlockWords = 96;
constexpr int64_t int8_block_words(const CacheSizes& caches) {
  return std::clamp<int64_t>(caches.first_level * 5 / 6 / (64 * 4), 16, kMaxInt8BlockWords);
}
// int8 words of a block that two tiles share, where fetches_near(): three eighths of the first-level cache, into which the
// next block comes. Steps of 8 rows over SmolLM2-135M's weights take one thread of an EPYC of family 26 0.85 of the time
// that they take with five sixths and the next block in the second level; those of 64 rows, in blocks as before, 0.97 to
// 1.01 (2026-11-28).
constexpr int64_t int8_pair_words(const CacheSizes& caches) {
  return std::clamp<int64_t>(caches.first_level * 3 / 8 / (64 * 4), 16, kMaxInt8BlockWords);
}
// Words of w4a8 that a lone tile makes at a time: few, so that memory works while they are multiplied. On an EPYC of family
// 26 one row took 0.77 of the time that it takes with 160, and with 8 or 16 up to a sixth more than with 32 (2026-11-28).
constexpr int64_t kLoneW4A8Words = 32;
constexpr int64_t bf16_block_words(const CacheSizes& caches, int64_t num_tiles) {
  const int64_t eighths = std::min<int64_t>(num_tiles, 4);
  return std::clamp<int64_t>(caches.first_level * eighths / 8 / (64 * 4), 16, kMaxBf16BlockWords);
}

// Rows of an item of attention: more share the work of widening keys and values, up to where the sums leave the
// second-level cache: in proportion below half of the fitted one.
constexpr int64_t kMinItemRows = 108, kMaxItemRows = 432;
// Tokens of an item, if their rows are not too many: a group that verifies 16 drafts reads keys and values once.
constexpr int64_t kMinItemTokens = 17;
constexpr int64_t max_item_rows(const CacheSizes& caches) {
  return std::clamp(kMaxItemRows * caches.second_level / (kFittedCaches.second_level / 2), kMinItemRows, kMaxItemRows);
}

// ---- tasks -------------------------------------------------------------------------------------------------------

// linear: with fewer rows, reading the weights anew for each part costs too much; threads finish together.
constexpr int64_t kLinearMinRows = 32, kLinearTasksPerThread = 6;
// Attention: items for each thread, so that all finish together; with fewer than the second, segments are tasks.
constexpr int64_t kItemsPerThread = 6, kMinWholeItemsPerThread = 4;
// Positions whose keys or values, as stored, stay in the first-level cache. A template's shape, so fixed.
constexpr int64_t kSegmentChunk = 64;
// About a microsecond of elementwise work, which is worth a thread's wake-up: floats, and outputs of an activation.
constexpr int64_t kSpanFloats = 8192, kActivationSpan = 4096;
// Tokens of a task of rope: the least is worth a wake-up, the most a block of a prompt, whose tokens share lines of
// keys.
constexpr int64_t kMinRopeTokens = 4, kMaxRopeTokens = 16;

// ---- packing: what is packed at a time stays in the first-level cache ----------------------------------------------

constexpr int64_t kPackBlockK = 64, kQuantizeBlockK = 256, kInterleaveBlockWords = 64;

// ---- fetching ahead ----------------------------------------------------------------------------------------------

// Turns ahead of a loop that reads so many bytes of weights a turn, four lines of the panel each. Far, into the
// second-level cache, whose queues are longer: 10 to 15 % faster with bf16, 6 % with int4, slower with int8.
constexpr int64_t fetch_turns_ahead(int64_t bytes, bool is_far) {
  return (bytes > 128 ? 12 : 24) * (is_far ? 8 : 3) / 3;
}
// Whether weights of products are asked for into the first-level cache, as measured on AMD's processors: there requests for
// the second level cost up to a quarter of the rate even from caches.
inline bool fetches_near() {
#if defined(__x86_64__)
  return __builtin_cpu_is("amd");
#else
  return false;
#endif
}
// Asks for a lone row's panels of blocks of few bits and of w4a8, line by line as they are read: where
// fetches_near() into the first-level cache, elsewhere into the second. On an EPYC of family 26 with fp32 numbers of Q8_0
// 12 KiB ahead gave 38 GB/s where 4 gave 27 and 8 gave 34 (2026-11-28); not tried elsewhere.
class RowFetch {
 public:
  // begin: where reading begins. Lines up to there and for the distance behind were asked for with what lies in front.
  explicit RowFetch(const uint8_t* begin) : is_near_(fetches_near()), distance_(is_near_ ? 12288 : 8192) {
    at_ = begin + distance_;
  }
  // Asks for what lies the distance behind `reading`, and for all lines before it.
  inline void turn(const uint8_t* reading) {
    for (const uint8_t* const end = reading + distance_; at_ < end; at_ += 64) {
      if (is_near_) __builtin_prefetch(at_);
      else __builtin_prefetch(at_, 0, 2);
    }
  }

 private:
  bool is_near_;
  int64_t distance_;
  const uint8_t* at_;
};
// Cache lines in one turn: more would fill the queues that the loop's own loads need.
constexpr int64_t kMaxLinesPerTurn = 4, kMaxAttentionLinesPerStep = 8;

}  // namespace llmb::cpu
