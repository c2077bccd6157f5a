// Weights are exp((logit - max) / temperature), so the best has weight 1. Top-k, min-p and top-p each keep a prefix of
// the order (value descending, id ascending); a prefix is named by its last member, a Cut, found by selection without
// sorting the vocabulary. One task is a row; the passes over the vocabulary bind it (cache bandwidth), so where a mask
// leaves few tokens all but the first look at these alone.
#include "kernels/cpu/sample.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <optional>
#include <span>
#include <vector>

#include "base/check.h"
#include "base/per_thread.h"
#include "kernels/cpu/best_logits.h"
#include "kernels/cpu/few_logits.h"
#include "kernels/cpu/logit_passes.h"
#include "kernels/cpu/sampled_row.h"

namespace llmb::cpu {

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// A mask that allows fewer tokens than this share of the vocabulary leaves few.
constexpr int64_t kFewShare = 16;
// A whole row is listed where fewer than this share of it are left: only then a pass over the list is the faster one.
constexpr int64_t kListShare = 32;

// Memory of one thread, kept between rows and steps.
struct RowScratch {
  std::vector<float> values;    // a copy of the row, where the raw one is still wanted
  std::vector<TokenId> tokens;  // the few that a mask or top-p leaves,
  std::vector<float> few;       // and their values
  BestLogits best;
  std::vector<double> sums;  // of blocks
};

// The values to choose from: a whole row, or the few tokens that a mask leaves of it. Both give the same bits.
struct Choices {
  float* values;                    // [size]
  int64_t size, vocab;              // equal for a whole row
  std::span<const TokenId> tokens;  // [size], ascending: whose values they are; empty for a whole row

