// paged_attention over latents: a position's value is the last channels of its key, and all heads see the same keys.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/cpu/paged_attention.h"
#include "tests/support/compare.h"
#include "tests/support/kernel_support.h"
#include "tests/support/kv_bytes.h"

namespace llmb::cpu {
namespace {

using test::for_each_simd_target;
using test::GuardedFloats;
using test::same_bytes;

struct Shape {
  int32_t num_heads, head_dim, latent_dim;
  DType dtype;
};

struct Text {
  std::vector<float> q, k;  // [length, num_heads * head_dim], [length, head_dim]
};

Text make_text(const Shape& s, int32_t length, uint32_t seed) {
  return {test::random_normal(int64_t{length} * s.num_heads * s.head_dim, seed, 1.5f),
          test::random_normal(int64_t{length} * s.head_dim, seed + 1000)};
}

// A cache of shuffled blocks, NaN where nothing was written.
struct Cache {
  int32_t block_size;
  std::vector<BlockId> blocks;
  std::vector<float> memory;
  KvCacheView view;

  Cache(const Shape& s, const Text& text, int32_t bs) : block_size(bs) {
    const auto length = static_cast<int32_t>(text.k.size()) / s.head_dim;
    const auto count = static_cast<int32_t>(ceil_div(length, bs));
    for (int32_t i = 0; i < count; ++i) blocks.push_back((i * 7 + 3) % (count % 7 == 0 ? count + 1 : count));
    view = {nullptr, s.dtype, bs, 1, s.head_dim, 0, s.latent_dim};
    memory.assign(static_cast<size_t>((count + 1) * view.block_bytes() / 4), std::nanf(""));
    view.data = reinterpret_cast<uint8_t*>(memory.data());
    for (int32_t p = 0; p < length; ++p)
      write_kv_slot(&text.k[int64_t{p} * s.head_dim], nullptr, int64_t{blocks[p / bs]} * bs + p % bs, view);
  }
};

constexpr float kScale = 0.2f;

// The last query_len of the first context_len positions.
std::vector<float> run(const Shape& s, const Text& text, const Cache& cache, int32_t context_len, int32_t query_len,
                       ThreadPool& pool) {
  const int32_t start[] = {0, query_len}, block_start[] = {0};
  const int64_t q_size = int64_t{s.num_heads} * s.head_dim, stride = q_size + s.head_dim;
  std::vector<float> qkv(static_cast<size_t>(query_len * stride), std::nanf(""));
  for (int32_t t = 0; t < query_len; ++t)
    std::copy_n(&text.q[(context_len - query_len + t) * q_size], q_size, &qkv[t * stride]);
  GuardedFloats out(int64_t{query_len} * s.num_heads * s.latent_dim);
  paged_attention(qkv.data(), stride, out.data(), {1, start, &context_len, block_start, cache.blocks.data()},
                  {s.num_heads, kScale}, cache.view, pool);
  CHECK(out.guards_untouched());
  return out.copy();
}

template <typename T>
std::vector<T> reference(const Shape& s, const Text& text, int32_t context_len, int32_t query_len) {
  std::vector<T> out;
  const std::vector<float> k = test::as_stored(s.dtype, text.k);
  for (int32_t p = context_len - query_len; p < context_len; ++p) {
    for (int32_t h = 0; h < s.num_heads; ++h) {
      const float* q = &text.q[(int64_t{p} * s.num_heads + h) * s.head_dim];
      std::vector<T> weights;
      for (int32_t i = 0; i <= p; ++i) {
        T score = 0;
        for (int32_t c = 0; c < s.head_dim; ++c) score += static_cast<T>(q[c]) * static_cast<T>(k[i * s.head_dim + c]);
        weights.push_back(score * static_cast<T>(kScale));
      }
      const T max = *std::max_element(weights.begin(), weights.end());
      T sum = 0;
      for (T& w : weights) sum += w = std::exp(w - max);
      for (int32_t c = s.head_dim - s.latent_dim; c < s.head_dim; ++c) {
        T value = 0;
        for (int32_t i = 0; i <= p; ++i) value += weights[i] / sum * static_cast<T>(k[i * s.head_dim + c]);
        out.push_back(value);
      }
    }
  }
  return out;
}

const Shape kShapes[] = {{1, 2, 1, DType::kF32},     {4, 24, 18, DType::kF32},   {4, 24, 18, DType::kBF16},
                         {20, 48, 32, DType::kBF16}, {64, 80, 64, DType::kF32},  {96, 66, 50, DType::kBF16},
                         {5, 34, 33, DType::kF32},   {16, 144, 128, DType::kBF16}};

}  // namespace

TEST_CASE("attention over latents is as close to fp64 as naive fp32, over segments' borders") {
  ThreadPool pool(2);
  for_each_simd_target([&](const std::string& target) {
    CAPTURE(target);
    for (const Shape& s : kShapes) {
      CAPTURE(s.num_heads);
      const Text text = make_text(s, 300, 1);
      for (const int32_t block_size : {16, 5}) {
        const Cache cache(s, text, block_size);
        for (const auto& [context, query] : {std::pair(1, 1), {17, 17}, {40, 3}, {257, 2}, {300, 1}}) {
          const std::vector<float> actual = run(s, text, cache, context, query, pool);
          const std::vector<float> naive = reference<float>(s, text, context, query);
          const std::vector<double> expected = reference<double>(s, text, context, query);
          CHECK(test::relative_error(actual, expected) <= 2 * test::relative_error(naive, expected) + 1.2e-7);
        }
      }
    }
  });
}

TEST_CASE("over latents, prefill, chunks of it and single steps give identical bits, with 1 to 3 threads") {
  ThreadPool one(1), three(3);
  for_each_simd_target([&](const std::string& target) {
    CAPTURE(target);
    for (const Shape& s : kShapes) {
      CAPTURE(s.num_heads);
      const Text text = make_text(s, 290, 2);
      const Cache cache(s, text, 16), other(s, text, 7);
      const int64_t width = int64_t{s.num_heads} * s.latent_dim;
      const std::vector<float> whole = run(s, text, cache, 290, 290, one);
      CHECK(same_bytes(whole, run(s, text, other, 290, 290, three)));
      for (const int32_t chunk : {1, 5, 100}) {
        for (int32_t end = chunk; end <= 290; end += chunk == 1 ? 19 : chunk) {
          const std::vector<float> part = run(s, text, end % 2 ? cache : other, end, chunk, three);
          CHECK(same_bytes(part, std::span(whole).subspan((end - chunk) * width, chunk * width)));
        }
      }
    }
  });
}

}  // namespace llmb::cpu
