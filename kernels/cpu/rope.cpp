#include "kernels/cpu/rope.h"

#include <vector>

namespace llmb::cpu {

void rope_and_kv_write(float* qkv, const int32_t* positions, const int32_t* slots, int64_t num_tokens,
                       int32_t num_heads, int32_t num_kv_heads, int32_t head_dim, const float* cos, const float* sin,
                       const KvCacheView& kv, ThreadPool& pool) {
  const int64_t half = head_dim / 2;
  pool.parallel_for(num_tokens, [&](int64_t t, int) {
    float* row = qkv + t * (num_heads + 2 * num_kv_heads) * int64_t{head_dim};
    const float* c = cos + positions[t] * half;
    const float* s = sin + positions[t] * half;
    for (int64_t h = 0; h < num_heads; ++h) {
      float* q = row + h * head_dim;
      for (int64_t i = 0; i < half; ++i) {
        const float a = q[i], b = q[i + half];
        q[i] = a * c[i] - b * s[i];
        q[i + half] = b * c[i] + a * s[i];
      }
    }
    const int64_t block = slots[t] / kv.block_size, offset = slots[t] % kv.block_size;
    for (int64_t h = 0; h < num_kv_heads; ++h) {
      const float* k = row + (num_heads + h) * int64_t{head_dim};
      const float* v = k + num_kv_heads * int64_t{head_dim};
      float* kc = kv.k + kv.block_offset(block, h) + offset;
      float* vc = kv.v + kv.block_offset(block, h) + offset * head_dim;
      for (int64_t i = 0; i < half; ++i) {
        kc[i * kv.block_size] = k[i] * c[i] - k[i + half] * s[i];
        kc[(i + half) * kv.block_size] = k[i + half] * c[i] + k[i] * s[i];
      }
      for (int64_t i = 0; i < head_dim; ++i) vc[i] = v[i];
    }
  });
}

}  // namespace llmb::cpu
