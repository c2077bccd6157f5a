#include "kernels/cuda/sample.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <random>

#include "base/check.h"
#include "kernels/cpu/logit_passes.h"
#include "kernels/cpu/machine_limits.h"
#include "kernels/cpu/sample.h"
#include "tests/support/device_array.h"
#include "tests/support/kernel_support.h"
#ifdef LLMB_SIMT
#include "kernels/cuda/sample_state.h"
#endif

namespace llmb::cuda {
namespace {

using test::DeviceArray;
using test::random_normal;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr SampleNeeds kAllNeeds{true, true, true, true, true};

// Sample rows of one vocabulary with their logits, penalties and biases.
struct Batch {
  int32_t vocab;
  StepPlan plan = {};
  std::vector<float> logits = {};

  void add(const std::vector<float>& row_logits, SampleRow row, const std::vector<TokenBias>& bias = {},
           const std::vector<TokenPenalty>& penalty = {}) {
    row.bias_begin = static_cast<int32_t>(plan.bias.size());
    plan.bias.insert(plan.bias.end(), bias.begin(), bias.end());
    row.bias_end = static_cast<int32_t>(plan.bias.size());
    row.penalty_begin = static_cast<int32_t>(plan.penalty.size());
    plan.penalty.insert(plan.penalty.end(), penalty.begin(), penalty.end());
    row.penalty_end = static_cast<int32_t>(plan.penalty.size());
    plan.sample_rows.push_back(row);
    logits.insert(logits.end(), row_logits.begin(), row_logits.end());
  }
  // Row i alone; its slices still index the whole batch's arrays.
  Batch row(size_t i) const {
    Batch one{vocab, plan};
    one.plan.sample_rows = {plan.sample_rows[i]};
    const auto begin = logits.begin() + static_cast<int64_t>(i) * vocab;
    one.logits.assign(begin, begin + vocab);
    return one;
  }
};

StepOutput run(const Batch& batch, const SampleNeeds& needs, int32_t num_calls = 1) {
  const StepPlan& plan = batch.plan;
  const auto rows = static_cast<size_t>(plan.num_samples());
  int32_t max_top = 1;
  for (const SampleRow& row : plan.sample_rows) max_top = std::max(max_top, std::min(row.num_logprobs, batch.vocab));
  const SampleLimits limits{plan.num_samples() + 1, batch.vocab, static_cast<int64_t>(plan.penalty.size()),
                            static_cast<int64_t>(plan.bias.size())};
  DeviceArray<float> logits(batch.logits), logprobs(rows), top_logprobs(rows * static_cast<size_t>(max_top));
  DeviceArray<SampleRow> params(plan.sample_rows);
  DeviceArray<TokenBias> bias(plan.bias);
  DeviceArray<TokenPenalty> penalty(plan.penalty);
  DeviceArray<TokenId> tokens(rows), top_tokens(rows * static_cast<size_t>(max_top));
  DeviceArray<uint8_t> is_finite(rows), workspace(static_cast<size_t>(sample_workspace_bytes(limits)));
  check(cudaMemset(workspace.data(), 0, workspace.size()), "cudaMemset");
  for (int32_t call = 0; call < num_calls; ++call) {
    logits.upload(batch.logits);
    sample({logits.data(), params.data(), bias.data(), penalty.data(), plan.num_samples(), batch.vocab}, needs,
           {tokens.data(), logprobs.data(), is_finite.data(), top_tokens.data(), top_logprobs.data(), max_top}, limits,
           workspace.data(), nullptr);
    check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  }
  for (const bool guards :
       {logits.check_guards(), logprobs.check_guards(), top_logprobs.check_guards(), tokens.check_guards(),
        top_tokens.check_guards(), is_finite.check_guards(), workspace.check_guards(), params.holds(plan.sample_rows),
        bias.holds(plan.bias), penalty.holds(plan.penalty)})
    CHECK(guards);

  StepOutput out;
  out.clear();
  out.tokens = tokens.download();
  out.is_finite = is_finite.download();
  out.logprobs = needs.logprobs ? logprobs.download() : std::vector<float>(rows, 0.0f);
  const std::vector<TokenId> all_top = top_tokens.download();
  const std::vector<float> all_top_logprobs = top_logprobs.download();
  for (size_t i = 0; i < rows; ++i) {
    const int32_t n = std::clamp(plan.sample_rows[i].num_logprobs, 0, batch.vocab);
    const size_t begin = i * static_cast<size_t>(max_top);
    out.top_start.push_back(out.top_start.back() + n);
    out.top_tokens.insert(out.top_tokens.end(), all_top.begin() + begin, all_top.begin() + begin + n);
    out.top_logprobs.insert(out.top_logprobs.end(), all_top_logprobs.begin() + begin,
                            all_top_logprobs.begin() + begin + n);
  }
  return out;
}

StepOutput run(const Batch& batch) { return run(batch, sample_needs(batch.plan.sample_rows)); }

TokenId run_row(const std::vector<float>& logits, const SampleRow& row, const std::vector<TokenBias>& bias = {},
                const std::vector<TokenPenalty>& penalty = {}) {
  Batch batch{static_cast<int32_t>(logits.size())};
  batch.add(logits, row, bias, penalty);
  const StepOutput out = run(batch);
  return out.is_finite[0] ? out.tokens[0] : -1;
}

SampleRow params(float temperature, int32_t top_k = 0, float top_p = 1, float min_p = 0) {
  SampleRow row;
  row.temperature = temperature;
  row.top_k = top_k;
  row.top_p = top_p;
  row.min_p = min_p;
  row.rng = {12, 34};
  return row;
}

bool within_one_ulp(float a, float b) {
  return a == b || std::nextafter(a, b) == b;  // false for NaN
}

void check_equals_cpu(const Batch& batch, const StepOutput& actual) {
  ThreadPool pool(1);
  std::vector<float> logits = batch.logits;
  StepOutput expected;
  cpu::sample(logits.data(), batch.vocab, batch.plan, &expected, pool);
  CHECK(actual.is_finite == expected.is_finite);
  CHECK(actual.top_start == expected.top_start);
  CHECK(actual.top_tokens == expected.top_tokens);
  for (size_t i = 0; i < expected.tokens.size(); ++i) {
    CAPTURE(i);
    CAPTURE(batch.vocab);
    const SampleRow& row = batch.plan.sample_rows[i];
    CAPTURE(row.temperature);
    CAPTURE(row.top_k);
    CAPTURE(row.top_p);
    CAPTURE(row.min_p);
    CHECK(actual.tokens[i] == expected.tokens[i]);
    CHECK(within_one_ulp(actual.logprobs[i], expected.logprobs[i]));
  }
  for (size_t i = 0; i < expected.top_logprobs.size(); ++i)
    CHECK(within_one_ulp(actual.top_logprobs[i], expected.top_logprobs[i]));
}

// Rows of every kind: ties, infinities, NaN, far and near values; all parameters at and around their borders.
class RandomRows {
 public:
  explicit RandomRows(uint32_t seed) : rng_(seed) {}

