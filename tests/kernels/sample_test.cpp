#include "kernels/cpu/sample.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <set>

#include "tests/kernels/sample_rows.h"
#include "tests/support/kernel_support.h"
#include "tests/support/sample_row.h"

namespace llmb::cpu {
namespace {

using test::for_each_simd_target;
using test::params;
using test::random_normal;

constexpr float kInf = std::numeric_limits<float>::infinity();

// The distribution that a row is drawn from, by sorting, in fp64.
std::vector<double> exact_distribution(const std::vector<float>& logits, const SampleRow& row) {
  const size_t n = logits.size();
  std::vector<size_t> order(n);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return logits[a] > logits[b]; });
  const auto total_of = [](const std::vector<double>& p) { return std::accumulate(p.begin(), p.end(), 0.0); };
  std::vector<double> p(n, 0);
  for (size_t i = 0; i < n; ++i)
    p[order[i]] = std::exp((double{logits[order[i]]} - logits[order[0]]) / row.temperature);
  for (size_t i = 0; i < n; ++i)
    if (p[order[i]] < row.min_p || (row.top_k > 0 && i >= static_cast<size_t>(row.top_k))) p[order[i]] = 0;
  const double wanted = row.top_p * total_of(p);
  double sum = 0;
  for (size_t i = 0; i < n; ++i) {
    if (sum >= wanted && row.top_p < 1) p[order[i]] = 0;
    sum += p[order[i]];
  }
  const double total = total_of(p);
  for (double& x : p) x /= total;
  return p;
}

// Counts of tokens drawn at positions 0 … num_draws − 1, in batches.
std::vector<int64_t> draw_counts(const std::vector<float>& logits, SampleRow row, int num_draws) {
  constexpr int kBatch = 500;
  ThreadPool pool(2);
  std::vector<float> all;
  for (int i = 0; i < kBatch; ++i) all.insert(all.end(), logits.begin(), logits.end());
  std::vector<int64_t> counts(logits.size(), 0);
  for (int begin = 0; begin < num_draws; begin += kBatch) {
    std::vector<Row> rows;
    for (int i = 0; i < kBatch; ++i) {
      row.position = static_cast<uint32_t>(begin + i);
      rows.push_back({row});
    }
    const SampledRows out = run(all, static_cast<int64_t>(logits.size()), make_plan(rows), pool);
    CHECK(std::count(out.is_finite.begin(), out.is_finite.end(), 1) == kBatch);
    for (const TokenId token : out.tokens) ++counts[token];
  }
  return counts;
}

// Chi-square over tokens expected at least 5 times (others pooled) must stay below its 99.99 % point; tokens of
// probability 0 must never appear.
void check_distribution(const std::vector<float>& logits, const SampleRow& row, int num_draws) {
  const std::vector<double> p = exact_distribution(logits, row);
  const std::vector<int64_t> counts = draw_counts(logits, row, num_draws);
  double chi_square = 0, rest_expected = 0, rest_count = 0;
  int cells = 0;
  const auto add = [&](double expected, double count) {
    chi_square += (count - expected) * (count - expected) / expected;
    ++cells;
  };
  for (size_t i = 0; i < p.size(); ++i) {
    const double expected = p[i] * num_draws;
    if (p[i] == 0) CHECK(counts[i] == 0);
    if (expected >= 5) add(expected, static_cast<double>(counts[i]));
    else rest_expected += expected, rest_count += static_cast<double>(counts[i]);
  }
  if (rest_expected >= 5) add(rest_expected, rest_count);
  const double freedom = cells - 1;
  if (freedom < 1) return;
  // Wilson and Hilferty's approximation of the quantile at z = 3.72.
  const double t = 1 - 2 / (9 * freedom) + 3.72 * std::sqrt(2 / (9 * freedom));
  CAPTURE(row.temperature);
  CAPTURE(row.top_k);
  CAPTURE(row.top_p);
  CAPTURE(row.min_p);
  CHECK(chi_square <= freedom * t * t * t);
}

}  // namespace

TEST_CASE("greedy takes the best token, the lowest id among equals, wherever it stands, for any vocabulary size") {
  for_each_simd_target([&](const std::string& target) {
    CAPTURE(target);
    for (const int64_t vocab : {1, 2, 15, 16, 17, 63, 64, 65, 1000, 1024, 1025, 50257, 200000}) {
      for (const int64_t best : {int64_t{0}, vocab / 2, vocab - 1}) {
        CAPTURE(vocab);
        std::vector<float> logits = random_normal(vocab, 1);
        logits[best] = 100;
        CHECK(run_row(logits, {params(0)}).tokens[0] == best);
        if (best + 1 < vocab) logits[vocab - 1] = 100;
        CHECK(run_row(logits, {params(0)}).tokens[0] == best);
        CHECK(run_row(logits, {params(1e-6f)}).tokens[0] >= best);
      }
      CHECK(run_row(std::vector<float>(vocab, -3.0f), {params(0)}).tokens[0] == 0);
    }
    CHECK(run_row({-0.0f, 0.0f}, {params(0)}).tokens[0] == 0);
    CHECK(run_row({-kInf, -5.0f, -kInf}, {params(0)}).tokens[0] == 1);
  });
}

