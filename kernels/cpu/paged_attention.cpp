#include "kernels/cpu/paged_attention.h"

#include <cmath>
#include <algorithm>
#include <vector>

namespace llmb::cpu {

void paged_attention(const float* qkv, int64_t qkv_stride, float* out, const AttentionBatch& batch, int32_t num_heads,
                     float scale, const KvCacheView& kv, ThreadPool& pool) {
  const int64_t d = kv.head_dim, bs = kv.block_size, group = num_heads / kv.num_kv_heads;
  pool.parallel_for(int64_t{batch.num_seqs} * num_heads, [&](int64_t task, int) {
    const int64_t s = task / num_heads, h = task % num_heads;
    const BlockId* blocks = batch.block_ids + batch.block_start[s];
    for (int64_t t = batch.query_start[s]; t < batch.query_start[s + 1]; ++t) {
      const int64_t n = batch.context_len[s] - (batch.query_start[s + 1] - 1 - t);
      const float* q = qkv + t * qkv_stride + h * d;
      std::vector<float> p(n);
      float max = -INFINITY, sum = 0;
      for (int64_t i = 0; i < n; ++i) {
        const float* k = kv.k + kv.block_offset(blocks[i / bs], h / group) + i % bs;
        float score = 0;
        for (int64_t c = 0; c < d; ++c) score += q[c] * k[c * bs];
        p[i] = score * scale;
        max = std::max(max, p[i]);
      }
      for (int64_t i = 0; i < n; ++i) sum += p[i] = std::exp(p[i] - max);
      float* o = out + (t * num_heads + h) * d;
      for (int64_t c = 0; c < d; ++c) o[c] = 0;
      for (int64_t i = 0; i < n; ++i) {
        const float* v = kv.v + kv.block_offset(blocks[i / bs], h / group) + i % bs * d;
        for (int64_t c = 0; c < d; ++c) o[c] += p[i] / sum * v[c];
      }
    }
  });
}

}  // namespace llmb::cpu
