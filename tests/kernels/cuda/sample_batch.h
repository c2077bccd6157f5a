// Rows to sample from with their logits, what the kernel makes of them, and the CPU's answer beside it.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "kernels/cpu/sample.h"
#include "kernels/cuda/sample.h"
#include "tests/support/device_array.h"
#include "tests/support/kernel_support.h"
#include "tests/support/sample_row.h"

namespace llmb::cuda::sample_batch {

using test::DeviceArray;
using test::params;
using test::random_normal;

inline constexpr float kInf = std::numeric_limits<float>::infinity();
inline constexpr SampleNeeds kAllNeeds{true, true, true, true, true};

// Sample rows of one vocabulary with their logits, penalties and biases.
struct Batch {
  int32_t vocab;
  StepPlan plan = {};
  std::vector<float> logits = {};

  void add(const std::vector<float>& row_logits, SampleRow row, const std::vector<TokenBias>& bias = {},
           const std::vector<TokenPenalty>& penalty = {}, const std::vector<uint32_t>& mask = {}) {
    if (!mask.empty()) {
      plan.mask_words = static_cast<int32_t>(mask.size());
      plan.masks.insert(plan.masks.end(), mask.begin(), mask.end());
      row.mask = plan.num_masks() - 1;
    }
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

inline SampledRows run(const Batch& batch, const SampleNeeds& needs, int32_t num_calls = 1) {
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
  DeviceArray<uint32_t> masks(plan.masks);
  DeviceArray<TokenId> tokens(rows), top_tokens(rows * static_cast<size_t>(max_top));
  DeviceArray<uint8_t> is_finite(rows), workspace(static_cast<size_t>(sample_workspace_bytes(limits)));
  check(cudaMemset(workspace.data(), 0, workspace.size()), "cudaMemset");
  for (int32_t call = 0; call < num_calls; ++call) {
    logits.upload(batch.logits);
    sample({logits.data(), params.data(), bias.data(), penalty.data(), plan.num_samples(), batch.vocab, masks.data()},
           needs,
           {tokens.data(), logprobs.data(), is_finite.data(), top_tokens.data(), top_logprobs.data(), max_top}, limits,
           workspace.data(), nullptr);
    check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  }
  for (const bool guards :
       {logits.check_guards(), logprobs.check_guards(), top_logprobs.check_guards(), tokens.check_guards(),
        top_tokens.check_guards(), is_finite.check_guards(), workspace.check_guards(), params.holds(plan.sample_rows),
        bias.holds(plan.bias), penalty.holds(plan.penalty), masks.holds(plan.masks)})
    CHECK(guards);

  SampledRows out;
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

inline SampledRows run(const Batch& batch) { return run(batch, sample_needs(batch.plan.sample_rows)); }

inline TokenId run_row(const std::vector<float>& logits, const SampleRow& row, const std::vector<TokenBias>& bias = {},
                       const std::vector<TokenPenalty>& penalty = {}) {
  Batch batch{static_cast<int32_t>(logits.size())};
  batch.add(logits, row, bias, penalty);
  const SampledRows out = run(batch);
  return out.is_finite[0] ? out.tokens[0] : -1;
}

inline bool within_one_ulp(float a, float b) {
  return a == b || std::nextafter(a, b) == b;  // false for NaN
}

inline void check_equals_cpu(const Batch& batch, const SampledRows& actual) {
  ThreadPool pool(1);
  std::vector<float> logits = batch.logits;
  SampledRows expected;
  const StepPlan& plan = batch.plan;
  cpu::sample(logits.data(), batch.vocab, {plan.sample_rows, plan.bias, plan.penalty, plan.masks, plan.mask_words}, &expected, pool);
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
                chance(3) ? penalty(vocab) : std::vector<TokenPenalty>(),
                chance(3) ? mask(vocab) : std::vector<uint32_t>());
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

  // Words that allow nearly all, nearly nothing, or anything; now and then nothing at all.
  std::vector<uint32_t> mask(int32_t vocab) {
    std::vector<uint32_t> words(static_cast<size_t>(vocab + 31) / 32);
    const uint32_t kind = rng_() % 16;
    for (uint32_t& word : words)
      word = kind == 0 ? 0u : chance(2) ? rng_() : chance(2) ? ~(1u << rng_() % 32) : 1u << rng_() % 32;
    return words;
  }

  std::mt19937 rng_;
};

}  // namespace llmb::cuda::sample_batch