TEST_CASE("a NaN or +Inf anywhere in a row marks that row and no other, for any vocabulary size") {
  ThreadPool pool(2);
  for_each_simd_target([&](const std::string& target) {
    CAPTURE(target);
    for (const int64_t vocab : {1, 16, 17, 33, 1000}) {
      for (const float bad : {std::nanf(""), -std::nanf(""), kInf}) {
        for (const int64_t at : {int64_t{0}, vocab / 2, vocab - 1}) {
          for (const float temperature : {0.0f, 1.0f}) {
            std::vector<float> logits = random_normal(3 * vocab, 2);
            SampleRow row = params(temperature);
            row.num_logprobs = 1;
            const std::vector<Row> rows(3, Row{row});
            const SampledRows clean = run(logits, vocab, make_plan(rows), pool);
            logits[vocab + at] = bad;
            const SampledRows out = run(logits, vocab, make_plan(rows), pool);
            CHECK(out.is_finite == std::vector<uint8_t>{1, 0, 1});
            CHECK(out.tokens == std::vector<TokenId>{clean.tokens[0], 0, clean.tokens[2]});
            CHECK(out.logprobs[2] == clean.logprobs[2]);
          }
        }
      }
    }
    CHECK(run_row({-kInf, -kInf}, {params(1)}).is_finite[0] == 0);
    CHECK(run_row({-kInf, 0, -kInf}, {params(1)}).tokens[0] == 1);
    CHECK(run_row({1, 2}, {params(1), {{0, -kInf}, {1, -kInf}}}).is_finite[0] == 0);
  });
}

TEST_CASE("draws follow the exact distribution: temperatures, top-k, top-p, min-p and their combinations") {
  const std::vector<float> logits = random_normal(40, 3, 1.5f);
  for (const float temperature : {0.3f, 1.0f, 2.0f}) check_distribution(logits, params(temperature), 40000);
  check_distribution(logits, params(1, 1), 2000);
  check_distribution(logits, params(1, 5), 20000);
  check_distribution(logits, params(1, 39), 20000);
  check_distribution(logits, params(1, 40), 20000);
  check_distribution(logits, params(1, 1000000), 20000);
  for (const float top_p : {0.01f, 0.5f, 0.9f, 0.999f}) check_distribution(logits, params(1, 0, top_p), 20000);
  for (const float min_p : {0.05f, 0.3f, 1.0f}) check_distribution(logits, params(1, 0, 1, min_p), 20000);
  check_distribution(logits, params(0.7f, 20, 0.8f, 0.05f), 20000);
  for (const float min_p : {0.1f, 0.3f, 0.6f}) check_distribution(logits, params(1, 0, 0.7f, min_p), 20000);
  check_distribution(logits, params(1.3f, 10, 0.95f), 20000);
}

TEST_CASE("draws follow the exact distribution over a vocabulary of many blocks, flat and peaked") {
  check_distribution(random_normal(5000, 4, 0.5f), params(1), 40000);
  check_distribution(random_normal(5000, 5, 3), params(1, 0, 0.9f), 20000);
  check_distribution(random_normal(5000, 6, 0.01f), params(1, 0, 0.5f), 20000);
  check_distribution(random_normal(5000, 7, 3), params(1, 100), 20000);
}

TEST_CASE("top-k and top-p keep exactly the prefix of (value, id): sizes and ties") {
  // Which tokens can be drawn: thousands of positions, few tokens.
  const auto support = [](const std::vector<float>& logits, const SampleRow& row) {
    const std::vector<int64_t> counts = draw_counts(logits, row, 4000);
    std::set<int64_t> s;
    for (size_t i = 0; i < counts.size(); ++i)
      if (counts[i] > 0) s.insert(static_cast<int64_t>(i));
    return s;
  };
  using Set = std::set<int64_t>;
  const std::vector<float> flat(200, 1.0f);
  CHECK(support(flat, params(1, 3)) == Set{0, 1, 2});
  CHECK(support(flat, params(1, 64)).size() == 64);
  CHECK(*support(flat, params(1, 65)).rbegin() == 64);
  CHECK(support(flat, params(1, 0, 0.0499f)).size() == 10);
  CHECK(*support(flat, params(1, 0, 0.0499f)).rbegin() == 9);
  CHECK(support({1, 3, 2, 3, 3, 0}, params(1, 2)) == Set{1, 3});
  CHECK(support({1, 3, 2, 3, 3, 0}, params(1, 4)) == Set{1, 2, 3, 4});
  const std::vector<float> halves = {0, -std::log(2.0f), -std::log(4.0f), -std::log(4.0f) - 1e-3f};
  CHECK(support(halves, params(1, 0, 0.4f)) == Set{0});
  CHECK(support(halves, params(1, 0, 0.6f)) == Set{0, 1});
  CHECK(support(halves, params(1, 0, 0.8f)) == Set{0, 1, 2});
  CHECK(support(halves, params(1, 0, 1, 0.4f)) == Set{0, 1});
  CHECK(support(halves, params(1, 0, 1, 1)) == Set{0});
  CHECK(support(halves, params(1, 2, 0.99f)) == Set{0, 1});
  // top-p is a share of what min-p and top-k leave: 1 of 1.5, not of 2.
  CHECK(support(halves, params(1, 0, 0.6f, 0.4f)) == Set{0});
  CHECK(support(halves, params(1, 2, 0.6f)) == Set{0});
  CHECK(support(halves, params(1, 0, 0.7f, 0.4f)) == Set{0, 1});
  CHECK(support(halves, params(1, 0, 1e-30f)) == Set{0});
  CHECK(support({-kInf, 1, -kInf, 1}, params(100)) == Set{1, 3});
  CHECK(support({-kInf, 1, -kInf, 1}, params(1, 3)) == Set{1, 3});
  CHECK(support({0, 1e30f, -1e30f}, params(1e-30f)) == Set{1});
}

