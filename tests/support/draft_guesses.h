// Guesses of a layer behind a model's last one behind texts of any lengths, to compare one backend's bits with another's.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "backend/backend.h"
#include "tests/support/check_ok.h"
#include "tests/support/plan_builder.h"
#include "tests/support/test_rng.h"

namespace llmb::test {

// Prompts in chunks, one by one; then twice, of all texts together, three drafts and a step that reads the token given
// before them: tokens and log probabilities. REQUIRES: blocks for all texts, each of up to max_tokens, in one table
inline std::vector<float> draft_layer_guesses(Backend& backend, int32_t vocab_size, const std::vector<int32_t>& lengths,
                                              int32_t chunk, int32_t max_tokens) {
  const int32_t block_size = backend.info().kv.block_size;
  const auto blocks_each = static_cast<int32_t>(ceil_div(max_tokens, block_size));
  const bool has_states = backend.info().num_state_slots > 0;
  std::vector<float> guesses;
  const auto run = [&](const StepPlan& plan) {
    StepOutput output;
    check_ok(backend.submit(plan));
    check_ok(backend.wait(&output));
    guesses.insert(guesses.end(), output.tokens.begin(), output.tokens.end());
    guesses.insert(guesses.end(), output.logprobs.begin(), output.logprobs.end());
    return output;
  };
  const auto blocks_of = [&](size_t text) {
    std::vector<BlockId> blocks(static_cast<size_t>(blocks_each));
    std::iota(blocks.begin(), blocks.end(), static_cast<BlockId>(text) * blocks_each);
    return blocks;
  };
  TestRng rng(7);
  std::vector<std::vector<TokenId>> texts;
  for (const int32_t length : lengths) {
    std::vector<TokenId>& tokens = texts.emplace_back();
    for (int32_t i = 0; i < length; ++i) tokens.push_back(rng.between(0, vocab_size - 1));
    for (int32_t at = 0, count; at < length; at += count) {
      count = std::min(length - at, chunk);
      const bool is_last = at + count == length;
      const auto sample = is_last ? std::optional(SampleRow{.num_logprobs = 0}) : std::nullopt;
      PlanBuilder builder(block_size);
      builder.add(tokens, at, count, blocks_of(texts.size() - 1), sample);
      if (has_states) builder.with_state(static_cast<int32_t>(texts.size()) - 1);
      const StepOutput output = run(builder.plan());
      if (is_last) tokens.push_back(output.tokens.at(0));
    }
  }
  const auto step_of_all = [&](bool is_mtp) {
    PlanBuilder builder(block_size);
    for (size_t t = 0; t < texts.size(); ++t) {
      const auto last = static_cast<int32_t>(texts[t].size()) - 1;
      builder.add(texts[t], last, 1, blocks_of(t), SampleRow{.num_logprobs = 4});
      if (has_states && !is_mtp) builder.with_state(static_cast<int32_t>(t));
    }
    StepPlan plan = builder.plan();
    plan.is_mtp = is_mtp;
    for (SampleGroup& group : plan.groups) group.mode = is_mtp ? SampleMode::kBest : group.mode;
    const StepOutput output = run(plan);
    for (size_t t = 0; t < texts.size(); ++t)
      texts[t].push_back(output.tokens.at(static_cast<size_t>(output.token_start.at(t))));
  };
  for (const int num_known : {1, 2}) {
    for (int draft = 0; draft < 3; ++draft) step_of_all(/*is_mtp=*/true);
    for (size_t t = 0; t < texts.size(); ++t) texts[t].resize(static_cast<size_t>(lengths[t] + num_known));
    step_of_all(/*is_mtp=*/false);
  }
  return guesses;
}

}  // namespace llmb::test
