// Sampling by ranks with a part of the vocabulary each gives what sampling of whole rows gives.
#include "kernels/cpu/sample_parts.h"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <thread>
#include <vector>

#include "base/shared_ranks.h"
#include "tests/kernels/sample_rows.h"
#include "tests/support/check_ok.h"
#include "tests/support/kernel_support.h"
#include "tests/support/sample_row.h"
#include "tests/support/test_rng.h"

namespace llmb::cpu {
namespace {

using test::check_ok;
using test::TestRng;

// Returns each rank's results.
std::vector<SampledRows> run_parts(const std::vector<float>& logits, int64_t vocab, const StepPlan& plan,
                                   const std::vector<int64_t>& begins) {
  const auto num_ranks = static_cast<int>(begins.size()) - 1;
  ChannelMembers all;
  for (int r = 0; r < num_ranks; ++r) all.ranks.push_back(r);
  auto ranks = SharedRanks::create(num_ranks, {all});
  check_ok(ranks.status());
  std::vector<SampledRows> out(static_cast<size_t>(num_ranks));
  std::vector<std::thread> threads;
  for (int r = 0; r < num_ranks; ++r)
    threads.emplace_back([&, r] {
      ThreadPool pool(r % 2 + 1);
      const VocabPart part = {begins[r], begins[r + 1] - begins[r], vocab};
      std::vector<float> own;
      for (size_t i = 0; i < plan.sample_rows.size(); ++i) {
        const auto row = logits.begin() + static_cast<int64_t>(i) * vocab;
        own.insert(own.end(), row + part.begin, row + part.begin + part.count);
      }
      const auto channel = SharedRanks::join(*ranks, 0, r);
      sample_parts(own.data(), part, {plan.sample_rows, plan.bias, plan.penalty, plan.masks, plan.mask_words}, &out[r],
                   *channel, pool);
    });
  for (std::thread& thread : threads) thread.join();
  return out;
}

Row random_row(TestRng& rng, int64_t vocab) {
  Row r;
  r.row = test::params(rng.chance(0.3) ? 0 : static_cast<float>(rng.between(2, 20)) / 10);
  if (rng.chance(0.4)) r.row.top_k = rng.log_between(1, static_cast<int32_t>(vocab + 5));
  if (rng.chance(0.5)) r.row.top_p = static_cast<float>(rng.between(1, 99)) / 100;
  if (rng.chance(0.3)) r.row.min_p = static_cast<float>(rng.between(1, 50)) / 100;
  if (rng.chance(0.4)) r.row.num_logprobs = rng.between(0, static_cast<int32_t>(std::min<int64_t>(vocab, 30)));
  r.row.position = static_cast<uint32_t>(rng.between(0, 1 << 20));
  const auto token = [&] { return static_cast<TokenId>(rng.between(0, static_cast<int32_t>(vocab) - 1)); };
  for (int i = rng.chance(0.3) ? rng.between(1, 8) : 0; i > 0; --i)
    r.bias.push_back({token(), rng.chance(0.2) ? -std::numeric_limits<float>::infinity() : 3.0f});
  if (rng.chance(0.3)) {
    r.row.repetition_penalty = 1.3f, r.row.frequency_penalty = 0.2f, r.row.presence_penalty = 0.1f;
    r.penalty = {{token(), rng.between(0, 3)}};
  }
  if (rng.chance(0.3)) {
    r.mask.resize(static_cast<size_t>(ceil_div(vocab, 32)));
    const double share = rng.chance(0.5) ? 0.5 : 0.02;
    for (int64_t t = 0; t < vocab; ++t)
      if (rng.chance(share)) r.mask[static_cast<size_t>(t / 32)] |= 1u << (t % 32);
  }
  return r;
}

void check_equal(const SampledRows& expected, const SampledRows& got) {
  CHECK(got.tokens == expected.tokens);
  CHECK(got.is_finite == expected.is_finite);
  CHECK(got.top_start == expected.top_start);
  CHECK(got.top_tokens == expected.top_tokens);
  const auto is_near = [](float a, float b) { return a == b || std::fabs(a - b) <= 1e-6f * (1 + std::fabs(b)); };
  for (size_t i = 0; i < expected.logprobs.size(); ++i) CHECK(is_near(got.logprobs[i], expected.logprobs[i]));
  for (size_t i = 0; i < expected.top_logprobs.size(); ++i)
    CHECK(is_near(got.top_logprobs[i], expected.top_logprobs[i]));
}

}  // namespace

TEST_CASE("random rows with all settings: the tokens of whole rows, on all ranks alike") {
  TestRng rng(5);
  for (const auto& [vocab, begins] : std::vector<std::pair<int64_t, std::vector<int64_t>>>{
           {100, {0, 32, 100}},
           {5000, {0, 1024, 5000}},
           {9001, {0, 64, 4096, 9001}},
           {3000, {0, 32, 96, 1024, 3000}}}) {
    for (int trial = 0; trial < 12; ++trial) {
      std::vector<Row> rows;
      const int num_rows = rng.between(1, 20);
      for (int i = 0; i < num_rows; ++i) rows.push_back(random_row(rng, vocab));
      std::vector<float> logits(static_cast<size_t>(num_rows * vocab));
      for (float& x : logits) x = static_cast<float>(rng.between(-40000, 40000)) / 4000;
      if (trial % 4 == 1)  // many that are equal
        for (float& x : logits) x = std::round(x / 10);
      if (trial % 4 == 2) logits[static_cast<size_t>(rng.between(0, static_cast<int32_t>(vocab) - 1))] = NAN;
      const StepPlan plan = make_plan(rows);
      ThreadPool pool(1);
      const SampledRows expected = run(logits, vocab, plan, pool);
      for (const SampledRows& got : run_parts(logits, vocab, plan, begins)) check_equal(expected, got);
    }
  }
}

TEST_CASE("rows of equal logits, and rows of which nothing may be chosen") {
  constexpr int64_t kVocab = 2000;
  std::vector<Row> rows(4);
  rows[0].row = test::params(1, 0, 0.7f);
  rows[1].row = test::params(1, 700);
  rows[2].row = test::params(0);
  rows[3].row = test::params(1);
  rows[3].mask.resize(ceil_div(kVocab, 32));  // forbids all
  const std::vector<float> logits(4 * kVocab, 1.5f);
  const StepPlan plan = make_plan(rows);
  ThreadPool pool(1);
  const SampledRows expected = run(logits, kVocab, plan, pool);
  CHECK(expected.is_finite == std::vector<uint8_t>{1, 1, 1, 0});
  for (const SampledRows& got : run_parts(logits, kVocab, plan, {0, 640, 1024, kVocab})) check_equal(expected, got);
}

}  // namespace llmb::cpu
