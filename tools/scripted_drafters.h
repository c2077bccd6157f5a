// Drafters of a bench, which take no time.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "base/rng.h"
#include "speculation/drafter.h"

namespace llmb {

using Answers = std::map<int64_t, std::vector<TokenId>>;  // by request

// Right with a probability, at no cost. Request i is sequence i.
class ScriptedDrafter final : public Drafter {
 public:
  ScriptedDrafter(const Answers& answers, double right_rate) : answers_(answers), right_rate_(right_rate) {}
  std::string name() const override { return "script"; }
  void draft(std::span<const Sequence* const> sequences, const DraftLimits& limits, std::span<Guess> guesses) override {
    for (size_t i = 0; i < sequences.size(); ++i) {
      const std::vector<TokenId>& answer = answers_.at(sequences[i]->id);
      for (int32_t k = 0; k < limits.max_tokens; ++k) {
        const size_t at = sequences[i]->output_tokens.size() + k;
        if (at >= answer.size()) break;
        guesses[i].add(is_right(sequences[i]->id, at) ? answer[at] : answer[at] ^ 1, k - 1, right_rate_, 0);
      }
    }
  }
  void learn(const Sequence&, const Guess&, std::span<const Verdict>) override {}
  void forget(const Sequence&) override {}

  // That all answers take behind their prompts, with so many drafts in each.
  int64_t num_steps(int32_t num_drafts) const {
    int64_t num_steps = 0;
    for (const auto& [id, answer] : answers_)
      for (size_t at = 1; at < answer.size(); ++at, ++num_steps)
        for (int32_t k = 0; k < num_drafts && at + 1 < answer.size() && is_right(id, at); ++k) ++at;
    return num_steps;
  }

 private:
  bool is_right(int64_t id, size_t at) const {
    return sampling_uniform({1, static_cast<uint64_t>(id)}, at, 0) < right_rate_;
  }

  const Answers& answers_;
  const double right_rate_;
};

// As many drafts as it may, none of them right, and sure of them.
class WrongDrafter final : public Drafter {
 public:
  std::string name() const override { return "wrong"; }
  void draft(std::span<const Sequence* const>, const DraftLimits& limits, std::span<Guess> guesses) override {
    constexpr TokenId kUser = 2;  // of the bundled model, which begins no turn of the user's
    for (Guess& guess : guesses)
      for (int32_t k = 0; k < limits.max_tokens; ++k) guess.add(kUser, k - 1, 0.9, 0);
  }
  void learn(const Sequence&, const Guess&, std::span<const Verdict>) override {}
  void forget(const Sequence&) override {}
};

}  // namespace llmb
