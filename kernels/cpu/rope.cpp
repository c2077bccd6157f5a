// Bound by memory: each float of qkv is read once, q and the cache are written once. One task is a few tokens.
#include "kernels/cpu/rope.h"

#include <cstring>

#include "base/check.h"
#include "kernels/cpu/simd_targets.h"
#include "kernels/cpu/tuning.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/rope.cpp"
#include "hwy/foreach_target.h"  // must come before highway.h
#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace llmb::cpu {
namespace HWY_NAMESPACE {

// Pairs (a, b) turned by their angles: (a cos - b sin, b cos + a sin).
HWY_INLINE void rotate_pairs(V16& a, V16& b, const V16& c, const V16& s) {
  LLMB_UNROLL for (int i = 0; i < kParts; ++i) {
    const V x = a.part[i], y = b.part[i];
    a.part[i] = hn::NegMulAdd(y, s.part[i], hn::Mul(x, c.part[i]));
    b.part[i] = hn::MulAdd(x, s.part[i], hn::Mul(y, c.part[i]));
  }
}

// One head from `from` to `to`, which may be the same.
void rotate_head(const float* from, const float* cos, const float* sin, int64_t half, float* to) {
  for (int64_t i = 0; i < half; i += kLogicalLanes) {
    const int64_t n = half - i;
    if (n >= kLogicalLanes) {
      V16 a = load16(from + i), b = load16(from + half + i);
      rotate_pairs(a, b, load16(cos + i), load16(sin + i));
      store16(a, to + i);
      store16(b, to + half + i);
    } else {
      V16 a = load16_partial(from + i, n), b = load16_partial(from + half + i, n);
      rotate_pairs(a, b, load16_partial(cos + i, n), load16_partial(sin + i, n));
      store16_partial(a, to + i, n);
      store16_partial(b, to + half + i, n);
    }
  }
}

// Rotates the heads of `row` [num_q + num_k heads]: q in place, k into k_out [num_k, head_dim]. `half`: of the channels
// that are rotated.
void rotate_token(float* row, const float* cos, const float* sin, int64_t num_q, int64_t num_k, int64_t head_dim,
                  int64_t half, float* k_out) {
  for (int64_t h = 0; h < num_q; ++h) rotate_head(row + h * head_dim, cos, sin, half, row + h * head_dim);
  for (int64_t h = 0; h < num_k; ++h) {
    const float* from = row + (num_q + h) * head_dim;
    rotate_head(from, cos, sin, half, k_out + h * head_dim);
    if (2 * half < head_dim)
      std::memcpy(k_out + h * head_dim + 2 * half, from + 2 * half,
                  static_cast<size_t>(head_dim - 2 * half) * sizeof(float));
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace llmb::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <algorithm>
#include <vector>

namespace llmb::cpu {

HWY_EXPORT(rotate_token);

void rope_and_kv_write(float* qkv, const int32_t* positions, const int32_t* slots, int64_t num_tokens,
                       int32_t num_heads, int32_t num_kv_heads, int32_t head_dim, int32_t rotary_dim, const float* cos,
                       const float* sin, const KvCacheView& kv, ThreadPool& pool) {
  LLMB_CHECK(head_dim == kv.head_dim && num_kv_heads == kv.num_kv_heads && kv.dtype != DType::kF16);
  LLMB_CHECK(rotary_dim % 2 == 0 && rotary_dim <= head_dim);
  const int64_t num_parts = kv.latent_dim > 0 ? 1 : 2;  // k, or k and v
  const int64_t row_floats = (int64_t{num_heads} + num_parts * num_kv_heads) * head_dim;
  const int64_t kv_floats = int64_t{num_kv_heads} * head_dim, half = rotary_dim / 2;
  std::vector<float> rotated(static_cast<size_t>(pool.num_threads() * kv_floats));
  const int64_t chunk = std::clamp(ceil_div(num_tokens, pool.num_threads()), kMinRopeTokens, kMaxRopeTokens);
  pool.parallel_for(ceil_div(num_tokens, chunk), [&](int64_t task, int thread) {
    float* k = rotated.data() + thread * kv_floats;
    const int64_t end = std::min(num_tokens, (task + 1) * chunk);
    for (int64_t t = task * chunk; t < end; ++t) {
      if (t + 1 < end && slots[t + 1] >= 0 && slots[t + 1] / kv.block_size != slots[t] / kv.block_size)
        fetch_kv_slot(slots[t + 1], kv);
      float* row = qkv + t * row_floats;
      HWY_DYNAMIC_DISPATCH(rotate_token)
      (row, cos + positions[t] * half, sin + positions[t] * half, num_heads, num_kv_heads, head_dim, half, k);
      if (slots[t] >= 0) write_kv_slot(k, row + row_floats - kv_floats, slots[t], kv);
    }
  });
}

}  // namespace llmb::cpu
#endif
