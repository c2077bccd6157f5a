// Weights are exp((logit - max) / temperature), so the best has weight 1. Top-k, min-p and top-p each keep a prefix of
// the order (value descending, id ascending); a prefix is named by its last member, a Cut, found by selection without
// sorting the vocabulary. One task is a row; the passes over the vocabulary bind it (cache bandwidth).
#include "kernels/cpu/sample.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <optional>
#include <span>
#include <vector>

#include "base/check.h"
#include "base/per_thread.h"
#include "kernels/cpu/logit_passes.h"

namespace llmb::cpu {

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Memory of one thread, kept between rows and steps.
struct RowScratch {
  std::vector<float> values;  // a copy of the row, where the raw one is still wanted
  std::vector<float> maxima;  // of blocks
  std::vector<float> order;   // of maxima
  std::vector<Cut> candidates;
  std::vector<double> sums;  // of blocks
};

constexpr auto before = [](const Cut& a, const Cut& b) {
  return a.value > b.value || (a.value == b.value && a.id < b.id);
};

// Appends all values in [low, high) of indices [begin, end) to candidates, in order of ids.
void collect(const float* values, int64_t begin, int64_t end, float low, float high, std::vector<Cut>& candidates) {
  for (int64_t i = begin; (i = find_in_range(values, i, end, low, high)) < end; ++i)
    candidates.push_back({values[i], static_cast<int32_t>(i)});
}

// Makes the k best the first k candidates, the k-th at its place. REQUIRES: 1 <= k <= n, no NaN or +Inf.
void select_best(const float* values, int64_t n, int64_t k, RowScratch& s) {
  s.maxima.resize(ceil_div(n, kMaxBlock));
  block_maxima(values, n, s.maxima.data());
  float threshold = -kInfinity;
  if (k <= static_cast<int64_t>(s.maxima.size())) {  // the k best blocks each hold a value >= the k-th best maximum
    s.order = s.maxima;
    std::nth_element(s.order.begin(), s.order.begin() + (k - 1), s.order.end(), std::greater<>());
    threshold = s.order[k - 1];
  }
  s.candidates.clear();
  for (int64_t b = 0; b < ceil_div(n, kMaxBlock); ++b)
    if (s.maxima[b] >= threshold)
      collect(values, b * kMaxBlock, std::min(n, (b + 1) * kMaxBlock), threshold, kInfinity, s.candidates);
  std::nth_element(s.candidates.begin(), s.candidates.begin() + (k - 1), s.candidates.end(), before);
}

// The shortest prefix whose weights reach top_p of their total.
Cut nucleus(const float* weights, int64_t n, float top_p, RowScratch& s) {
  constexpr int64_t kFew = 256;
  s.sums.resize(ceil_div(n, kSumBlock));
  const double total = block_sums(weights, n, s.sums.data());
  // Weights below the mean of what may be left out sum to less than that, so the prefix ends before them; halved to be
  // safe from rounding. Always below 1, the best one's weight.
  const double left_out = (1.0 - top_p) * total / static_cast<double>(n);
  // Bisection on the bits of positive floats, which are in order: the prefix ends at a weight in [low, high).
  uint32_t low = std::bit_cast<uint32_t>(static_cast<float>(std::max(left_out / 2, 1e-45)));
  uint32_t high = std::bit_cast<uint32_t>(1.0f) + 1;
  UpperTail at_low = upper_tail(weights, n, std::bit_cast<float>(low)), at_high;
  const double wanted = top_p * total;
  while (at_low.count - at_high.count > kFew && high - low > 1) {
    const uint32_t middle = low + (high - low) / 2;
    const UpperTail tail = upper_tail(weights, n, std::bit_cast<float>(middle));
    (tail.sum >= wanted ? low : high) = middle;
    (tail.sum >= wanted ? at_low : at_high) = tail;
  }
  s.candidates.clear();
  collect(weights, 0, n, std::bit_cast<float>(low), std::bit_cast<float>(high), s.candidates);
  if (high - low > 1)
    std::sort(s.candidates.begin(), s.candidates.end(), before);  // otherwise equal, and in order of ids
  double need = wanted - at_high.sum;
  for (size_t i = 0; i + 1 < s.candidates.size(); ++i)
    if ((need -= s.candidates[i].value) <= 0) return s.candidates[i];
  return s.candidates.back();
}

// Inverse CDF over ids at u in [0, 1). REQUIRES: a positive weight.
TokenId draw(const float* weights, int64_t n, float u, RowScratch& s) {
  s.sums.resize(ceil_div(n, kSumBlock));
  const double total = block_sums(weights, n, s.sums.data());
  double rest = u * total;
  size_t block = 0;
  while (block + 1 < s.sums.size() && rest >= s.sums[block]) rest -= s.sums[block++];
  TokenId last = -1;
  for (int64_t i = static_cast<int64_t>(block) * kSumBlock; i < n; ++i) {
    if (!(weights[i] > 0)) continue;
    last = static_cast<TokenId>(i);
    if ((rest -= weights[i]) < 0) return last;
  }
  if (last >= 0) return last;
  int64_t i = n - 1;  // rounding carried past the last positive weight
  while (!(weights[i] > 0)) --i;
  return static_cast<TokenId>(i);
}

// Clobbers `values` (logits after bias and penalties, the best of them `max`).
TokenId draw_token(float* values, int64_t vocab, float max, const SampleRow& row, RowScratch& s) {
  if (row.top_k > 0 && row.top_k < vocab) {
    select_best(values, vocab, row.top_k, s);
    replace_after(s.candidates[row.top_k - 1], -kInfinity, vocab, values);
  }
  exp_weights(values, vocab, max, row.temperature, values);
  if (row.min_p > 0) replace_after({std::min(row.min_p, 1.0f), std::numeric_limits<int32_t>::max()}, 0, vocab, values);
  if (row.top_p < 1) replace_after(nucleus(values, vocab, row.top_p, s), 0, vocab, values);
  return draw(values, vocab, sampling_uniform(row.rng, row.choice, row.position), s);
}

// Most words of a mask allow nearly all tokens, or nearly none. Returns the largest logit that is left where none of them
// allows many: then there is no need to look for it.
std::optional<float> forbid_masked(std::span<const uint32_t> mask, int64_t vocab, float* logits) {
  std::optional<float> max = -kInfinity;
  for (int64_t begin = 0; begin < vocab; begin += 32) {
    const auto size = static_cast<int>(std::min<int64_t>(32, vocab - begin));
    const uint32_t word = mask[begin / 32];
    float* const x = logits + begin;
    if (word == 0 && size == 32) {
      std::fill_n(x, 32, -kInfinity);
      continue;
    }
    if (std::popcount(word) >= 16) {
      max.reset();
      for (uint32_t rest = ~word; rest != 0; rest &= rest - 1)
        if (const int i = std::countr_zero(rest); i < size) x[i] = -kInfinity;
      continue;
    }
    float kept[32];
    std::fill(kept, kept + 32, -kInfinity);
    for (uint32_t rest = word; rest != 0; rest &= rest - 1)
      if (const int i = std::countr_zero(rest); i < size) {
        kept[i] = x[i];
        if (max) max = std::max(*max, x[i]);
      }
    std::copy(kept, kept + size, x);
  }
  return max;
}

void apply_bias_and_penalties(const SampleInput& in, const SampleRow& row, float* logits) {
  constexpr float kMax = std::numeric_limits<float>::max();
  for (int32_t i = row.bias_begin; i < row.bias_end; ++i) {
    float& x = logits[in.bias[i].token];
    x = std::min(x + in.bias[i].bias, kMax);
  }
  for (int32_t i = row.penalty_begin; i < row.penalty_end; ++i) {
    float& x = logits[in.penalty[i].token];
    const int32_t count = in.penalty[i].output_count;
    x = x > 0 ? x / row.repetition_penalty : x * row.repetition_penalty;
    x -= row.frequency_penalty * static_cast<float>(count);
    if (count > 0) x -= row.presence_penalty;
    x = std::min(x, kMax);  // a tiny repetition penalty may overflow
  }
}

struct RowResult {
  TokenId token = 0;
  float logprob = 0;
  bool is_finite = false;
};

// `top` are the row's entries of top_tokens and top_logprobs.
RowResult sample_row(float* logits, int64_t vocab, const SampleInput& in, const SampleRow& row,
                     std::span<TokenId> top_tokens, std::span<float> top_logprobs) {
  RowScratch& s = per_thread<RowScratch>([] {});
  RowResult result;
  LogitScan scan = scan_logits(logits, vocab);
  const float raw_max = scan.max;
  if (!scan.is_finite || raw_max == -kInfinity) return result;

  float* values = logits;
  if (row.num_logprobs >= 0) {
    s.values.assign(logits, logits + vocab);
    values = s.values.data();
  }
  if (row.mask >= 0 || row.penalty_begin < row.penalty_end || row.bias_begin < row.bias_end) {
    std::optional<float> max;
    if (row.mask >= 0) max = forbid_masked(mask_of(row, in.masks, in.mask_words), vocab, values);
    const bool is_changed = row.penalty_begin < row.penalty_end || row.bias_begin < row.bias_end;
    apply_bias_and_penalties(in, row, values);
    if (max && !is_changed) scan.max = *max;
    else scan = scan_logits(values, vocab);
    if (!scan.is_finite || scan.max == -kInfinity) return result;
  }
  result.is_finite = true;
  result.token = row.temperature > 0 ? draw_token(values, vocab, scan.max, row, s)
                                     : static_cast<TokenId>(find_in_range(values, 0, vocab, scan.max, kInfinity));
  if (row.num_logprobs < 0) return result;

  exp_weights(logits, vocab, raw_max, 1, values);
  s.sums.resize(ceil_div(vocab, kSumBlock));
  const double log_sum = raw_max + std::log(block_sums(values, vocab, s.sums.data()));
  result.logprob = static_cast<float>(logits[result.token] - log_sum);
  if (top_tokens.empty()) return result;
  select_best(logits, vocab, static_cast<int64_t>(top_tokens.size()), s);
  std::sort(s.candidates.begin(), s.candidates.begin() + static_cast<std::ptrdiff_t>(top_tokens.size()), before);
  for (size_t i = 0; i < top_tokens.size(); ++i) {
    top_tokens[i] = s.candidates[i].id;
    top_logprobs[i] = static_cast<float>(s.candidates[i].value - log_sum);
  }
  return result;
}

}  // namespace

