#include "kernels/cpu/few_logits.h"

#include <algorithm>
#include <bit>
#include <cstddef>

namespace llmb::cpu {

namespace {

constexpr int kLanes = 16;  // of the vectorised sums

double sum_of(const double (&lanes)[kLanes]) {
  double sum = 0;
  for (const double lane : lanes) sum += lane;
  return sum;
}

}  // namespace

bool list_allowed(std::span<const uint32_t> mask, int64_t vocab, int64_t most, std::vector<TokenId>* tokens) {
  const auto word_at = [&](int64_t i) {
    const int64_t rest = vocab - i * 32;
    return rest >= 32 ? mask[i] : mask[i] & ((1u << rest) - 1);
  };
  const int64_t words = (vocab + 31) / 32;
  int64_t count = 0;
  for (int64_t i = 0; i < words; ++i)
    if (const uint32_t word = word_at(i); word != 0 && (count += std::popcount(word)) > most) return false;
  tokens->clear();
  tokens->reserve(static_cast<size_t>(count));
  for (int64_t i = 0; i < words; ++i)
    for (uint32_t word = word_at(i); word != 0; word &= word - 1)
      tokens->push_back(static_cast<TokenId>(i * 32 + std::countr_zero(word)));
  return true;
}

double block_sums_of_few(std::span<const float> values, std::span<const TokenId> tokens, int64_t vocab, double* sums) {
  double total = 0;
  size_t i = 0;
  for (int64_t begin = 0; begin < vocab; begin += kSumBlock) {
    const int64_t end = std::min(vocab, begin + kSumBlock), full = end - (end - begin) % kLanes;
    double sum = 0;
    if (i < tokens.size() && tokens[i] < full) {
      double lanes[kLanes] = {};
      for (; i < tokens.size() && tokens[i] < full; ++i) lanes[tokens[i] % kLanes] += values[i];
      sum = sum_of(lanes);
    }
    for (; i < tokens.size() && tokens[i] < end; ++i) sum += values[i];
    *sums++ = sum;
    total += sum;
  }
  return total;
}

UpperTail upper_tail_of_few(std::span<const float> values, std::span<const TokenId> tokens, int64_t vocab,
                            float threshold) {
  const int64_t full = vocab - vocab % kLanes;
  UpperTail tail;
  double lanes[kLanes] = {};
  size_t i = 0;
  for (; i < tokens.size() && tokens[i] < full; ++i) {
    if (!(values[i] >= threshold)) continue;
    lanes[tokens[i] % kLanes] += values[i];
    ++tail.count;
  }
  tail.sum = sum_of(lanes);
  for (; i < tokens.size(); ++i) {
    if (!(values[i] >= threshold)) continue;
    tail.sum += values[i];
    ++tail.count;
  }
  return tail;
}

}  // namespace llmb::cpu
