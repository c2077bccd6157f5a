#include "kernels/cpu/paged_attention.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <random>

#include "base/check.h"
#include "tests/support/compare.h"
#include "tests/support/kernel_support.h"
#include "tests/support/kv_bytes.h"

namespace llmb::cpu {
namespace {

using test::for_each_simd_target;
using test::GuardedFloats;
using test::KvBytes;
using test::same_bytes;

constexpr DType kCacheDTypes[] = {DType::kF32, DType::kBF16, DType::kI8, DType::kF8};

struct Shape {
  int32_t num_heads, num_kv_heads, head_dim;
  // Applied to scores. Slopes and sinks differ from head to head.
  int32_t window = 0;
  float softcap = 0;
  bool has_alibi = false, has_sinks = false;
  DType dtype = DType::kF32;  // of the cache
  int32_t chunk = 0;          // in place of a window
  int32_t first = 0;          // no position before it is seen; without the two

  Shape in(DType cache_dtype) const {
    Shape s = *this;
    s.dtype = cache_dtype;
    return s;
  }
  float slope(int32_t head) const { return has_alibi ? 0.3f / static_cast<float>(head + 1) : 0; }
  float sink(int32_t head) const { return static_cast<float>(head % 3) - 0.5f; }
  int32_t first_seen(int32_t position) const {
    if (chunk > 0) return position / chunk * chunk;
    return window == 0 ? first : std::max(0, position + 1 - window);
  }
  int32_t group() const { return num_heads / num_kv_heads; }
  int64_t q_size() const { return int64_t{num_heads} * head_dim; }
  int64_t kv_size() const { return int64_t{num_kv_heads} * head_dim; }
  int64_t stride() const { return q_size() + 2 * kv_size(); }
};

// A sequence's q, k and v for every position, fixed by its seed whatever batch it appears in.
struct SequenceData {
  std::vector<float> q, k, v;  // [length, q_size], [length, kv_size] twice
};

SequenceData make_sequence(const Shape& s, int32_t length, uint32_t seed) {
  return {test::random_normal(length * s.q_size(), seed, 1.5f),
          test::random_normal(length * s.kv_size(), seed + 1000, 1.5f),
          test::random_normal(length * s.kv_size(), seed + 2000)};
}

// The keys and values that the cache holds of it.
SequenceData as_stored(const Shape& s, const SequenceData& data) {
  SequenceData stored{data.q, {}, {}};
  for (const auto& [from, to] : {std::pair(&data.k, &stored.k), std::pair(&data.v, &stored.v)})
    for (size_t i = 0; i < from->size(); i += s.head_dim)
      for (const float x : test::as_stored(s.dtype, std::span(*from).subspan(i, s.head_dim))) to->push_back(x);
  return stored;
}

// The last query_len positions of the first context_len of a sequence are new in the call.
struct Query {
  const SequenceData* data;
  int32_t context_len, query_len;
};

// Lays the queries out in a pool of shuffled blocks in which everything not written is NaN, runs, returns rows in
// order.
std::vector<float> run(const Shape& s, std::span<const Query> queries, int32_t block_size, ThreadPool& pool,
                       uint32_t seed = 7) {
  std::vector<int32_t> query_start = {0}, context_len, block_start = {0};
  int32_t num_blocks = 3;
  for (const Query& q : queries) {
    query_start.push_back(query_start.back() + q.query_len);
    context_len.push_back(q.context_len);
    block_start.push_back(block_start.back() + static_cast<int32_t>(ceil_div(q.context_len, block_size)));
    num_blocks += block_start.back() - block_start[block_start.size() - 2];
  }
  std::vector<BlockId> ids(static_cast<size_t>(num_blocks));
  for (int32_t i = 0; i < num_blocks; ++i) ids[i] = i;
  std::mt19937 rng(seed);
  std::shuffle(ids.begin(), ids.end(), rng);
  KvBytes cache(s.dtype, num_blocks, block_size, s.num_kv_heads, s.head_dim);
  GuardedFloats qkv(query_start.back() * s.stride()), out(query_start.back() * s.q_size());
  for (size_t i = 0; i < queries.size(); ++i) {
    const auto& [data, context, query_len] = queries[i];
    for (int32_t p = 0; p < context; ++p) {
      const int64_t slot = int64_t{ids[block_start[i] + p / block_size]} * block_size + p % block_size;
      for (int32_t h = 0; h < s.num_kv_heads; ++h) {
        const size_t at = p * s.kv_size() + h * s.head_dim, size = s.head_dim;
        cache.store(slot, h, std::span(data->k).subspan(at, size), std::span(data->v).subspan(at, size));
      }
    }
    for (int32_t t = 0; t < query_len; ++t)
      std::copy_n(&data->q[(context - query_len + t) * s.q_size()], s.q_size(),
                  qkv.data() + (query_start[i] + t) * s.stride());
  }
  const std::vector<float> qkv_before = qkv.copy(), cache_before = cache.copy();
  const AttentionBatch batch{static_cast<int32_t>(queries.size()), query_start.data(), context_len.data(),
                             block_start.data(), ids.data()};
  std::vector<float> slopes, sinks;
  for (int32_t h = 0; h < s.num_heads; ++h) slopes.push_back(s.slope(h)), sinks.push_back(s.sink(h));
  const AttentionParams params{
      s.num_heads, 1 / std::sqrt(static_cast<float>(s.head_dim)), s.window,
      s.softcap,   s.has_alibi ? slopes.data() : nullptr,         s.has_sinks ? sinks.data() : nullptr,
      s.chunk,     /*sees_later=*/false,                          /*reach=*/0,
      s.first};
  paged_attention(qkv.data(), s.stride(), out.data(), batch, params, cache.view(), pool);
  CHECK(out.guards_untouched());
  CHECK(same_bytes(qkv_before, qkv.span()));
  CHECK(same_bytes(cache_before, cache.copy()));
  return out.copy();
}

// One row's attention, all positions that it sees, in T.
template <typename T>
void reference_row(const Shape& s, const SequenceData& data, int32_t position, int32_t head, T* out) {
  const float* q = &data.q[position * s.q_size() + head * s.head_dim];
  const int64_t kv_at = head / s.group() * s.head_dim;
  const int32_t first = s.first_seen(position);
  std::vector<T> p;
  T max = s.has_sinks ? static_cast<T>(s.sink(head)) : -INFINITY, sum = 0;
  for (int32_t i = first; i <= position; ++i) {
    T score = 0;
    for (int32_t c = 0; c < s.head_dim; ++c) score += static_cast<T>(q[c]) * data.k[i * s.kv_size() + kv_at + c];
    score *= 1 / std::sqrt(static_cast<T>(s.head_dim));
    if (s.softcap > 0) score = std::tanh(score / static_cast<T>(s.softcap)) * static_cast<T>(s.softcap);
    p.push_back(score + static_cast<T>(s.slope(head)) * (i - position));
    max = std::max(max, p.back());
  }
  for (T& x : p) sum += x = std::exp(x - max);
  if (s.has_sinks) sum += std::exp(static_cast<T>(s.sink(head)) - max);
  for (int32_t c = 0; c < s.head_dim; ++c) {
    T acc = 0;
    for (int32_t i = first; i <= position; ++i) acc += p[i - first] / sum * data.v[i * s.kv_size() + kv_at + c];
    out[c] = acc;
  }
}

void check_against_reference(const Shape& s, std::span<const Query> queries, int32_t block_size, ThreadPool& pool) {
  const std::vector<float> actual = run(s, queries, block_size, pool);
  std::vector<double> expected(actual.size());
  std::vector<float> naive(actual.size());
  int64_t row = 0;
  for (const Query& q : queries) {
    const SequenceData stored = as_stored(s, *q.data);
    for (int32_t position = q.context_len - q.query_len; position < q.context_len; ++position, ++row) {
      for (int32_t h = 0; h < s.num_heads; ++h) {
        reference_row(s, stored, position, h, &expected[row * s.q_size() + h * s.head_dim]);
        reference_row(s, stored, position, h, &naive[row * s.q_size() + h * s.head_dim]);
      }
    }
  }
  CAPTURE(s.num_heads);
  CAPTURE(s.num_kv_heads);
  CAPTURE(s.head_dim);
  CAPTURE(std::string(dtype_name(s.dtype)));
  CAPTURE(block_size);
  CHECK(test::relative_error(actual, expected) <= 2 * test::relative_error(naive, expected) + 1.2e-7);
}

}  // namespace

TEST_CASE(
    "attention is as close to fp64 as naive fp32: group sizes, head sizes, block sizes, lengths at every border") {
  ThreadPool pool(2);
  for_each_simd_target([&](const std::string& target) {
    CAPTURE(target);
    for (const Shape& s : {Shape{1, 1, 64}, Shape{2, 1, 16}, Shape{9, 3, 64}, Shape{14, 2, 64}, Shape{16, 1, 8},
                           Shape{4, 4, 80}, Shape{4, 4, 112}, Shape{6, 2, 112}, Shape{8, 2, 128}, Shape{6, 2, 2},
                           Shape{5, 1, 18}}) {
      const SequenceData data = make_sequence(s, 40, 1);
      for (const DType dtype : kCacheDTypes) {
        for (const int32_t block_size : {1, 5, 8, 16, 24, 32, 48}) {
          const Query queries[] = {{&data, 1, 1}, {&data, 40, 3}, {&data, 17, 17}, {&data, 16, 1}, {&data, 33, 1}};
          check_against_reference(s.in(dtype), queries, block_size, pool);
        }
      }
    }
    const Shape s{4, 2, 16};
    const SequenceData data = make_sequence(s, 520, 2);
    for (const int32_t n :
         {1, 2, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 255, 256, 257, 320, 511, 512, 513}) {
      CAPTURE(n);
      const Query decode{&data, n, 1}, prefill{&data, n, std::min(n, 70)};
      for (const DType dtype : kCacheDTypes) {
        check_against_reference(s.in(dtype), {&decode, 1}, n % 2 ? 16 : 8, pool);
        check_against_reference(s.in(dtype), {&prefill, 1}, n % 2 ? 32 : 16, pool);
      }
    }
  });
}

TEST_CASE("windows, chunks, soft caps, ALiBi and sinks, alone and together, are as close to fp64 as naive fp32") {
  ThreadPool pool(2);
  const Shape shapes[] = {{4, 2, 16, 1},
                          {4, 2, 16, 2},
                          {4, 1, 20, 15},
                          {4, 2, 16, 16},
                          {4, 2, 16, 17},
                          {9, 3, 64, 63},
                          {4, 2, 16, 64},
                          {4, 2, 16, 255},
                          {4, 2, 16, 256},
                          {4, 2, 16, 257},
                          {4, 2, 16, 0, 2.0f},
                          {4, 2, 16, 0, 50.0f},
                          {4, 2, 16, 0, 0, true},
                          {4, 2, 16, 0, 0, false, true},
                          {6, 2, 18, 40, 5.0f, true, true},
                          {14, 2, 8, 300, 1.0f, true, true},
                          {4, 2, 16, 0, 0, false, false, DType::kF32, 1},
                          {4, 2, 16, 0, 0, false, false, DType::kF32, 63},
                          {4, 1, 20, 0, 0, false, true, DType::kBF16, 64},
                          {4, 2, 16, 0, 0, true, false, DType::kF32, 100},
                          {4, 2, 16, 0, 0, false, false, DType::kF32, 0, 1},
                          {14, 2, 64, 0, 0, false, false, DType::kF32, 0, 1},
                          {4, 1, 18, 0, 0, false, true, DType::kF32, 0, 17},
                          {4, 2, 16, 0, 0, false, false, DType::kF32, 0, 256}};
  for_each_simd_target([&](const std::string& target) {
    CAPTURE(target);
    for (const Shape& s : shapes) {
      CAPTURE(s.window);
      CAPTURE(s.softcap);
      const SequenceData data = make_sequence(s, 540, 12);
      for (const int32_t n : {1, 2, 16, 17, 65, 256, 257, 258, 272, 513, 530}) {
        CAPTURE(n);
        if (n <= s.first) continue;
        const Query queries[] = {{&data, n, 1}, {&data, n, std::min(n - s.first, 50)}};
        check_against_reference(s.in(kCacheDTypes[n % 4]), queries, n % 2 ? 16 : 5, pool);
      }
    }
  });
}

TEST_CASE("whole prefill, chunks of it, single steps and batches give identical bits, with 1 to 3 threads") {
  ThreadPool one(1), two(2), three(3);
  constexpr int32_t kLength = 330;
  for_each_simd_target([&](const std::string& target) {
    CAPTURE(target);
    for (const Shape& s : {Shape{6, 2, 32}, Shape{7, 1, 24}, Shape{6, 2, 32, 50}, Shape{7, 1, 24, 3, 4.0f, true, true},
                           Shape{6, 2, 32, 270, 0, true}, Shape{6, 2, 32}.in(DType::kBF16),
                           Shape{7, 1, 24, 3, 4.0f, true, true}.in(DType::kBF16), Shape{6, 2, 32, 50}.in(DType::kI8),
                           Shape{14, 1, 64}.in(DType::kI8), Shape{6, 2, 32}.in(DType::kF8)}) {
      const SequenceData data = make_sequence(s, kLength, 3), other = make_sequence(s, 600, 4);
      const Query prefill{&data, kLength, kLength};
      const std::vector<float> whole = run(s, {&prefill, 1}, 16, one);
      const auto rows = [&](int32_t begin, int32_t end) {
        return std::span(whole).subspan(begin * s.q_size(), (end - begin) * s.q_size());
      };
      for (ThreadPool* pool : {&two, &three}) CHECK(same_bytes(whole, run(s, {&prefill, 1}, 16, *pool)));
      for (const int32_t block_size : {8, 32, 5}) CHECK(same_bytes(whole, run(s, {&prefill, 1}, block_size, two)));
      for (const int32_t chunk : {1, 7, 64, 100, 255, 256, 257}) {
        CAPTURE(chunk);
        for (int32_t begin = 0; begin < kLength; begin += chunk == 1 ? 13 : chunk) {
          const int32_t end = std::min(kLength, begin + chunk);
          const Query part{&data, end, end - begin};
          CHECK(same_bytes(rows(begin, end), run(s, {&part, 1}, 16, three)));
          // Among others of very different lengths, in other blocks, at another row.
          const Query batch[] = {{&other, 600, 1}, {&other, 3, 3}, part, {&data, 1, 1}, {&other, 257, 20}};
          const std::vector<float> together = run(s, batch, 16, two, 8);
          CHECK(same_bytes(rows(begin, end), std::span(together).subspan(4 * s.q_size(), (end - begin) * s.q_size())));
        }
      }
    }
  });
}

TEST_CASE("later positions do not reach a row, even when they are infinite or NaN") {
  ThreadPool pool(2);
  for_each_simd_target([&](const std::string& target) {
    CAPTURE(target);
    for (const DType dtype : kCacheDTypes) {
      const Shape s = Shape{4, 2, 16}.in(dtype);
      SequenceData data = make_sequence(s, 90, 5);
      const Query before{&data, 70, 70};
      const std::vector<float> clean = run(s, {&before, 1}, 16, pool);
      for (int64_t i = 70 * s.kv_size(); i < 90 * s.kv_size(); ++i) {
        data.k[i] = i % 3 ? INFINITY : std::nanf("");
        data.v[i] = i % 2 ? INFINITY : std::nanf("");
      }
      const Query after{&data, 90, 90};
      CHECK(same_bytes(clean, std::span<const float>(run(s, {&after, 1}, 16, pool)).first(70 * s.q_size())));
    }
  });
}

TEST_CASE("positions before a row's window do not reach it, even when they are infinite or NaN") {
  ThreadPool pool(2);
  for (const int32_t window : {1, 7, 64, 250}) {
    for (const DType dtype : kCacheDTypes) {
      const Shape s = Shape{4, 2, 16, window}.in(dtype);
      CAPTURE(window);
      for_each_simd_target([&](const std::string& target) {
        CAPTURE(target);
        SequenceData data = make_sequence(s, 400, 5);
        const Query query{&data, 400, 30};
        const std::vector<float> clean = run(s, {&query, 1}, 16, pool);
        for (int64_t i = 0; i < (370 + 1 - window) * s.kv_size(); ++i) {
          data.k[i] = i % 3 ? INFINITY : std::nanf("");
          data.v[i] = i % 2 ? INFINITY : std::nanf("");
        }
        CHECK(same_bytes(clean, run(s, {&query, 1}, 16, pool)));
      });
    }
  }
}

TEST_CASE("positions before the first that rows see do not reach them, even when they are infinite or NaN") {
  ThreadPool pool(2);
  for (const DType dtype : kCacheDTypes) {
    Shape s = Shape{4, 2, 16}.in(dtype);
    s.first = 1;
    for_each_simd_target([&](const std::string& target) {
      CAPTURE(target);
      SequenceData data = make_sequence(s, 300, 5);
      const Query queries[] = {{&data, 2, 1}, {&data, 40, 39}, {&data, 300, 1}};
      const std::vector<float> clean = run(s, queries, 16, pool);
      for (int64_t i = 0; i < s.kv_size(); ++i) {
        data.k[i] = i % 3 ? INFINITY : std::nanf("");
        data.v[i] = i % 2 ? INFINITY : std::nanf("");
      }
      CHECK(same_bytes(clean, run(s, queries, 16, pool)));
    });
  }
}

TEST_CASE("a NaN in one key or one value reaches every later row of its head and no other sequence") {
  ThreadPool pool(2);
  for_each_simd_target([&](const std::string& target) {
    CAPTURE(target);
    for (const auto& [in_key, number] : {std::pair(true, 0), std::pair(false, 0), std::pair(true, 1), std::pair(false, 1),
                                        std::pair(true, 2), std::pair(false, 2), std::pair(true, 3), std::pair(false, 3)}) {
      const Shape s = Shape{2, 1, 16}.in(kCacheDTypes[number]);
      SequenceData bad = make_sequence(s, 50, 6);
      const SequenceData good = make_sequence(s, 50, 7);
      (in_key ? bad.k : bad.v)[20 * s.kv_size() + 3] = std::nanf("");
      const Query queries[] = {{&good, 50, 50}, {&bad, 50, 50}};
      const Query alone{&good, 50, 50};
      const std::vector<float> out = run(s, queries, 16, pool);
      CHECK(same_bytes(run(s, {&alone, 1}, 16, pool), std::span(out).first(50 * s.q_size())));
      for (int32_t t = 0; t < 50; ++t)
        for (int32_t h = 0; h < 2; ++h) CHECK(std::isnan(out[(50 + t) * s.q_size() + h * 16 + 3]) == (t >= 20));
    }
  });
}

TEST_CASE("scores of any size are safe: huge equal, huge different, and very negative") {
  ThreadPool pool(1);
  const Shape s{1, 1, 16};
  for_each_simd_target([&](const std::string& target) {
    CAPTURE(target);
    for (const float q : {0.0f, 1e4f, -1e4f}) {
      SequenceData data = make_sequence(s, 300, 8);
      std::fill(data.q.begin(), data.q.end(), q);
      for (int32_t p = 0; p < 300; ++p)
        for (int32_t c = 0; c < 16; ++c) data.k[p * 16 + c] = static_cast<float>(p % 7);
      const Query query{&data, 300, 1};
      std::vector<double> expected(16);
      reference_row(s, data, 299, 0, expected.data());
      CHECK(test::compare(run(s, {&query, 1}, 16, pool), expected, 1e-5, 1e-6) == "");
    }
  });
}

TEST_CASE("targets with fused multiply-add agree bit for bit, and so do those without") {
  ThreadPool pool(2);
  const Shape shape{6, 2, 80};
  const SequenceData data = make_sequence(shape, 300, 9);
  const Query queries[] = {{&data, 300, 30}, {&data, 70, 70}, {&data, 280, 1}};
  std::map<std::pair<bool, DType>, std::vector<float>> first;
  for_each_simd_target([&](const std::string& target) {
    CAPTURE(target);
    for (const DType dtype : kCacheDTypes) {
      const std::vector<float> out = run(shape.in(dtype), queries, 16, pool);
      const auto [it, is_first] = first.emplace(std::pair(test::has_fused_multiply_add(target), dtype), out);
      if (!is_first) CHECK(same_bytes(it->second, out));
    }
  });
}

TEST_CASE("an empty batch is nothing to do, and heads that do not divide are refused") {
  ThreadPool pool(2);
  CHECK(run({4, 2, 16}, {}, 16, pool).empty());
  CHECK_THROWS_AS(run({5, 2, 16}, {}, 16, pool), CheckFailure);
}

}  // namespace llmb::cpu