  Batch batch(int32_t vocab, int num_rows) {
    Batch batch{vocab};
    for (int i = 0; i < num_rows; ++i) {
      SampleRow row = params(any({0.0f, 1.0f, 1.0f, 0.7f, 1.3f, 5.0f, 1e-6f, 1e-30f, 1e30f, 100.0f}));
      row.rng = {rng_(), rng_()};
      row.position = rng_();
      if (chance(2)) row.top_k = any({1, 2, 5, 50, 1500, vocab - 1, vocab, vocab + 1, 0x7FFFFFFF});
      if (chance(2)) row.top_p = any({0.9f, 0.5f, 0.1f, 0.99f, 0.999999f, 1e-30f});
      if (chance(4)) row.min_p = any({0.05f, 0.5f, 1.0f, 2.0f});
      if (chance(3)) row.num_logprobs = any({0, 1, 5, 20, 100});
      row.repetition_penalty = any({1.0f, 1.1f, 0.5f, 1e-38f});
      row.presence_penalty = any({0.0f, 0.5f, -1.0f});
      row.frequency_penalty = any({0.0f, 0.25f, -0.1f});
      batch.add(logits(vocab), row, chance(3) ? bias(vocab) : std::vector<TokenBias>(),
                chance(3) ? penalty(vocab) : std::vector<TokenPenalty>());
    }
    return batch;
  }

