// paged_attention over an int4 cache: groups of 32 positions, which a row of the same group reads in bfloat16 and rows of
// later groups as codes; and close_kv_groups, which makes the codes.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "kernels/cpu/kv_groups.h"
#include "kernels/cpu/paged_attention.h"
#include "tests/support/compare.h"
#include "tests/support/kernel_support.h"
#include "tests/support/kv_bytes.h"

namespace llmb::cpu {
namespace {

using test::for_each_simd_target;
using test::GuardedFloats;
using test::same_bytes;

constexpr int32_t kGroup = 32;
static_assert(kGroup == kKvGroup);

struct Shape {
  int32_t num_heads, num_kv_heads, head_dim;
  int32_t window = 0;
  bool has_sinks = false;

  int32_t group() const { return num_heads / num_kv_heads; }
  int64_t q_size() const { return int64_t{num_heads} * head_dim; }
  int64_t kv_size() const { return int64_t{num_kv_heads} * head_dim; }
  int64_t stride() const { return q_size() + 2 * kv_size(); }
  float sink(int32_t head) const { return static_cast<float>(head % 3) - 0.5f; }
};

float bf16(float x) { return std::bit_cast<float>(uint32_t{test::round_to_bf16(x)} << 16); }

struct Codes {
  float scale = 0, zero = 0;
  std::vector<int> codes;

