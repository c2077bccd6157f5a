// How far the sequences under way have come, in tokens, and how many rows of a step are of which kind.
#pragma once

#include <algorithm>
#include <cstdint>
#include <unordered_map>

#include "core/step_plan.h"

namespace llmb {

// A step's rows. A row is recomputed where an earlier step computed the same position for the sequence.
struct StepRows {
  int64_t num_prompt = 0, num_recomputed = 0;
  int64_t num_output = 0;  // behind prompts, drafts included

  int64_t total() const { return num_prompt + num_recomputed + num_output; }
};

// The engine's thread's. Invariant: num_tokens() is the sum over the sequences of their prompt tokens that are computed
// or were found in the prefix cache, once for all choices of a request, and of their output tokens; what is computed
// again counts once.
class WorkCounter {
 public:
  void add(SeqId seq, int32_t num_prompt_tokens, bool is_first_choice) {
    sequences_[seq] = {num_prompt_tokens, 0, 0, is_first_choice};
  }
  // Counts the rows of a plan that has run, before its tokens are added.
  StepRows add_step(const StepPlan& plan);
  void add_output_token(SeqId seq);
  void remove(SeqId seq);
  int64_t num_tokens() const { return num_tokens_; }
  int64_t num_output_tokens() const { return num_output_tokens_; }  // of these

 private:
  struct Progress {
    int32_t num_prompt_tokens = 0, num_output_tokens = 0;
    int32_t end = 0;  // behind the last position that was computed or found, of known tokens
    bool counts_prompt = false;

    int64_t num_tokens() const {
      return (counts_prompt ? std::min(end, num_prompt_tokens) : 0) + int64_t{num_output_tokens};
    }
  };

  std::unordered_map<SeqId, Progress> sequences_;
  int64_t num_tokens_ = 0, num_output_tokens_ = 0;
};

}  // namespace llmb