 private:
  bool chance(uint32_t one_in) { return rng_() % one_in == 0; }
  template <class T>
  T any(std::initializer_list<T> values) {
    return values.begin()[rng_() % values.size()];
  }
  TokenId token(int32_t vocab) { return static_cast<TokenId>(rng_() % static_cast<uint32_t>(vocab)); }

  std::vector<float> logits(int32_t vocab) {
    std::vector<float> x = random_normal(vocab, rng_(), any({0.01f, 1.0f, 3.0f, 10.0f}));
    switch (rng_() % 12) {
      case 0:  // as a bf16 head gives them
        for (float& v : x) v = to_float(from_float<__nv_bfloat16>(v));
        break;
      case 1:
        for (float& v : x) v = std::round(v);
        break;
      case 2:
        std::fill(x.begin(), x.end(), any({0.0f, -3.0f, 1e30f}));
        break;
      case 3:
        for (float& v : x) v = chance(2) ? -kInf : v;
        break;
      case 4:
        std::fill(x.begin(), x.end(), -kInf);
        if (chance(2)) x[static_cast<size_t>(token(vocab))] = 3;
        break;
      case 5:
        x[static_cast<size_t>(token(vocab))] = 40;
        break;
      case 6:
        x[static_cast<size_t>(token(vocab))] = any({NAN, kInf, -NAN});
        break;
      case 7:
        for (float& v : x) v *= any({1e38f, 1e-40f, 1.0f});
        for (float& v : x) v = std::isfinite(v) ? v : 0.0f;
        break;
      case 8:
        for (float& v : x) v = chance(2) ? 0.0f : -0.0f;
        break;
      default:
        break;
    }
    return x;
  }
  // Each token at most once.
  std::vector<TokenId> tokens(int32_t vocab) {
    std::vector<TokenId> ids;
    for (int i = 0; i < 300; ++i) ids.push_back(token(vocab));
    std::sort(ids.begin(), ids.end());
    ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
    return ids;
  }
  std::vector<TokenBias> bias(int32_t vocab) {
    std::vector<TokenBias> result;
    for (const TokenId id : tokens(vocab)) result.push_back({id, any({1.5f, -100.0f, 100.0f, -kInf, 3e38f})});
    return result;
  }
  std::vector<TokenPenalty> penalty(int32_t vocab) {
    std::vector<TokenPenalty> result;
    for (const TokenId id : tokens(vocab)) result.push_back({id, any({0, 1, 3})});
    return result;
  }

  std::mt19937 rng_;
};

}  // namespace

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
  const StepOutput out = run(tiny);
  check_equals_cpu(tiny, out);
  CHECK(std::count(out.tokens.begin(), out.tokens.end(), 1) > 0);
}

TEST_CASE("a row's result has the same bits alone, in a batch, at any row, with other rows' passes, in any order") {
  // Odd: rows stand at every alignment.
  Batch batch = RandomRows(7).batch(2051, 14);
  batch.plan.sample_rows[3].num_logprobs = 7;
  const StepOutput whole = run(batch, kAllNeeds);
  const auto equal = [](const StepOutput& a, const StepOutput& b) {
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
      const StepOutput alone = run(batch.row(i));
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
  const StepOutput before = run(batch, kAllNeeds);
  for (const size_t at : {size_t{1}, size_t{4}}) {
    SampleRow& row = batch.plan.sample_rows[at];
    std::memset(static_cast<void*>(&row), 0xFF, sizeof row);
    std::fill_n(batch.logits.begin() + static_cast<int64_t>(at) * batch.vocab, batch.vocab, NAN);
  }
  const StepOutput after = run(batch, kAllNeeds);
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
    CHECK(draw(halves, params(1, 2)) <= 1);
    CHECK(draw({-kInf, 1, -kInf, 1}, params(100)) % 2 == 1);
    CHECK(draw({-kInf, 1, -kInf, 1}, params(1, 3)) % 2 == 1);
    CHECK(draw({0, 1e30f, -1e30f}, params(1e-30f)) == 1);
    CHECK(draw({1, 2, 3}, params(5), {{1, -kInf}}) != 1);
    CHECK(draw({1, 2, 3}, params(5), {{0, -kInf}, {1, -kInf}, {2, -kInf}}) == -1);
  }
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
    CHECK(draw_uniform(row) == sampling_uniform(row.rng, 0, row.position));
  }
}
#endif

}  // namespace llmb::cuda
