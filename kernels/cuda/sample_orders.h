// The orders in which filters of sample keep a prefix of a row: (key descending, id ascending), where keys are bits of
// floats, of logits or of weights. Internal to sample; device code only.
#pragma once

#include <cstdint>

#include "kernels/cuda/device.h"
#include "kernels/cuda/sample_state.h"

namespace llmb::cuda {

// Entries of lists sort by key descending, then id ascending.
__device__ inline uint64_t make_entry(uint32_t key, int32_t id) {
  return uint64_t{~key} << 32 | static_cast<uint32_t>(id);
}
__device__ inline uint32_t entry_key(uint64_t entry) { return ~static_cast<uint32_t>(entry >> 32); }
__device__ inline int32_t entry_id(uint64_t entry) { return static_cast<int32_t>(static_cast<uint32_t>(entry)); }

// Calls f(logit, id) for the share of a row of one of so many threads.
template <int kNumThreads, class F>
__device__ void for_each_logit(const float* logits, int32_t vocab, const F& f) {
  constexpr int kUnroll = 4;  // packs of four logits in flight
  for (int32_t base = static_cast<int32_t>(threadIdx.x) * 4; base < vocab; base += kNumThreads * 4 * kUnroll) {
    float x[kUnroll][4];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) load4(logits, base + u * kNumThreads * 4, vocab, -kInfinity, x[u]);
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int32_t id = base + u * kNumThreads * 4 + j;
        if (id < vocab) f(x[u][j], id);
      }
    }
  }
}

// Logits: keys have the order of the floats; both zeros are one. No key is 0.
struct LogitKeys {
  __device__ uint32_t key(float x, int32_t) const {
    const uint32_t bits = __float_as_uint(__fadd_rn(x, 0.0f));
    return bits ^ (bits >> 31 != 0 ? 0xFFFFFFFFu : 0x80000000u);
  }
  __device__ static float value(uint32_t key) {
    return __uint_as_float(key ^ (key >> 31 != 0 ? 0x80000000u : 0xFFFFFFFFu));
  }
  __device__ double measure(uint32_t) const { return 1; }
  __device__ bool is_counted_apart(uint32_t) const { return false; }
  __device__ void know_border(uint32_t) {}
};

// Weights, among those that top-k and min-p keep: they are positive floats, at most 1: their bits are in order
// and below 2^30. A weight of 0 has no key: 0.
struct WeightKeys {
  Weights weights;
  Cut top_k;
  float min_p;
  // The prefix ends before weights smaller than this: all of those sum to less than what may be left out, since the
  // total is at least 1. Halved for rounding.
  float smallest;
  float lowest_logit = -kInfinity;

  __device__ uint32_t key(float x, int32_t id) const {
    if (x < lowest_logit || top_k.drops(x, id)) return 0;
    const float weight = weights(x);
    return weight < min_p ? 0 : __float_as_uint(weight);
  }
  __device__ static float value(uint32_t key) { return __uint_as_float(key); }
  __device__ double measure(uint32_t key) const { return __uint_as_float(key); }
  __device__ bool is_counted_apart(uint32_t key) const { return __uint_as_float(key) < smallest; }
  // Weights that matter from now on have at least this key.
  __device__ void know_border(uint32_t first) { lowest_logit = weights.logit_below(__uint_as_float(first)); }
};

// The weight of the lowest bit of one with this key; so many of these it has itself.
__device__ inline double weight_unit(uint32_t key) {
  return __longlong_as_double(static_cast<long long>((uint64_t{key >> 23} + 1023 - 150) << 52));
}
__device__ inline uint32_t weight_units(uint32_t key) { return (key & 0x7FFFFF) | 0x800000; }

// WeightKeys::smallest.
__device__ inline float smallest_weight(float top_p, int32_t vocab) {
  return static_cast<float>((1.0 - top_p) / vocab) / 2;
}

}  // namespace llmb::cuda
