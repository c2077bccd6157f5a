// Attention of some of a model's query heads, as a rank of several computes it: the bits are those of all heads.
#include <doctest/doctest.h>

#include <cmath>
#include <numeric>
#include <vector>

#include "kernels/cpu/paged_attention.h"
#include "tests/support/kernel_support.h"
#include "tests/support/kv_bytes.h"

namespace llmb::cpu {
namespace {

using test::GuardedFloats;
using test::KvBytes;

constexpr int32_t kBlock = 16;

struct Model {
  int32_t num_heads, num_kv_heads, head_dim;
  DType dtype;  // of the cache
  int32_t group() const { return num_heads / num_kv_heads; }
};

// Query heads [begin, end), with the keys and values that they need.
struct Part {
  int32_t begin, end;
  int32_t first_kv(const Model& m) const { return begin / m.group(); }
  int32_t num_kv(const Model& m) const { return (end - 1) / m.group() + 1 - first_kv(m); }
};

// [context_len, heads * head_dim] of the whole model; the last query_len positions are new.
struct Sequence {
  int32_t context_len, query_len;
  std::vector<float> q, k, v;
};

Sequence random_sequence(const Model& m, int32_t context_len, int32_t query_len, uint32_t seed) {
  const int64_t kv = int64_t{context_len} * m.num_kv_heads * m.head_dim;
  return {context_len, query_len, test::random_normal(int64_t{context_len} * m.num_heads * m.head_dim, seed, 1.5f),
          test::random_normal(kv, seed + 1, 1.5f), test::random_normal(kv, seed + 2)};
}

// [num new tokens, heads of the part * head_dim]. Sequences lie in the pool one behind the other.
std::vector<float> attend(const Model& m, const Part& part, std::span<const Sequence> sequences, ThreadPool& pool) {
  std::vector<int32_t> query_start = {0}, context_len, block_start = {0};
  for (const Sequence& s : sequences) {
    query_start.push_back(query_start.back() + s.query_len);
    context_len.push_back(s.context_len);
    block_start.push_back(block_start.back() + static_cast<int32_t>(ceil_div(s.context_len, kBlock)));
  }
  std::vector<BlockId> ids(static_cast<size_t>(block_start.back()));
  std::iota(ids.begin(), ids.end(), 0);
  const int64_t dim = m.head_dim, heads = part.end - part.begin, kv_heads = part.num_kv(m);
  KvBytes cache(m.dtype, block_start.back(), kBlock, static_cast<int32_t>(kv_heads), m.head_dim);
  const int64_t stride = (heads + 2 * kv_heads) * dim;
  GuardedFloats qkv(query_start.back() * stride), out(query_start.back() * heads * dim);
  for (size_t i = 0; i < sequences.size(); ++i) {
    const Sequence& s = sequences[i];
    for (int64_t p = 0; p < s.context_len; ++p)
      for (int64_t h = 0; h < kv_heads; ++h) {
        const auto at = static_cast<size_t>((p * m.num_kv_heads + part.first_kv(m) + h) * dim);
        cache.store(block_start[i] * kBlock + p, static_cast<int32_t>(h), std::span(s.k).subspan(at, m.head_dim),
                    std::span(s.v).subspan(at, m.head_dim));
      }
    for (int64_t t = 0; t < s.query_len; ++t)
      std::copy_n(&s.q[static_cast<size_t>(((s.context_len - s.query_len + t) * m.num_heads + part.begin) * dim)],
                  heads * dim, qkv.data() + (query_start[i] + t) * stride);
  }
  const AttentionBatch batch{static_cast<int32_t>(sequences.size()), query_start.data(), context_len.data(),
                             block_start.data(), ids.data()};
  AttentionParams params{static_cast<int32_t>(heads), 1 / std::sqrt(static_cast<float>(dim))};
  params.group = m.group();
  params.first_absent = part.begin % m.group();
  paged_attention(qkv.data(), stride, out.data(), batch, params, cache.view(), pool);
  CHECK(out.guards_untouched());
  return out.copy();
}

}  // namespace

TEST_CASE("any range of query heads, with the KV heads that it needs, gives the bits of all heads") {
  ThreadPool pool(2);
  test::for_each_simd_target([&](const std::string& target) {
    CAPTURE(target);
    for (const Model& m : {Model{9, 3, 64, DType::kF32}, Model{6, 2, 18, DType::kI8}, Model{7, 1, 16, DType::kBF16}}) {
      const std::vector<Sequence> sequences = {random_sequence(m, 300, 1, 5), random_sequence(m, 20, 20, 15),
                                               random_sequence(m, 270, 3, 25)};
      const std::vector<float> whole = attend(m, {0, m.num_heads}, sequences, pool);
      for (int32_t begin = 0; begin < m.num_heads; ++begin)
        for (int32_t end = begin + 1; end <= m.num_heads; ++end) {
          std::vector<float> expected;
          for (size_t row = 0; row < whole.size(); row += static_cast<size_t>(m.num_heads * m.head_dim))
            expected.insert(expected.end(), &whole[row + begin * m.head_dim], &whole[row] + end * m.head_dim);
          CHECK(test::same_bytes(attend(m, {begin, end}, sequences, pool), expected));
        }
    }
  });
}

}  // namespace llmb::cpu