  bool is_whole() const { return size == vocab; }
  std::span<const float> few() const { return {values, static_cast<size_t>(size)}; }
  TokenId token(int64_t i) const { return is_whole() ? static_cast<TokenId>(i) : tokens[i]; }
  int64_t first_from(int64_t token) const {
    return is_whole() ? token : std::lower_bound(tokens.begin(), tokens.end(), token) - tokens.begin();
  }
  // Null where the token may not be chosen.
  float* find(TokenId token) const {
    const int64_t i = first_from(token);
    return i < size && this->token(i) == token ? values + i : nullptr;
  }
  double block_sums(double* sums) const {
    return is_whole() ? cpu::block_sums(values, vocab, sums) : block_sums_of_few(few(), tokens, vocab, sums);
  }
  UpperTail upper_tail(float threshold) const {
    return is_whole() ? cpu::upper_tail(values, vocab, threshold) : upper_tail_of_few(few(), tokens, vocab, threshold);
  }
};

// The `count` weights of a whole row that are at least `least`.
Choices at_least(const Choices& weights, float least, int64_t count, RowScratch& s) {
  s.few.resize(static_cast<size_t>(count + kListSlack));
  s.tokens.resize(s.few.size());
  list_at_least(weights.values, weights.size, least, s.few.data(), s.tokens.data());
  return {s.few.data(), count, weights.vocab, std::span(s.tokens).first(static_cast<size_t>(count))};
}

// The shortest prefix whose weights reach top_p of their total. Where that leaves few of a whole row, `weights` become
// these few; sums over them have the bits of sums over the row.
Cut nucleus(Choices& weights, float top_p, RowScratch& s) {
  constexpr int64_t kFew = 256;
  s.sums.resize(ceil_div(weights.vocab, kSumBlock));
  const double total = weights.block_sums(s.sums.data());
  // Weights below the mean of what may be left out sum to less than that, so the prefix ends before them; halved to be
  // safe from rounding. Always below 1, the best one's weight.
  const double left_out = (1.0 - top_p) * total / static_cast<double>(weights.vocab);
  // Bisection on the bits of positive floats, which are in order: the prefix ends at a weight in [low, high).
  uint32_t low = std::bit_cast<uint32_t>(static_cast<float>(std::max(left_out / 2, 1e-45)));
  uint32_t high = std::bit_cast<uint32_t>(1.0f) + 1;
  UpperTail at_low = weights.upper_tail(std::bit_cast<float>(low)), at_high;
  const double wanted = top_p * total;
  const auto narrow = [&] {
    if (weights.is_whole() && at_low.count < weights.vocab / kListShare)
      weights = at_least(weights, std::bit_cast<float>(low), at_low.count, s);
  };
  narrow();
  while (at_low.count - at_high.count > kFew && high - low > 1) {
    const uint32_t middle = low + (high - low) / 2;
    const UpperTail tail = weights.upper_tail(std::bit_cast<float>(middle));
    (tail.sum >= wanted ? low : high) = middle;
    (tail.sum >= wanted ? at_low : at_high) = tail;
    narrow();
  }
  s.best.candidates.clear();
  collect(weights.values, 0, weights.size, std::bit_cast<float>(low), std::bit_cast<float>(high), s.best.candidates);
  if (high - low > 1)
    std::sort(s.best.candidates.begin(), s.best.candidates.end(), goes_before);  // otherwise equal, and in order of ids
  double need = wanted - at_high.sum;
  for (size_t i = 0; i + 1 < s.best.candidates.size(); ++i)
    if ((need -= s.best.candidates[i].value) <= 0) return s.best.candidates[i];
  return s.best.candidates.back();
}

// Inverse CDF over ids at u in [0, 1). REQUIRES: a positive weight.
TokenId draw(const Choices& weights, float u, RowScratch& s) {
  s.sums.resize(ceil_div(weights.vocab, kSumBlock));
  const double total = weights.block_sums(s.sums.data());
  double rest = u * total;
  size_t block = 0;
  while (block + 1 < s.sums.size() && rest >= s.sums[block]) rest -= s.sums[block++];
  int64_t last = -1;
  for (int64_t i = weights.first_from(static_cast<int64_t>(block) * kSumBlock); i < weights.size; ++i) {
    if (!(weights.values[i] > 0)) continue;
    last = i;
    if ((rest -= weights.values[i]) < 0) return weights.token(i);
  }
  if (last >= 0) return weights.token(last);
  int64_t i = weights.size - 1;  // rounding carried past the last positive weight
  while (!(weights.values[i] > 0)) --i;
  return weights.token(i);
}

// Clobbers the values (logits after bias and penalties, the best of them `max`).
TokenId draw_token(Choices choices, float max, const SampleRow& row, RowScratch& s) {
  float* const values = choices.values;
  if (row.top_k > 0 && row.top_k < choices.size) {
    s.best.select(values, choices.size, row.top_k);
    replace_after(s.best.candidates[row.top_k - 1], -kInfinity, choices.size, values);
  }
  exp_weights(values, choices.size, max, row.temperature, values);
  if (row.min_p > 0)
    replace_after({std::min(row.min_p, 1.0f), std::numeric_limits<int32_t>::max()}, 0, choices.size, values);
  if (row.top_p < 1) {
    const Cut last = nucleus(choices, row.top_p, s);
    replace_after(last, 0, choices.size, choices.values);
  }
  return draw(choices, sampling_uniform(row.rng, row.choice, row.position), s);
}

// The few tokens that a mask allows, with their logits; nothing where they are many.
std::optional<Choices> few_choices(const float* logits, int64_t vocab, std::span<const uint32_t> mask, RowScratch& s) {
  if (!list_allowed(mask, vocab, vocab / kFewShare, &s.tokens)) return std::nullopt;
  s.few.resize(s.tokens.size());
  for (size_t i = 0; i < s.tokens.size(); ++i) s.few[i] = logits[s.tokens[i]];
  return Choices{s.few.data(), static_cast<int64_t>(s.few.size()), vocab, s.tokens};
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
  const bool wants_logprobs = row.num_logprobs >= 0;
  if (wants_logprobs) s.values.resize(static_cast<size_t>(vocab));
  float* const values = wants_logprobs ? s.values.data() : logits;

  const std::span<const uint32_t> mask = mask_of(row, in.masks, in.mask_words);
  Choices choices{values, vocab, vocab, {}};
  LogitScan scan;
  float max = -kInfinity;
  const std::optional<Choices> few = mask.empty() ? std::nullopt : few_choices(logits, vocab, mask, s);
  if (few) {
    scan = scan_logits(logits, vocab);
    choices = *few;
    max = scan_logits(choices.values, choices.size).max;
  } else if (!mask.empty()) {
    scan = scan_masked_logits(logits, mask.data(), vocab, values, &max);
  } else {
    scan = scan_logits(logits, vocab);
    max = scan.max;
    if (wants_logprobs) std::copy_n(logits, vocab, values);
  }
  const float raw_max = scan.max;
  if (!scan.is_finite || raw_max == -kInfinity) return result;
  if (row.penalty_begin < row.penalty_end || row.bias_begin < row.bias_end) {
    apply_bias_and_penalties(in, row, [&](TokenId token) { return choices.find(token); });
    scan = scan_logits(choices.values, choices.size);
    max = scan.max;
  }
  if (!scan.is_finite || max == -kInfinity) return result;
  result.is_finite = true;
  result.token = row.temperature > 0 ? draw_token(choices, max, row, s)
                                     : choices.token(find_in_range(choices.values, 0, choices.size, max, kInfinity));
  if (!wants_logprobs) return result;

  exp_weights(logits, vocab, raw_max, 1, values);
  s.sums.resize(ceil_div(vocab, kSumBlock));
  const double log_sum = raw_max + std::log(block_sums(values, vocab, s.sums.data()));
  result.logprob = static_cast<float>(logits[result.token] - log_sum);
  if (top_tokens.empty()) return result;
  s.best.select(logits, vocab, static_cast<int64_t>(top_tokens.size()));
  const auto end_of_top = s.best.candidates.begin() + static_cast<std::ptrdiff_t>(top_tokens.size());
  std::sort(s.best.candidates.begin(), end_of_top, goes_before);
  for (size_t i = 0; i < top_tokens.size(); ++i) {
    top_tokens[i] = s.best.candidates[i].id;
    top_logprobs[i] = static_cast<float>(s.best.candidates[i].value - log_sum);
  }
  return result;
}

}  // namespace

void sample(float* logits, int64_t vocab, const SampleInput& in, SampledRows* out, ThreadPool& pool) {
  LLMB_CHECK(vocab >= 1 && vocab <= std::numeric_limits<int32_t>::max());
  const size_t first = add_rows(in, vocab, out);
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
