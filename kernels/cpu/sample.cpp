#include "kernels/cpu/sample.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

namespace llmb::cpu {

namespace {

struct RowResult {
  TokenId token = 0;
  float logprob = 0;
  bool is_finite = false;
};

void apply_penalties(float* l, const StepPlan& plan, const SampleRow& row) {
  for (int32_t i = row.penalty_begin; i < row.penalty_end; ++i) {
    float& x = l[plan.penalty[i].token];
    const int32_t count = plan.penalty[i].output_count;
    x = x > 0 ? x / row.repetition_penalty : x * row.repetition_penalty;
    x -= row.frequency_penalty * static_cast<float>(count);
    if (count > 0) x -= row.presence_penalty;
  }
  for (int32_t i = row.bias_begin; i < row.bias_end; ++i) l[plan.bias[i].token] += plan.bias[i].bias;
}

RowResult sample_row(float* l, int64_t vocab, const StepPlan& plan, const SampleRow& row, TokenId* top_tokens,
                     float* top_logprobs) {
  RowResult result;
  for (int64_t i = 0; i < vocab; ++i)
    if (std::isnan(l[i]) || l[i] == INFINITY) return result;
  std::vector<float> raw(l, l + vocab);
  apply_penalties(l, plan, row);
  std::vector<TokenId> order(vocab);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](TokenId a, TokenId b) { return l[a] > l[b]; });
  const float max = l[order[0]];
  if (max == -INFINITY) return result;
  result.is_finite = true;
  result.token = order[0];
  if (row.temperature > 0) {
    int64_t kept = row.top_k > 0 ? std::min<int64_t>(row.top_k, vocab) : vocab;
    std::vector<double> w(vocab, 0.0);
    double total = 0;
    for (int64_t i = 0; i < kept; ++i)
      total += w[order[i]] = std::exp((double{l[order[i]]} - max) / row.temperature);
    double sum = 0;
    for (int64_t i = 0; i < kept; ++i) {
      sum += w[order[i]];
      if (sum >= row.top_p * total) kept = i + 1;
    }
    total = 0;
    for (int64_t i = 0; i < vocab; ++i)
      if (i >= kept || w[order[i]] < row.min_p) w[order[i]] = 0;
    for (const double x : w) total += x;
    double u = sampling_uniform(row.rng, 0, row.position) * total;
    for (int64_t i = 0; i < vocab; ++i) {
      if (w[i] == 0) continue;
      result.token = static_cast<TokenId>(i);
      if ((u -= w[i]) < 0) break;
    }
  }
  if (row.num_logprobs < 0) return result;
  std::stable_sort(order.begin(), order.end(), [&](TokenId a, TokenId b) { return a < b; });
  std::stable_sort(order.begin(), order.end(), [&](TokenId a, TokenId b) { return raw[a] > raw[b]; });
  double sum = 0;
  for (const float x : raw) sum += std::exp(double{x} - raw[order[0]]);
  const double lse = raw[order[0]] + std::log(sum);
  result.logprob = static_cast<float>(raw[result.token] - lse);
  for (int64_t i = 0; i < std::min<int64_t>(row.num_logprobs, vocab); ++i) {
    top_tokens[i] = order[i];
    top_logprobs[i] = static_cast<float>(raw[order[i]] - lse);
  }
  return result;
}

}  // namespace

void sample(float* logits, int64_t vocab, const StepPlan& plan, StepOutput* out, ThreadPool& pool) {
  const int32_t n = plan.num_samples();
  out->clear();
  for (const SampleRow& row : plan.sample_rows)
    out->top_start.push_back(out->top_start.back() +
                             static_cast<int32_t>(std::clamp<int64_t>(row.num_logprobs, 0, vocab)));
  out->tokens.assign(n, 0);
  out->logprobs.assign(n, 0);
  out->is_finite.assign(n, 0);
  out->top_tokens.assign(out->top_start.back(), 0);
  out->top_logprobs.assign(out->top_start.back(), 0);
  pool.parallel_for(n, [&](int64_t i, int) {
    const int32_t top = out->top_start[i];
    const RowResult r = sample_row(logits + i * vocab, vocab, plan, plan.sample_rows[i],
                                   out->top_tokens.data() + top, out->top_logprobs.data() + top);
    out->tokens[i] = r.token;
    out->logprobs[i] = r.logprob;
    out->is_finite[i] = r.is_finite;
  });
}

}  // namespace llmb::cpu
