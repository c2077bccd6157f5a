// Step plans by hand and by chance, for driving a backend without a scheduler.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "backend/backend.h"
#include "core/step_plan.h"

namespace llmb::test {

// The backend with its model, which it must be able to load.
std::unique_ptr<Backend> loaded(std::unique_ptr<Backend> backend, const ModelConfig& config,
                                const LoadOptions& options);

// Random weights; 16 sequences of at most 96 tokens, 64 tokens a step, 2 threads.
LoadOptions dummy_options();

// Appends sequences to a plan.
class PlanBuilder {
 public:
  explicit PlanBuilder(int32_t block_size, int32_t num_layer_groups = 1) {
    plan_.clear();
    plan_.block_size = block_size;
    plan_.num_layer_groups = num_layer_groups;
  }

  // Rows num_computed … num_computed + query_len - 1 of `tokens`, in the given blocks. With `sample`, the last of them
  // is sampled; its group and token_row are filled in here.
  PlanBuilder& add(const std::vector<TokenId>& tokens, int32_t num_computed, int32_t query_len,
                   const std::vector<BlockId>& blocks, const std::optional<SampleRow>& sample) {
    return add_in_groups(tokens, num_computed, query_len, {blocks}, sample);
  }
  // tables: [num_layer_groups]
  PlanBuilder& add_in_groups(const std::vector<TokenId>& tokens, int32_t num_computed, int32_t query_len,
                             const std::vector<std::vector<BlockId>>& tables, const std::optional<SampleRow>& sample);
  // One row behind `num_known` tokens: the token that a group of one row of the plan before gives.
  PlanBuilder& follow(int32_t group, int32_t num_known, const std::vector<BlockId>& blocks,
                      const std::optional<SampleRow>& sample);
  // Changes the entry that was added last.
  PlanBuilder& with_adapter(int32_t adapter) {
    plan_.entries.back().adapter = adapter;
    return *this;
  }
  PlanBuilder& with_state(int32_t slot) {
    plan_.entries.back().state_slot = slot;
    return *this;
  }
  const StepPlan& plan() const { return plan_; }

 private:
  StepPlan plan_;
};

struct GenerateRequest {
  std::vector<TokenId> prompt;
  int32_t num_tokens = 1;
  SampleRow sampling;  // temperature, rng, num_logprobs, …; its place is filled in
  int32_t adapter = -1;
};

struct Generated {
  std::vector<TokenId> tokens;
  std::vector<float> logprobs;
  std::vector<std::vector<TokenId>> top_tokens;
  std::vector<std::vector<float>> top_logprobs;
  bool operator==(const Generated&) const = default;
};

// Runs every request alone, its prompt in one step (or in chunks of max_num_tokens), blocks in order.
std::vector<Generated> generate_one_by_one(Backend& backend, const std::vector<GenerateRequest>& requests,
                                           int32_t max_num_tokens);

// Runs the requests in steps drawn from `seed`: random sequences in random order, random chunks, at most max_num_tokens
// tokens and max_num_seqs sequences a step, blocks handed out in random order and reused, now and then a sequence
// thrown out and computed again. In layer groups with a window, blocks before it are others' at once, while the tables
// still name them. REQUIRES: the pool holds all sequences at once.
std::vector<Generated> generate_at_random(Backend& backend, const std::vector<GenerateRequest>& requests,
                                          int32_t max_num_tokens, int32_t max_num_seqs, uint64_t seed);

}  // namespace llmb::test