void sample(float* logits, int64_t vocab, const SampleInput& in, SampledRows* out, ThreadPool& pool) {
  LLMB_CHECK(vocab >= 1 && vocab <= std::numeric_limits<int32_t>::max());
  const size_t first = out->tokens.size(), end = first + in.rows.size();
  if (out->top_start.empty()) out->top_start.push_back(0);
  for (const SampleRow& row : in.rows)
    out->top_start.push_back(out->top_start.back() +
                             static_cast<int32_t>(std::clamp<int64_t>(row.num_logprobs, 0, vocab)));
  out->tokens.resize(end);
  out->logprobs.resize(end);
  out->is_finite.resize(end);
  out->top_tokens.resize(static_cast<size_t>(out->top_start.back()));
  out->top_logprobs.resize(static_cast<size_t>(out->top_start.back()));
  pool.parallel_for(static_cast<int64_t>(in.rows.size()), [&](int64_t i, int) {
    const size_t at = first + static_cast<size_t>(i);
    const size_t begin = static_cast<size_t>(out->top_start[at]), count = out->top_start[at + 1] - begin;
    const RowResult r =
        sample_row(logits + i * vocab, vocab, in, in.rows[i], std::span(out->top_tokens).subspan(begin, count),
                   std::span(out->top_logprobs).subspan(begin, count));
    out->tokens[at] = r.token;
    out->logprobs[at] = r.logprob;
    out->is_finite[at] = r.is_finite;
  });
}

}  // namespace llmb::cpu
