// Penalties, biases and log probabilities of the CPU's sampler.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>

#include "kernels/cpu/sample.h"
#include "tests/kernels/sample_rows.h"
#include "tests/support/kernel_support.h"
#include "tests/support/sample_row.h"

namespace llmb::cpu {
namespace {

using test::for_each_simd_target;
using test::params;
using test::random_normal;

constexpr float kInf = std::numeric_limits<float>::infinity();

// A row of random logits with ties and -Inf, random filters, penalties and biases, and a mask of one token in `rarity`.
struct MaskedCase {
  std::vector<float> logits;
  Row row;

  MaskedCase(std::mt19937& rng, int64_t vocab, uint32_t rarity) : logits(random_normal(vocab, rng())) {
    const auto any = [&](auto... choices) { return std::array{choices...}[rng() % sizeof...(choices)]; };
    for (float& x : logits) x = rng() % 16 == 0 ? -kInf : std::round(x * 8) / 2;
    row.row = params(any(0.0f, 0.5f, 2.0f), any(0, 1, 3, 40), any(1.0f, 0.9f, 0.3f), any(0.0f, 0.05f));
    row.row.position = static_cast<uint32_t>(rng());
    row.row.num_logprobs = any(-1, -1, 0, 4);
    row.row.repetition_penalty = any(1.0f, 1.3f);
    row.row.frequency_penalty = any(0.0f, 0.4f);
    const auto token = [&] { return static_cast<TokenId>(rng() % static_cast<uint32_t>(vocab)); };
    for (uint32_t i = rng() % 5; i > 0; --i) row.penalty.push_back({token(), static_cast<int32_t>(rng() % 3)});
    for (uint32_t i = rng() % 5; i > 0; --i) row.bias.push_back({token(), any(1.5f, -2.0f, -kInf)});
    row.mask.assign(static_cast<size_t>(vocab + 31) / 32, 0);
    for (int64_t t = 0; t < vocab; ++t)
      if (rng() % rarity == 0) row.mask[t / 32] |= 1u << t % 32;
  }
};

}  // namespace

TEST_CASE("penalties act on the right tokens: repetition by sign over prompt and output, the others over output") {
  SampleRow row = params(0);
  const std::vector<float> logits = {2.0f, 1.9f, -1.0f, -1.1f};
  row.repetition_penalty = 1.2f;
  CHECK(run_row(logits, {row, {}, {{0, 0}}}).tokens[0] == 1);          // 2 / 1.2 < 1.9
  CHECK(run_row(logits, {row, {}, {{0, 3}, {1, 0}}}).tokens[0] == 0);  // both divided
  CHECK(run_row({-1.0f, -1.1f}, {row, {}, {{0, 1}}}).tokens[0] == 1);  // -1 * 1.2 < -1.1
  row.repetition_penalty = 0.5f;
  CHECK(run_row(logits, {row, {}, {{1, 0}}}).tokens[0] == 1);  // 1.9 / 0.5
  row = params(0);
  row.presence_penalty = 0.2f;
  CHECK(run_row(logits, {row, {}, {{0, 0}}}).tokens[0] == 0);  // in the prompt only
  CHECK(run_row(logits, {row, {}, {{0, 1}}}).tokens[0] == 1);
  CHECK(run_row(logits, {row, {}, {{0, 50}, {1, 1}}}).tokens[0] == 0);  // once, however often
  row = params(0);
  row.frequency_penalty = 0.06f;
  CHECK(run_row(logits, {row, {}, {{0, 1}}}).tokens[0] == 0);
  CHECK(run_row(logits, {row, {}, {{0, 2}}}).tokens[0] == 1);  // 2 - 0.12
  row.frequency_penalty = -1;
  CHECK(run_row(logits, {row, {}, {{3, 4}}}).tokens[0] == 3);  // negative penalties encourage
  row = params(0);
  row.repetition_penalty = 1e-38f;
  const SampledRows huge = run_row({3e38f, 1.0f}, {row, {}, {{0, 1}}});
  CHECK((huge.is_finite[0] == 1 && huge.tokens[0] == 0));
}

TEST_CASE("penalties act on biased logits; a bias of minus infinity forbids, for greedy and for draws") {
  SampleRow row = params(0);
  CHECK(run_row({1, 2, 3}, {row, {{0, 2.5f}}}).tokens[0] == 0);
  CHECK(run_row({1, 2, 3}, {row, {{2, -kInf}}}).tokens[0] == 1);
  row.repetition_penalty = 2;
  CHECK(run_row({4, 3}, {row, {{0, 1.5f}}, {{0, 1}}}).tokens[0] == 1);    // (4 + 1.5) / 2 < 3
  CHECK(run_row({4, 3}, {row, {{0, 2.5f}}, {{0, 1}}}).tokens[0] == 0);    // (4 + 2.5) / 2 > 3
  CHECK(run_row({4, -7}, {row, {{0, -7}}, {{0, 1}}}).tokens[0] == 0);     // (4 - 7) * 2 > -7
  CHECK(run_row({4, -5.5f}, {row, {{0, -7}}, {{0, 1}}}).tokens[0] == 1);  // the bias made it negative: times, not by
  row.frequency_penalty = 1, row.presence_penalty = 0.5f;
  CHECK(run_row({4, 0.4f}, {row, {{0, 1}}, {{0, 1}}}).tokens[0] == 0);  // (4 + 1) / 2 - 1.5
  CHECK(run_row({4, -5.5f}, {row, {{0, -kInf}}, {{0, 1}}}).tokens[0] == 1);
  for (uint32_t position = 0; position < 200; ++position) {
    SampleRow draw = params(5);
    draw.position = position;
    CHECK(run_row({1, 2, 3}, {draw, {{1, -kInf}}}).tokens[0] != 1);
  }
}

TEST_CASE("only what a mask allows is chosen, for any vocabulary size; penalties and bias come behind it") {
  for (const int32_t vocab : {1, 2, 31, 32, 33, 63, 64, 65, 1000}) {
    std::vector<float> logits(static_cast<size_t>(vocab));
    for (int32_t i = 0; i < vocab; ++i) logits[i] = static_cast<float>(i % 7);
    for (const int32_t kept : {1, 2, 5, vocab}) {  // every so-manieth token is allowed, but for the best of all
      CAPTURE(vocab);
      CAPTURE(kept);
      std::vector<uint32_t> mask(static_cast<size_t>(vocab + 31) / 32, 0);
      TokenId best = -1;
      for (TokenId t = kept - 1; t < vocab; t += kept) {
        if (t == 6 && vocab > 7) continue;
        mask[t / 32] |= 1u << t % 32;
        if (best < 0 || logits[t] > logits[best]) best = t;
      }
      mask.back() |= vocab % 32 == 0 ? 0 : ~0u << vocab % 32;  // bits of no token say nothing
      const SampledRows out = run_row(logits, {params(0), {}, {}, mask});
      CHECK(out.is_finite[0] == (best >= 0));
      if (best >= 0) CHECK(out.tokens[0] == best);
      SampleRow draw = params(5);
      for (draw.position = 0; best >= 0 && draw.position < 50; ++draw.position)
        CHECK(is_allowed(mask, run_row(logits, {draw, {}, {}, mask}).tokens[0]));
    }
  }
  CHECK(run_row({1, 2, 3}, {params(0), {{2, 100.0f}}, {}, {0b011}}).tokens[0] == 1);
  CHECK(run_row({1, 2, 3}, {params(0), {{1, -5.0f}}, {}, {0b011}}).tokens[0] == 0);
  CHECK(run_row({1, 2, 3}, {params(0), {{1, -kInf}, {0, -kInf}}, {}, {0b011}}).is_finite[0] == 0);
  CHECK(run_row({1, 2, 3}, {params(0), {}, {}, {0}}).is_finite[0] == 0);
}

TEST_CASE("a mask gives the very token that logits of -Inf give, whether it leaves few tokens or many") {
  for_each_simd_target([&](const std::string&) {
    std::mt19937 rng(7);
    for (int i = 0; i < 4000; ++i) {
      const int64_t vocab = std::array{1, 15, 17, 300, 1024, 1025, 3000}[rng() % 7];
      MaskedCase c(rng, vocab, std::array{1, 2, 20, 40, 300}[rng() % 5]);
      const SampledRows masked = run_row(c.logits, c.row);
      const SampledRows raw = run_row(c.logits, {c.row.row});
      Row forbidden = c.row;
      std::vector<float> logits = c.logits;
      for (int64_t t = 0; t < vocab; ++t)
        if (!is_allowed(c.row.mask, static_cast<TokenId>(t))) logits[t] = -kInf;
      forbidden.mask.clear();
      const SampledRows expected = run_row(logits, forbidden);
      REQUIRE(masked.is_finite == expected.is_finite);
      REQUIRE(masked.tokens == expected.tokens);
      if (masked.is_finite[0] != 0) REQUIRE(masked.top_logprobs == raw.top_logprobs);
    }
  });
}

TEST_CASE("a NaN in the row is seen, whether the mask allows its token or not") {
  for (const size_t few : {size_t{1}, size_t{90}}) {
    std::vector<float> logits(100, 0.0f);
    logits[50] = std::numeric_limits<float>::quiet_NaN();
    std::vector<uint32_t> mask(4, 0);
    for (size_t t = 0; t < few; ++t) mask[t / 32] |= 1u << t % 32;
    CHECK(run_row(logits, {params(1), {}, {}, mask}).is_finite[0] == 0);
  }
}

TEST_CASE("log-probabilities are those of all tokens, also where a mask allows one only") {
  SampleRow row = params(0);
  row.num_logprobs = 3;
  const SampledRows plain = run_row({1, 2, 3}, {row});
  const SampledRows masked = run_row({1, 2, 3}, {row, {}, {}, {0b001}});
  CHECK(masked.tokens[0] == 0);
  CHECK(masked.top_tokens == plain.top_tokens);
  CHECK(masked.top_logprobs == plain.top_logprobs);
  CHECK(masked.logprobs[0] == plain.top_logprobs[2]);
}

TEST_CASE("logprobs are the raw distribution's, whatever penalties, bias, temperature and filters did") {
  for_each_simd_target([&](const std::string& target) {
    CAPTURE(target);
    for (const int64_t vocab : {1, 5, 64, 100, 5000}) {
      std::vector<float> logits = random_normal(vocab, 10, 3);
      if (vocab >= 64) logits[7] = logits[3] = logits[vocab - 1] = 20;  // ties at the top
      double sum = 0;
      for (const float x : logits) sum += std::exp(double{x});
      std::vector<TokenId> order(vocab);
      std::iota(order.begin(), order.end(), 0);
      std::stable_sort(order.begin(), order.end(), [&](TokenId a, TokenId b) { return logits[a] > logits[b]; });
      for (const int32_t num_logprobs : {0, 1, 3, 20, 100}) {
        for (const float temperature : {0.0f, 1.5f}) {
          CAPTURE(vocab);
          SampleRow row = params(temperature, 3, 0.9f);
          row.num_logprobs = num_logprobs;
          row.repetition_penalty = 3;
          const SampledRows out = run_row(logits, {row, {{order[0], -kInf}}, {{0, 1}}});
          if (vocab == 1) {
            CHECK(out.is_finite[0] == 0);
            continue;
          }
          CHECK(out.tokens[0] != order[0]);
          CHECK(std::fabs(out.logprobs[0] - (logits[out.tokens[0]] - std::log(sum))) <= 2e-6);
          const int64_t n = std::min<int64_t>(num_logprobs, vocab);
          CHECK(out.top_start == std::vector<int32_t>{0, static_cast<int32_t>(n)});
          for (int64_t i = 0; i < n; ++i) {
            CHECK(out.top_tokens[i] == order[i]);
            CHECK(std::fabs(out.top_logprobs[i] - (logits[order[i]] - std::log(sum))) <= 2e-6);
          }
        }
      }
    }
  });
}

TEST_CASE("rows that want no logprobs get none, between rows that do") {
  ThreadPool pool(2);
  const std::vector<float> logits = random_normal(4 * 10, 11);
  std::vector<Row> rows(4, Row{params(0)});
  rows[1].row.num_logprobs = 2;
  rows[3].row.num_logprobs = 50;
  const SampledRows out = run(logits, 10, make_plan(rows), pool);
  CHECK(out.top_start == std::vector<int32_t>{0, 0, 2, 2, 12});
  CHECK(out.logprobs[0] == 0);
  CHECK(out.logprobs[1] < 0);
  CHECK(out.logprobs[2] == 0);
  CHECK(run({}, 10, StepPlan(), pool).top_start == std::vector<int32_t>{0});
}

}  // namespace llmb::cpu
