// One layer's keys and values in the paged KV pool, as the CPU kernels lay them out inside a block.
// A view: owns nothing, copied freely.
//
// 1. slot = block * block_size + offset; any block_size >= 1 is allowed (multiples of 16 are fastest).
// 2. The keys and values that a KV head has in a block are one piece of memory, keys first; the heads of a block follow
//    each other. So do blocks, or they begin block_stride bytes apart.
// 3. A format stores key and value x of a head as follows; `position` is the offset in the block.
//      float32   keys [head_dim][position], values [position][head_dim]
//      bfloat16  x rounded to nearest even. Keys [channel pair][position][2], values [position pair][head_dim][2]: a
//                32-bit word holds neighbouring terms of the sum that it enters, the first in its low half. Where
//                head_dim or block_size is odd, the last pair has a half that nothing reads.
//      int8      keys [head_dim][position], values [position][head_dim], then an fp32 scale for the key of each
//                position, then one for the value of each. With m = max |x[i]|: scale = m / 127, byte i is x[i] * (127
//                / m) rounded to nearest even, and stands for byte * scale. All zero where m < 2^-100; where an x[i] is
//                not finite the scale is NaN.
//      fp8       as int8, with bytes that are e4m3 numbers (4 bits of exponent, 3 of mantissa, at most 448): scale = m /
//                448, byte i is x[i] * (448 / m) rounded to nearest even.
//      int4      in groups of kKvGroup positions that lie between two multiples of it; block_size is such a multiple.
//                Keys: for each group 16 bytes for each channel, byte i with the codes of positions i and, in its high
//                half, i + 16, then two bf16 numbers for each channel, scale and zero. Values: for each group
//                head_dim / 2 bytes for each position, 16 for each 32 channels, as for keys, and fewer for the rest of
//                them, of which the first half is in low halves; then scale and zero for each position and each 32
//                channels. A code stands for zero + scale * code. Without latent_dim; head_dim is even.
//                Groups are stored whole, when their last position is written (close_kv_groups). Until then they are
//                open: in bfloat16, in blocks of kKvGroup positions of another view.
//    With latent_dim there are no values: a position's value is the last latent_dim channels of its key. All heads have
//    the same keys.
//    So consecutive positions of keys are adjacent, that the scores of a block's positions be SIMD lanes, and
//    consecutive channels of values.
// 4. Slots that were never written may hold anything, NaN included: no kernel reads them into a result.
#pragma once

#include <cstdint>

#include "core/kv_layout.h"
#include "core/types.h"

namespace llmb::cpu {

struct KvCacheView {
  uint8_t* data = nullptr;  // [num_blocks] of [num_kv_heads, head_bytes()], aligned to 4 bytes
  DType dtype = DType::kF32;
  int32_t block_size = 16;
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;
  int64_t block_stride = 0;  // a multiple of 4; 0: block_bytes()
  int32_t latent_dim = 0;    // > 0: values are parts of the keys; float32 and bfloat16 only

  // int4 only: of a head's group.
  int64_t group_key_bytes() const { return int64_t{head_dim} * (kKvGroup / 2 + 4); }
  int64_t group_value_bytes() const { return kKvGroup * (head_dim / 2 + 4 * ceil_div(head_dim, 32)); }

  bool has_scales() const { return dtype == DType::kI8 || dtype == DType::kF8; }  // for each position

  int64_t key_bytes() const {
    if (dtype == DType::kI4) return block_size / kKvGroup * group_key_bytes();
    if (dtype == DType::kBF16) return ceil_div(head_dim, 2) * block_size * 4;
    return int64_t{head_dim} * block_size * dtype_bytes(dtype);
  }
  int64_t value_bytes() const {
    if (latent_dim > 0) return 0;
    if (dtype == DType::kI4) return block_size / kKvGroup * group_value_bytes();
    if (dtype == DType::kBF16) return ceil_div(block_size, 2) * head_dim * 4;
    return int64_t{head_dim} * block_size * dtype_bytes(dtype);
  }
  int64_t head_bytes() const {  // of a head in a block
    const int64_t scales = has_scales() ? int64_t{8} * block_size : 0;
    return ceil_div(key_bytes() + value_bytes() + scales, 4) * 4;
  }

  int64_t block_bytes() const { return num_kv_heads * head_bytes(); }  // of all heads

  int32_t value_dim() const { return latent_dim > 0 ? latent_dim : head_dim; }

  uint8_t* keys(int64_t block, int64_t kv_head) const {
    const int64_t head_offset = latent_dim > 0 ? 0 : kv_head * head_bytes();
    return data + block * (block_stride > 0 ? block_stride : block_bytes()) + head_offset;
  }
  uint8_t* values(int64_t block, int64_t kv_head) const { return keys(block, kv_head) + key_bytes(); }
  // int8 and fp8 only: [2][block_size]  of keys, of values.
  float* scales(int64_t block, int64_t kv_head) const {
    return reinterpret_cast<float*>(keys(block, kv_head) + head_bytes() - int64_t{8} * block_size);
  }
};

// Stores one token's keys and values, [num_kv_heads, head_dim] each, in its slot; with latent_dim, v is not read.
// REQUIRES: not int4
void write_kv_slot(const float* k, const float* v, int64_t slot, const KvCacheView& kv);

// Copies one token's keys and values, as they are stored, from one slot to another. REQUIRES: not int4
void copy_kv_slot(int64_t from, int64_t to, const KvCacheView& kv);

// Asks for the cache lines that write_kv_slot() will write to.
void fetch_kv_slot(int64_t slot, const KvCacheView& kv);

}  // namespace llmb::cpu