  float value(size_t i) const { return static_cast<float>(double{zero} + double{scale} * codes[i]); }
};

// bf16 numbers that share a scale.
Codes encode(const std::vector<float>& x) {
  Codes out{0, *std::min_element(x.begin(), x.end()), std::vector<int>(x.size(), 0)};
  const float step = (*std::max_element(x.begin(), x.end()) - out.zero) / 15;
  out.scale = bf16(step);
  if (out.scale < step) out.scale = std::bit_cast<float>(std::bit_cast<uint32_t>(out.scale) + 0x10000u);
  for (size_t i = 0; i < x.size() && out.scale > 0; ++i)
    out.codes[i] = std::min(15, static_cast<int>((x[i] - out.zero) / out.scale + 0.5f));
  return out;
}

// A sequence's q, k and v for every position; what k and v are while their groups are open, and behind that.
struct Sequence {
  int32_t length;
  std::vector<float> q, k, v;  // [length, q_size], [length, kv_size] twice
  std::vector<float> closed_k, closed_v;
};

void add_forms(const Shape& s, Sequence* data) {
  for (float& x : data->k) x = bf16(x);
  for (float& x : data->v) x = bf16(x);
  data->closed_k = data->k;
  data->closed_v = data->v;
  for (int32_t begin = 0; begin + kGroup <= data->length; begin += kGroup)
    for (int64_t c = 0; c < s.kv_size(); ++c) {
      std::vector<float> channel;
      for (int32_t p = begin; p < begin + kGroup; ++p) channel.push_back(data->k[p * s.kv_size() + c]);
      const Codes codes = encode(channel);
      for (int32_t p = 0; p < kGroup; ++p) data->closed_k[(begin + p) * s.kv_size() + c] = codes.value(p);
    }
  for (int32_t p = 0; p < data->length; ++p)
    for (int32_t head = 0; head < s.num_kv_heads; ++head)
      for (int32_t first = 0; first < s.head_dim; first += 32) {
        const auto at = data->v.begin() + p * s.kv_size() + head * s.head_dim + first;
        const std::vector<float> part(at, at + std::min(32, s.head_dim - first));
        const Codes codes = encode(part);
        for (size_t i = 0; i < part.size(); ++i)
          data->closed_v[p * s.kv_size() + head * s.head_dim + first + i] = codes.value(i);
      }
}

Sequence make_sequence(const Shape& s, int32_t length, uint32_t seed) {
  Sequence data{length, test::random_normal(length * s.q_size(), seed, 1.5f),
                test::random_normal(length * s.kv_size(), seed + 1000, 1.5f),
                test::random_normal(length * s.kv_size(), seed + 2000), {}, {}};
  for (int64_t i = 0; i < length * s.kv_size(); i += 7) data.k[i] += 4;  // channels have their own range
  add_forms(s, &data);
  return data;
}

// The last query_len positions of the first context_len of a sequence are new in the call.
struct Query {
  const Sequence* data;
  int32_t context_len, query_len;
};

struct Sharing {
  std::vector<SharedPrefix> prefixes;
  std::vector<int32_t> entries;
  int32_t num_blocks = 0;  // of the first sequence, that the others begin with
};

// In pools of shuffled blocks in which everything not written is NaN. Groups are closed as far as they are complete.
std::vector<float> run(const Shape& s, std::span<const Query> queries, int32_t block_size, ThreadPool& pool,
                       uint32_t seed = 7, const Sharing& sharing = {}) {
  std::vector<int32_t> query_start = {0}, context_len, block_start = {0};
  int32_t num_blocks = 3, num_groups = 5;
  for (const Query& q : queries) {
    query_start.push_back(query_start.back() + q.query_len);
    context_len.push_back(q.context_len);
    block_start.push_back(block_start.back() + static_cast<int32_t>(ceil_div(q.context_len, block_size)));
    num_blocks += block_start.back() - block_start[block_start.size() - 2];
    num_groups += static_cast<int32_t>(ceil_div(q.context_len, kGroup));
  }
  std::mt19937 rng(seed);
  const auto shuffled = [&](int32_t n) {
    std::vector<BlockId> ids(static_cast<size_t>(n));
    for (int32_t i = 0; i < n; ++i) ids[i] = i;
    std::shuffle(ids.begin(), ids.end(), rng);
    return ids;
  };
  std::vector<BlockId> ids = shuffled(num_blocks);
  const std::vector<BlockId> places = shuffled(num_groups);
  for (size_t i = 1; i < queries.size(); ++i)
    std::copy_n(ids.begin(), sharing.num_blocks, ids.begin() + block_start[i]);
  test::KvBytes cache(DType::kI4, num_blocks, block_size, s.num_kv_heads, s.head_dim);
  test::KvBytes open(DType::kBF16, num_groups, kGroup, s.num_kv_heads, s.head_dim);
  GuardedFloats qkv(query_start.back() * s.stride()), out(query_start.back() * s.q_size());
  std::vector<int32_t> open_blocks;
  std::vector<ClosingGroup> closing;
  size_t num_used = 0;
  for (size_t i = 0; i < queries.size(); ++i) {
    const auto& [data, context, query_len] = queries[i];
    for (int32_t p = 0; p < context; ++p)
      write_kv_slot(&data->k[p * s.kv_size()], &data->v[p * s.kv_size()],
                    int64_t{places[num_used + p / kGroup]} * kGroup + p % kGroup, open.view());
    for (int32_t p = 0; p + kGroup <= context; p += kGroup)
      closing.push_back({places[num_used + p / kGroup],
                         int64_t{ids[block_start[i] + p / block_size]} * block_size + p % block_size});
    for (int32_t t = 0; t < query_len; ++t) {
      const int32_t position = context - query_len + t;
      open_blocks.push_back(places[num_used + position / kGroup]);
      std::copy_n(&data->q[position * s.q_size()], s.q_size(), qkv.data() + (query_start[i] + t) * s.stride());
    }
    num_used += ceil_div(context, kGroup);
  }
  // Shared blocks are closed once.
  std::sort(closing.begin(), closing.end(), [](const auto& a, const auto& b) { return a.slot < b.slot; });
  closing.erase(std::unique(closing.begin(), closing.end(), [](const auto& a, const auto& b) { return a.slot == b.slot; }),
                closing.end());
  close_kv_groups(open.view(), cache.view(), closing, pool);
  CHECK(cache.guards_untouched());
  CHECK(open.guards_untouched());
  const KvCacheView open_view = open.view();
  const AttentionBatch batch{static_cast<int32_t>(queries.size()), query_start.data(), context_len.data(),
                             block_start.data(), ids.data(), sharing.prefixes, sharing.entries.data(), &open_view,
                             open_blocks.data()};
  std::vector<float> sinks;
  for (int32_t h = 0; h < s.num_heads; ++h) sinks.push_back(s.sink(h));
  const AttentionParams params{.num_heads = s.num_heads,
                               .scale = 1 / std::sqrt(static_cast<float>(s.head_dim)),
                               .window = s.window,
                               .sinks = s.has_sinks ? sinks.data() : nullptr};
  paged_attention(qkv.data(), s.stride(), out.data(), batch, params, cache.view(), pool);
  CHECK(out.guards_untouched());
  return out.copy();
}

template <typename T>
void reference_row(const Shape& s, const Sequence& data, int32_t position, int32_t head, T* out) {
  const float* q = &data.q[position * s.q_size() + head * s.head_dim];
  const int64_t kv_at = head / s.group() * s.head_dim;
  const int32_t first = s.window == 0 ? 0 : std::max(0, position + 1 - s.window), own = position / kGroup * kGroup;
  const auto key = [&](int32_t i, int32_t c) {
    return static_cast<T>((i < own ? data.closed_k : data.k)[i * s.kv_size() + kv_at + c]);
  };
  std::vector<T> p;
  T max = s.has_sinks ? static_cast<T>(s.sink(head)) : -INFINITY, sum = 0;
  for (int32_t i = first; i <= position; ++i) {
    T score = 0;
    for (int32_t c = 0; c < s.head_dim; ++c) score += static_cast<T>(q[c]) * key(i, c);
    p.push_back(score / std::sqrt(static_cast<T>(s.head_dim)));
    max = std::max(max, p.back());
  }
  for (T& x : p) sum += x = std::exp(x - max);
  if (s.has_sinks) sum += std::exp(static_cast<T>(s.sink(head)) - max);
  for (int32_t c = 0; c < s.head_dim; ++c) {
    T acc = 0;
    for (int32_t i = first; i <= position; ++i)
      acc += p[i - first] / sum *
             static_cast<T>((i < own ? data.closed_v : data.v)[i * s.kv_size() + kv_at + c]);
    out[c] = acc;
  }
}

void check_against_reference(const Shape& s, std::span<const Query> queries, int32_t block_size, ThreadPool& pool) {
  const std::vector<float> actual = run(s, queries, block_size, pool);
  std::vector<double> expected(actual.size());
  std::vector<float> naive(actual.size());
  int64_t row = 0;
  for (const Query& q : queries)
    for (int32_t position = q.context_len - q.query_len; position < q.context_len; ++position, ++row)
      for (int32_t h = 0; h < s.num_heads; ++h) {
        reference_row(s, *q.data, position, h, &expected[row * s.q_size() + h * s.head_dim]);
        reference_row(s, *q.data, position, h, &naive[row * s.q_size() + h * s.head_dim]);
      }
  CAPTURE(s.num_heads);
  CAPTURE(s.head_dim);
  CAPTURE(s.window);
  CAPTURE(block_size);
  CHECK(test::relative_error(actual, expected) <= 2 * test::relative_error(naive, expected) + 1.2e-7);
}

}  // namespace

TEST_CASE("attention over int4 is as close to fp64 as naive fp32, whichever form of a key a row reads") {
  ThreadPool pool(2);
  for_each_simd_target([&](const std::string& target) {
    CAPTURE(target);
    for (const Shape& s : {Shape{1, 1, 64}, Shape{2, 1, 16}, Shape{9, 3, 64}, Shape{14, 2, 64}, Shape{4, 4, 80},
                           Shape{6, 2, 112}, Shape{8, 2, 128}, Shape{6, 2, 2}, Shape{5, 1, 18}, Shape{16, 1, 8}}) {
      const Sequence data = make_sequence(s, 100, 1);
      for (const int32_t block_size : {32, 64, 96}) {
        const Query queries[] = {{&data, 1, 1}, {&data, 100, 40}, {&data, 33, 33}, {&data, 32, 1}, {&data, 65, 1}};
        check_against_reference(s, queries, block_size, pool);
      }
    }
    for (const Shape& s : {Shape{4, 2, 16}, Shape{4, 2, 16, 1}, Shape{4, 2, 16, 31}, Shape{4, 2, 16, 33},
                           Shape{4, 2, 64, 70, true}, Shape{6, 2, 32, 257}}) {
      const Sequence data = make_sequence(s, 580, 2);
      for (const int32_t n : {1, 2, 15, 31, 32, 33, 63, 64, 65, 255, 256, 257, 288, 289, 320, 511, 512, 513, 545, 576}) {
        CAPTURE(n);
        const Query queries[] = {{&data, n, 1}, {&data, n, std::min(n, 31)}, {&data, n, std::min(n, 70)}};
        check_against_reference(s, queries, n % 2 ? 32 : 64, pool);
      }
    }
  });
}

TEST_CASE("over int4, whole prefill, chunks of 1, 31, 32, 33 and more, and batches give identical bits") {
  ThreadPool one(1), two(2), three(3);
  constexpr int32_t kLength = 330;
  for_each_simd_target([&](const std::string& target) {
    CAPTURE(target);
    for (const Shape& s : {Shape{6, 2, 32}, Shape{7, 1, 24}, Shape{6, 2, 32, 50}, Shape{14, 1, 64, 0, true}}) {
      const Sequence data = make_sequence(s, kLength, 3), other = make_sequence(s, 600, 4);
      const Query prefill{&data, kLength, kLength};
      const std::vector<float> whole = run(s, {&prefill, 1}, 32, one);
      const auto rows = [&](int32_t begin, int32_t end) {
        return std::span(whole).subspan(begin * s.q_size(), (end - begin) * s.q_size());
      };
      for (ThreadPool* pool : {&two, &three}) CHECK(same_bytes(whole, run(s, {&prefill, 1}, 32, *pool)));
      for (const int32_t block_size : {64, 128}) CHECK(same_bytes(whole, run(s, {&prefill, 1}, block_size, two)));
      for (const int32_t chunk : {1, 31, 32, 33, 64, 100, 257}) {
        CAPTURE(chunk);
        for (int32_t begin = 0; begin < kLength; begin += chunk == 1 ? 13 : chunk) {
          const int32_t end = std::min(kLength, begin + chunk);
          const Query part{&data, end, end - begin};
          CHECK(same_bytes(rows(begin, end), run(s, {&part, 1}, 32, three)));
          const Query batch[] = {{&other, 600, 1}, {&other, 3, 3}, part, {&data, 1, 1}, {&other, 257, 20}};
          const std::vector<float> together = run(s, batch, 64, two, 8);
          CHECK(same_bytes(rows(begin, end), std::span(together).subspan(4 * s.q_size(), (end - begin) * s.q_size())));
        }
      }
    }
  });
}

TEST_CASE("over int4, rows over shared blocks have the bits that they have by themselves") {
  ThreadPool pool(2);
  const Shape s{6, 2, 64};
  Sequence first = make_sequence(s, 700, 5), second = make_sequence(s, 700, 6);
  constexpr int32_t kShared = 576;
  for (auto member : {&Sequence::k, &Sequence::v})
    std::copy_n((first.*member).begin(), kShared * s.kv_size(), (second.*member).begin());
  add_forms(s, &second);
  for_each_simd_target([&](const std::string& target) {
    CAPTURE(target);
    // The first sequence computes part of what it shares in the same call.
    for (const int32_t query_len : {1, 40, 300}) {
      const Query queries[] = {{&first, 640, query_len}, {&second, 650, 2}, {&second, 601, 1}};
      const Sharing sharing{{{0, kShared / 32, 0, 3}}, {0, 1, 2}, kShared / 32};
      const std::vector<float> together = run(s, queries, 32, pool, 7, sharing);
      std::vector<float> alone;
      for (const Query& query : queries) {
        const std::vector<float> rows = run(s, {&query, 1}, 32, pool);
        alone.insert(alone.end(), rows.begin(), rows.end());
      }
      CHECK(same_bytes(alone, together));
    }
  });
}

TEST_CASE("over int4, later positions do not reach a row, and a NaN reaches the rows behind it and its sequence only") {
  ThreadPool pool(2);
  const Shape s{4, 2, 16};
  for_each_simd_target([&](const std::string& target) {
    CAPTURE(target);
    Sequence data = make_sequence(s, 140, 5);
    const Query before{&data, 70, 70};
    const std::vector<float> clean = run(s, {&before, 1}, 32, pool);
    for (int64_t i = 70 * s.kv_size(); i < 140 * s.kv_size(); ++i) {
      data.k[i] = i % 3 ? INFINITY : std::nanf("");
      data.v[i] = i % 2 ? INFINITY : std::nanf("");
    }
    const Query after{&data, 140, 140};
    CHECK(same_bytes(clean, std::span<const float>(run(s, {&after, 1}, 32, pool)).first(70 * s.q_size())));

    const Sequence good = make_sequence(s, 100, 7);
    for (const bool in_key : {true, false}) {
      Sequence bad = make_sequence(s, 100, 6);
      (in_key ? bad.k : bad.v)[40 * s.kv_size() + 3] = std::nanf("");  // of the first KV head
      const Query queries[] = {{&good, 100, 100}, {&bad, 100, 100}}, alone{&good, 100, 100};
      const std::vector<float> out = run(s, queries, 32, pool);
      CHECK(same_bytes(run(s, {&alone, 1}, 32, pool), std::span(out).first(100 * s.q_size())));
      for (int32_t t = 0; t < 100; ++t)
        for (int32_t h = 0; h < 4; ++h)
          CHECK(std::isnan(out[(100 + t) * s.q_size() + h * 16 + 3]) == (t >= 40 && h < 2));
    }
  });
}

TEST_CASE("over int4, targets give the bits of targets with the same arithmetic") {
  ThreadPool pool(2);
  const Shape s{6, 2, 80};
  const Sequence data = make_sequence(s, 300, 9);
  const Query queries[] = {{&data, 300, 30}, {&data, 70, 70}, {&data, 280, 1}};
  std::map<bool, std::vector<float>> first;
  for_each_simd_target([&](const std::string& target) {
    CAPTURE(target);
    const std::vector<float> out = run(s, queries, 32, pool);
    const auto [it, is_first] = first.emplace(test::has_fused_multiply_add(target), out);
    if (!is_first) CHECK(same_bytes(it->second, out));
  });
}

TEST_CASE("codes lie where kv_cache.h says; equal, infinite, tiny and NaN numbers") {
  ThreadPool pool(1);
  const Shape s{2, 2, 40};
  Sequence data = make_sequence(s, 64, 3);
  for (int32_t p = 32; p < 64; ++p) {
    data.k[p * s.kv_size() + 1] = 2.5f;                      // all equal
    data.k[p * s.kv_size() + 2] = p == 50 ? INFINITY : 1.0f;
    data.k[p * s.kv_size() + 4] = p == 40 ? 0x1p-149f : 0.0f;  // rounds to zero in bf16
  }
  for (int64_t c = 40; c < 72; ++c) data.v[33 * s.kv_size() + c] = c == 50 ? std::nanf("") : 1.0f;
  test::KvBytes open(DType::kBF16, 3, kGroup, 2, 40), cache(DType::kI4, 2, 64, 2, 40);
  for (int32_t p = 0; p < 64; ++p)
    write_kv_slot(&data.k[p * s.kv_size()], &data.v[p * s.kv_size()], (2 - p / 32) * 32 + p % 32, open.view());
  const ClosingGroup groups[] = {{2, 64}, {1, 96}};
  close_kv_groups(open.view(), cache.view(), groups, pool);
  const KvCacheView view = cache.view();
  CHECK(view.head_bytes() == 2 * (40 * 20 + 32 * (20 + 8)));
  const auto number = [](const uint8_t* at) {
    uint16_t bits = 0;
    std::memcpy(&bits, at, 2);
    return std::bit_cast<float>(uint32_t{bits} << 16);
  };
  const auto meant = [&](const uint8_t* codes, int64_t i, int64_t half, const uint8_t* scale) {
    const int code = i < half ? codes[i] & 15 : codes[i - half] >> 4;
    return number(scale + 2) + number(scale) * static_cast<float>(code);
  };
  for (int32_t head = 0; head < 2; ++head)
    for (int32_t p = 0; p < 64; ++p)
      for (int32_t c = 0; c < 40; ++c) {
        const int64_t at = p * s.kv_size() + head * 40 + c;
        const uint8_t* keys = view.data + (2 + head) * view.head_bytes() + p / 32 * 40 * 20;
        const uint8_t* values = view.data + (2 + head) * view.head_bytes() + 2 * 40 * 20 + p / 32 * 32 * 28;
        const float k = meant(keys + c * 16, p % 32, 16, keys + 40 * 16 + c * 4);
        const float v = meant(values + p % 32 * 20 + c / 32 * 16, c % 32, c < 32 ? 16 : 4,
                              values + 32 * 20 + p % 32 * 8 + c / 32 * 4);
        const bool has_nan_key = head == 0 && c == 2 && p >= 32, has_nan_value = head == 1 && c < 32 && p == 33;
        CHECK(std::isnan(k) == has_nan_key);
        CHECK(std::isnan(v) == has_nan_value);
        if (!has_nan_key) CHECK(std::fabs(k - bf16(data.k[at])) <= 0.51 * number(keys + 40 * 16 + c * 4));
        if (!has_nan_value)
          CHECK(std::fabs(v - bf16(data.v[at])) <= 0.51 * number(values + 32 * 20 + p % 32 * 8 + c / 32 * 4));
      }
}

}  // namespace llmb::cpu
