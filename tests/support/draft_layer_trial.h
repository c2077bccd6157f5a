// Golden lines of a layer behind a model's last one (tools/golden/make_golden_mtp.py), run over a backend.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "backend/backend.h"
#include "core/step_plan.h"
#include "tests/support/check_ok.h"
#include "tests/support/plan_builder.h"

namespace llmb::test {

inline constexpr double kDraftLayerTolerance = 2e-4;

// For golden models, in float32.
inline LoadOptions draft_layer_options(const std::string& dir, int32_t block_size) {
  LoadOptions o;
  o.model_dir = dir;
  o.block_size = block_size;
  o.num_blocks_override = 64;
  o.max_num_seqs = 4;
  o.max_num_batched_tokens = 64;
  o.max_model_len = 64;
  o.num_threads = 2;
  o.dtype = o.kv_cache_dtype = DType::kF32;
  return o;
}

inline StepOutput run_plan(Backend& backend, const StepPlan& plan) {
  StepOutput output;
  check_ok(validate_step_plan(plan, backend.info().kv.num_blocks, nullptr, backend.info().num_host_blocks));
  check_ok(backend.submit(plan));
  check_ok(backend.wait(&output));
  return output;
}

// A golden line's prompt in chunks, its first blocks from another run of it where so many are given. Where errors of log
// probabilities are collected, arithmetic may draw other tokens and rank those next to each other otherwise.
class DraftLayerTrial {
 public:
  DraftLayerTrial(Backend& backend, const nlohmann::json& line, int32_t chunk, std::vector<double>* errors = nullptr)
      : backend_(backend),
        line_(line),
        chunk_(chunk),
        block_size_(backend.info().kv.block_size),
        errors_(errors) {
    tokens_ = line["prompt_token_ids"].get<std::vector<TokenId>>();
    for (BlockId block = 0; block * block_size_ < 64; ++block) blocks_.push_back(block);
  }

  // The blocks that hold the prompt, as copies between pools.
  std::vector<BlockCopy> blocks_of_prompt() const {
    std::vector<BlockCopy> blocks;
    for (BlockId block = 0; block * block_size_ < static_cast<int32_t>(line_["prompt_token_ids"].size()); ++block)
      blocks.push_back({0, block, block});
    return blocks;
  }
  // Goes along with the next plan.
  void swap(std::vector<BlockCopy> out, std::vector<BlockCopy> in) {
    swaps_out_ = std::move(out), swaps_in_ = std::move(in);
  }

  void read_prompt(int32_t first = 0) {
    const auto length = static_cast<int32_t>(tokens_.size());
    for (int32_t at = first; at < length; at += chunk_) {
      const int32_t count = std::min(chunk_, length - at);
      PlanBuilder builder(block_size_);
      const bool is_last = at + count == length;
      builder.add(tokens_, at, count, blocks_, is_last ? std::optional(SampleRow()) : std::nullopt);
      if (backend_.info().num_state_slots > 0) builder.with_state(0);
      const StepOutput output = run(builder.plan());
      if (is_last && is_exact()) REQUIRE(output.tokens.at(0) == line_["token"].get<TokenId>());
    }
    tokens_.push_back(line_["token"].get<TokenId>());
  }

  // With drafts in blocks of their own, behind those that hold the prompt.
  void check_guesses(bool copies_blocks) {
    std::vector<BlockCopy> copies;
    const auto base = static_cast<int32_t>(tokens_.size()) - 1;
    if (copies_blocks)
      for (size_t b = static_cast<size_t>(base / block_size_); b < blocks_.size(); ++b) {
        if (base % block_size_ != 0 && static_cast<int32_t>(b) == base / block_size_)
          copies.push_back({0, blocks_[b], 32 + blocks_[b]});
        blocks_[b] += 32;
      }
    for (const nlohmann::json& top : line_["top"]) {
      PlanBuilder builder(block_size_);
      builder.add(tokens_, static_cast<int32_t>(tokens_.size()) - 1, 1, blocks_, SampleRow{.num_logprobs = 4});
      StepPlan plan = builder.plan();
      plan.is_mtp = true;
      plan.groups[0].mode = SampleMode::kBest;
      plan.block_copies = std::exchange(copies, {});
      const StepOutput output = run(std::move(plan));
      REQUIRE(output.tokens.size() == 4);
      for (size_t rank = 0; rank < 4; ++rank) {
        if (is_exact()) CHECK(output.tokens[rank] == top[rank][0].get<TokenId>());
        const double error = std::abs(output.logprobs[rank] - expected_logprob(top, output.tokens[rank], rank));
        if (is_exact()) CHECK(error <= kDraftLayerTolerance);
        else errors_->push_back(error);
      }
      tokens_.push_back(top[0][0].get<TokenId>());
    }
  }

 private:
  bool is_exact() const { return errors_ == nullptr; }
  // The token's, or that of the rank where the golden best are others.
  static double expected_logprob(const nlohmann::json& top, TokenId token, size_t rank) {
    for (const nlohmann::json& known : top)
      if (known[0].get<TokenId>() == token) return known[1].get<double>();
    return top[rank][1].get<double>();
  }
  StepOutput run(StepPlan plan) {
    plan.swaps_out = std::exchange(swaps_out_, {}), plan.swaps_in = std::exchange(swaps_in_, {});
    return run_plan(backend_, plan);
  }

  Backend& backend_;
  const nlohmann::json& line_;
  const int32_t chunk_, block_size_;
  std::vector<double>* const errors_;  // null: tokens and log probabilities are those of fp32
  std::vector<BlockCopy> swaps_out_, swaps_in_;
  std::vector<TokenId> tokens_;
  std::vector<BlockId> blocks_;
};

// All lines, with their prompts in pieces of several sizes.
inline void check_draft_layer(Backend& backend, const std::vector<nlohmann::json>& lines) {
  REQUIRE(lines.size() > 5);
  CHECK(backend.info().has_mtp);
  for (const int32_t chunk : {64, 5, 1})
    for (const nlohmann::json& line : lines) {
      CAPTURE(chunk);
      CAPTURE(line["prompt_token_ids"].size());
      DraftLayerTrial trial(backend, line, chunk);
      trial.read_prompt();
      trial.check_guesses(chunk == 5);
    }
}

}  // namespace llmb::test
