#include "speculation/draft_confidence.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace llmb {

namespace {
// Lower ends of the bins.
constexpr std::array<double, 12> kBins = {0, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.97};
}  // namespace

DraftConfidence::DraftConfidence() {
  static_assert(kBins.size() == kNumBins);
  for (int32_t kind = 0; kind < 2 * (kMaxRank + 1) * kNumBins; ++kind) {
    const int32_t bin = kind % kNumBins;
    const double end = bin + 1 < kNumBins ? kBins[bin + 1] : 1;
    by_kind_.emplace_back((kBins[bin] + end) / 2);  // until there is experience the model is believed
  }
}

int32_t DraftConfidence::bin_of(double probability) {
  int32_t bin = 0;
  while (bin + 1 < kNumBins && probability >= kBins[bin + 1]) ++bin;
  return bin;
}

int32_t DraftConfidence::kind_of(double probability, int32_t rank, bool is_sampled) {
  return ((is_sampled ? kMaxRank + 1 : 0) + rank) * kNumBins + bin_of(probability);
}

int32_t DraftConfidence::add(const StepOutput& output, int32_t group, bool is_sampled, int32_t parent,
                             Guess* guess) const {
  const int32_t at = output.token_start[group];
  const auto add_one = [&](TokenId token, float logprob, int32_t rank) {
    const int32_t kind = kind_of(std::exp(static_cast<double>(logprob)), rank, is_sampled);
    return guess->add(token, parent, by_kind_[kind].share(), kind);
  };
  const TokenId drawn = output.tokens[at];
  const int32_t place = add_one(drawn, output.logprobs[at], 0);
  int32_t rank = 1;
  for (int32_t i = output.top_start[at]; i < output.top_start[at + 1] && rank <= kMaxRank; ++i)
    if (output.top_tokens[i] != drawn) add_one(output.top_tokens[i], output.top_logprobs[i], rank++);
  return place;
}

void DraftConfidence::learn(const Guess& guess, std::span<const Verdict> verdicts) {
  for (int32_t i = 0; i < guess.size(); ++i)
    if (verdicts[i] != Verdict::kUnknown) by_kind_[guess.kinds[i]].add(verdicts[i] == Verdict::kRight);
}

}  // namespace llmb