TEST_CASE("top-k and top-p agree with sorting on large random vocabularies") {
  for (const int64_t vocab : {1000, 151936}) {
    const std::vector<float> logits = random_normal(vocab, 8, 2);
    for (const int32_t top_k : {0, 1, 2, 50, 999}) {
      for (const float top_p : {0.3f, 0.97f}) {
        const std::vector<double> p = exact_distribution(logits, params(1, top_k, top_p));
        SampleRow row = params(1, top_k, top_p);
        std::vector<Row> rows;
        std::vector<float> all;
        for (uint32_t i = 0; i < 20; ++i) {
          row.position = i;
          rows.push_back({row});
          all.insert(all.end(), logits.begin(), logits.end());
        }
        ThreadPool pool(2);
        const SampledRows out = run(all, vocab, make_plan(rows), pool);
        for (size_t i = 0; i < rows.size(); ++i) {
          CHECK(p[out.tokens[i]] > 0);
          // The token whose interval of the cumulative distribution in order of ids holds the uniform.
          double cumulative = 0;
          for (TokenId t = 0; t < out.tokens[i]; ++t) cumulative += p[t];
          const double u = sampling_uniform(row.rng, 0, static_cast<uint32_t>(i));
          CHECK(u >= cumulative - 1e-5);
          CHECK(u <= cumulative + p[out.tokens[i]] + 1e-5);
        }
      }
    }
  }
}

TEST_CASE(
    "a row's token is the same alone, in any batch, at any row, with 1 to 3 threads, and on targets of one kind") {
  constexpr int64_t kVocab = 3001;
  ThreadPool one(1), three(3);
  std::vector<Row> rows;
  for (int i = 0; i < 24; ++i) {
    SampleRow row =
        params(i % 4 ? 0.5f + 0.1f * static_cast<float>(i) : 0, i % 3 ? 40 : 0, i % 2 ? 0.9f : 1, i % 5 ? 0 : 0.02f);
    row.rng = {9, static_cast<uint64_t>(i)};
    row.position = static_cast<uint32_t>(100 + i);
    row.num_logprobs = i % 3 - 1;
    row.repetition_penalty = 1.1f;
    rows.push_back({row, {{i, 0.5f}}, {{i + 1, 1}}});
  }
  const std::vector<float> logits = random_normal(24 * kVocab, 9, 2);
  std::map<bool, SampledRows> first;
  for_each_simd_target([&](const std::string& target) {
    CAPTURE(target);
    const SampledRows whole = run(logits, kVocab, make_plan(rows), one);
    const SampledRows threaded = run(logits, kVocab, make_plan(rows), three);
    CHECK(whole.tokens == threaded.tokens);
    CHECK(test::same_bytes(whole.logprobs, threaded.logprobs));
    CHECK(test::same_bytes(whole.top_logprobs, threaded.top_logprobs));
    CHECK(whole.top_tokens == threaded.top_tokens);
    for (size_t i = 0; i < rows.size(); ++i) {
      const std::vector<float> own(logits.begin() + static_cast<int64_t>(i) * kVocab,
                                   logits.begin() + static_cast<int64_t>(i + 1) * kVocab);
      const SampledRows alone = run(own, kVocab, make_plan({&rows[i], 1}), one);
      CHECK(alone.tokens[0] == whole.tokens[i]);
      CHECK(alone.logprobs[0] == whole.logprobs[i]);
    }
    const auto [it, is_first] = first.emplace(test::has_fused_multiply_add(target), whole);
    if (!is_first) CHECK((it->second.tokens == whole.tokens && test::same_bytes(it->second.logprobs, whole.logprobs)));
  });
}

}  // namespace llmb::cpu
