#include "kernels/cuda/sample.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <random>

#include "base/check.h"
#include "kernels/cpu/logit_passes.h"
#include "kernels/cpu/machine_limits.h"
#include "tests/kernels/cuda/sample_batch.h"
#ifdef LLMB_SIMT
#include "kernels/cuda/sample_state.h"
#endif

namespace llmb::cuda {

using namespace sample_batch;

TEST_CASE("random rows of every kind give the CPU's tokens, log probabilities and marks") {
  RandomRows random(5);
  for (const auto& [vocab, rows] : std::initializer_list<std::pair<int32_t, int>>{{1, 60},
                                                                                  {2, 200},
                                                                                  {3, 100},
                                                                                  {31, 200},
                                                                                  {32, 200},
                                                                                  {33, 200},
                                                                                  {1000, 200},
                                                                                  {1023, 20},
                                                                                  {1024, 20},
                                                                                  {1025, 20},
                                                                                  {4099, 100},
                                                                                  {8191, 10},
                                                                                  {8192, 10},
                                                                                  {8193, 10},
                                                                                  {32001, 20}}) {
    const Batch batch = random.batch(vocab, rows);
    check_equals_cpu(batch, run(batch));
  }
}

TEST_CASE("greedy takes the best token, the lowest id among equals, wherever it stands") {
  for (const int32_t vocab : {1, 2, 31, 33, 1000, 1024, 1025, 8192, 8193, 50257}) {
    for (const int32_t best : {0, vocab / 2, vocab - 1}) {
      CAPTURE(vocab);
      std::vector<float> logits = random_normal(vocab, 1);
      logits[best] = 100;
      CHECK(run_row(logits, params(0)) == best);
      logits[vocab - 1] = 100;
      CHECK(run_row(logits, params(0)) == best);
    }
    CHECK(run_row(std::vector<float>(vocab, -3.0f), params(0)) == 0);
  }
  CHECK(run_row({-0.0f, 0.0f}, params(0)) == 0);
  CHECK(run_row({-kInf, -5.0f, -kInf}, params(0)) == 1);
  CHECK(run_row({-kInf, -kInf}, params(0)) == -1);
}

TEST_CASE("prefixes longer than the list, and ties at every border, are cut where the CPU cuts them") {
  Batch batch{5003};
  const std::vector<float> equal(5003, 2.0f), normal = random_normal(5003, 3, 0.5f);
  std::vector<float> steps = normal;
  for (float& x : steps) x = std::round(x * 2) / 2;  // a few values, each of them hundreds of times
  for (uint32_t position = 0; position < 3; ++position) {
    for (const std::vector<float>& logits : {equal, normal, steps}) {
      for (SampleRow row :
           {params(1, 1023), params(1, 1024), params(1, 1025), params(1, 2000), params(1, 5002), params(1, 0, 0.9f),
            params(1, 0, 0.21f), params(1, 2500, 0.7f), params(1, 1100, 0.01f), params(0.3f, 3000, 0.8f, 0.2f)}) {
        row.position = position;
        row.num_logprobs = position == 0 ? 1000 : -1;
        batch.add(logits, row);
      }
    }
  }
  check_equals_cpu(batch, run(batch));
}

TEST_CASE(
    "a small top-k, found by way of blocks' maxima, is the CPU's: around their number, with ties in every block") {
  constexpr int32_t kBlocks = 9;
  Batch batch{kBlocks * 1024 - 3};
  const std::vector<float> normal = random_normal(batch.vocab, 5, 2), equal(static_cast<size_t>(batch.vocab), -1.0f);
  std::vector<float> last = normal, rounded = normal, one_block = normal;
  last.back() = 50;
  for (float& x : rounded) x = std::round(x);
  for (int i = 2048; i < 3072; ++i) one_block[static_cast<size_t>(i)] += 20;
  for (const std::vector<float>& logits : {normal, equal, last, rounded, one_block}) {
    for (const int32_t top_k : {1, 2, kBlocks - 1, kBlocks, kBlocks + 1}) {
      SampleRow row = params(0.8f, top_k, 0.95f);
      row.position = static_cast<uint32_t>(batch.plan.num_samples());
      row.num_logprobs = top_k;
      batch.add(logits, row);
    }
  }
  check_equals_cpu(batch, run(batch));
}

TEST_CASE("the total that top-p is a share of counts every weight: its lowest bits, and those far below the border") {
  // Half the weights are 1, the others have bits set that only the lowest of a bin's sums counts: without them the
  // border moves by a token or two, and what is drawn with it.
  float low = -0.5f, weight = 0;
  do cpu::exp_weights(&(low -= 1e-4f), 1, 0, 1, &weight);
  while ((std::bit_cast<uint32_t>(weight) & 1023) < 1000);
  Batch flat{32001};
  std::vector<float> two_values(static_cast<size_t>(flat.vocab));
  for (size_t i = 0; i < two_values.size(); ++i) two_values[i] = i % 2 == 0 ? 0 : low;
  for (uint32_t i = 0; i < 5; ++i) {
    SampleRow row = params(1, 0, 0.9f);
    row.position = i;
    flat.add(two_values, row);
  }
  check_equals_cpu(flat, run(flat));
  // Token 1 is within the nucleus because of the many others, each of them too small to be the border.
  Batch tiny{1000};
  std::vector<float> logits(1000, std::log(0.4f * 0.1f / 1000));
  logits[0] = 0, logits[1] = std::log(0.1f);
  for (uint32_t i = 0; i < 60; ++i) {
    SampleRow row = params(1, 0, 0.9f);
    row.position = i;
    tiny.add(logits, row);
  }
  const SampledRows out = run(tiny);
  check_equals_cpu(tiny, out);
  CHECK(std::count(out.tokens.begin(), out.tokens.end(), 1) > 0);
}

TEST_CASE("a row's result has the same bits alone, in a batch, at any row, with other rows' passes, in any order") {
  // Odd: rows stand at every alignment.
  Batch batch = RandomRows(7).batch(2051, 14);
  batch.plan.sample_rows[3].num_logprobs = 7;
  const SampledRows whole = run(batch, kAllNeeds);
  const auto equal = [](const SampledRows& a, const SampledRows& b) {
    CHECK(a.tokens == b.tokens);
    CHECK(a.is_finite == b.is_finite);
    CHECK(test::same_bytes(a.logprobs, b.logprobs));
    CHECK(a.top_tokens == b.top_tokens);
    CHECK(test::same_bytes(a.top_logprobs, b.top_logprobs));
  };
  equal(whole, run(batch, kAllNeeds, 3));  // the workspace is as it was
  test::for_each_order(3, [&](uint64_t seed) {
    equal(whole, run(batch, kAllNeeds));
    for (size_t i = seed; i < batch.plan.sample_rows.size(); i += 3) {
      const SampledRows alone = run(batch.row(i));
      CHECK(alone.tokens[0] == whole.tokens[i]);
      CHECK(alone.is_finite[0] == whole.is_finite[i]);
      CHECK(test::same_bytes(alone.logprobs, std::span(whole.logprobs).subspan(i, 1)));
      const std::span top = std::span(whole.top_logprobs).subspan(whole.top_start[i], alone.top_logprobs.size());
      CHECK(test::same_bytes(alone.top_logprobs, top));
    }
  });
}

TEST_CASE("padded rows give token 0 and disturb nothing, whatever their parameters are") {
  Batch batch = RandomRows(9).batch(1030, 5);
  const SampledRows before = run(batch, kAllNeeds);
  for (const size_t at : {size_t{1}, size_t{4}}) {
    SampleRow& row = batch.plan.sample_rows[at];
    std::memset(static_cast<void*>(&row), 0xFF, sizeof row);
    std::fill_n(batch.logits.begin() + static_cast<int64_t>(at) * batch.vocab, batch.vocab, NAN);
  }
  const SampledRows after = run(batch, kAllNeeds);
  for (const size_t i : {0, 2, 3}) CHECK(after.tokens[i] == before.tokens[i]);
  for (const size_t i : {1, 4}) {
    CHECK(after.tokens[i] == 0);
    CHECK(after.logprobs[i] == 0);
    CHECK(after.is_finite[i] == 0);
  }
}

TEST_CASE("what top-k, top-p and min-p leave is what is drawn from; min-p and bias work without them") {
  for (uint32_t position = 0; position < 30; ++position) {
    const auto draw = [&](const std::vector<float>& logits, SampleRow row, const std::vector<TokenBias>& bias = {}) {
      row.position = position;
      return run_row(logits, row, bias);
    };
    const std::vector<float> halves = {0, -std::log(2.0f), -std::log(4.0f), -std::log(4.0f) - 1e-3f};
    CHECK(draw(halves, params(1, 0, 0.4f)) == 0);
    CHECK(draw(halves, params(1, 0, 1e-30f)) == 0);
    CHECK(draw(halves, params(1, 0, 0.6f)) <= 1);
    CHECK(draw(halves, params(1, 0, 1, 0.4f)) <= 1);
    CHECK(draw(halves, params(1, 0, 1, 2)) == 0);
    CHECK(draw(halves, params(1, 0, 0.6f, 0.4f)) == 0);  // a share of what min-p leaves
    CHECK(draw(halves, params(1, 2)) <= 1);
    CHECK(draw({-kInf, 1, -kInf, 1}, params(100)) % 2 == 1);
    CHECK(draw({-kInf, 1, -kInf, 1}, params(1, 3)) % 2 == 1);
    CHECK(draw({0, 1e30f, -1e30f}, params(1e-30f)) == 1);
    CHECK(draw({1, 2, 3}, params(5), {{1, -kInf}}) != 1);
    CHECK(draw({1, 2, 3}, params(5), {{0, -kInf}, {1, -kInf}, {2, -kInf}}) == -1);
  }
}

TEST_CASE("penalties act on biased logits, and log probabilities are those before both") {
  SampleRow row = params(0);
  row.repetition_penalty = 2;
  CHECK(run_row({4, 3}, row, {{0, 1.5f}}, {{0, 1}}) == 1);
  CHECK(run_row({4, 3}, row, {{0, 2.5f}}, {{0, 1}}) == 0);
  CHECK(run_row({4, -5.5f}, row, {{0, -7}}, {{0, 1}}) == 1);
  row.num_logprobs = 1;
  Batch batch{2};
  batch.add({4, 3}, row, {{0, 2.5f}}, {{0, 1}});
  check_equals_cpu(batch, run(batch));
}

TEST_CASE("top-p of what min-p leaves is cut where the CPU cuts it: lists, long prefixes, ties") {
  const std::vector<float> normal = random_normal(5003, 3, 0.5f);
  std::vector<float> steps = normal;
  for (float& x : steps) x = std::round(x * 2) / 2;
  Batch batch{5003};
  for (uint32_t position = 0; position < 4; ++position) {
    for (const std::vector<float>& logits : {normal, steps}) {
      for (SampleRow row : {params(1, 0, 0.5f, 0.3f), params(1, 0, 0.9f, 0.05f), params(1, 700, 0.4f, 0.2f),
                            params(1, 3000, 0.8f, 0.1f), params(0.2f, 0, 0.6f, 0.01f)}) {
        row.position = position;
        batch.add(logits, row);
      }
    }
  }
  check_equals_cpu(batch, run(batch));
}

TEST_CASE("needs follow from the rows, and cover what asks for less") {
  std::vector<SampleRow> rows = {params(0)};
  CHECK(sample_needs({}).covers(sample_needs(rows)));
  rows.push_back(params(1, 5));
  rows.push_back(params(0));
  rows.back().num_logprobs = 0;
  const SampleNeeds needs = sample_needs(rows);
  CHECK((needs.draws && needs.filters && needs.logprobs && !needs.top_logprobs && !needs.edits));
  CHECK(kAllNeeds.covers(needs));
  CHECK(!needs.covers(kAllNeeds));
  CHECK(!sample_needs({}).covers(needs));
  CHECK_THROWS_AS(run(Batch{1 << 23}), CheckFailure);
  Batch none{10};
  CHECK(run(none, kAllNeeds).tokens.empty());
}

#ifdef LLMB_SIMT
TEST_CASE("weights have the bits of the CPU's, for any temperature; the uniform is base/rng's") {
  std::mt19937 rng(11);
  const bool cpu_fuses = test::has_fused_multiply_add(cpu::simd_target_name());
  for (const float temperature :
       {1.0f, 0.7f, 0.6f, 1.0f / 3, 1.9999999f, 3.0f, 17.0f, 1e-3f, 1e-9f, 1e9f, 1e-35f, 1e35f}) {
    for (const float max : {0.0f, 12.25f, -3.3f, 1e20f}) {
      std::vector<float> logits = random_normal(4000, rng(), 20 * std::min(temperature, 1e3f)), expected(4000);
      for (float& x : logits) x = max - std::fabs(x);
      logits[0] = max, logits[1] = -kInf, logits[2] = std::nextafter(max, -kInf);
      // Around the weights that become 0, at -87.
      for (int i = 3; i < 1000; ++i) logits[i] = max - temperature * (86 + 2e-3f * static_cast<float>(i));
      cpu::exp_weights(logits.data(), 4000, max, temperature, expected.data());
      const Weights weights(max, temperature);
      CHECK(weights(max) == 1);
      for (size_t i = 0; i < logits.size() && cpu_fuses; ++i) REQUIRE(weights(logits[i]) == expected[i]);
    }
  }
  for (int i = 0; i < 100; ++i) {
    SampleRow row;
    row.rng = {rng() | uint64_t{rng()} << 32, rng() | uint64_t{rng()} << 32};
    row.position = rng();
    row.choice = rng() % 3;
    CHECK(draw_uniform(row) == sampling_uniform(row.rng, row.choice, row.position));
  }
}
#endif

}  // namespace llmb::cuda
