// A proposer that knows what a model will answer, and is as often right as it is told.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "scheduler/proposer.h"
#include "tests/support/test_rng.h"

namespace llmb::test {

struct ProposerScript {
  double propose_rate = 0;   // probability that a sequence gets drafts
  double right_rate = 0;     // that a draft behind right ones is right
  double tree_rate = 0;      // that drafts are a tree
  double must_see_rate = 0;  // that a sequence cannot be planned ahead
  double idle_rate = 0;      // that the backend must have nothing in flight, from when a plan is begun to the next one
};

class ScriptedProposer final : public Proposer {
 public:
  // The tokens of an answer; called once for each.
  using Answer = std::function<std::vector<TokenId>(const Request&, int32_t choice)>;

  ScriptedProposer(Answer answer, int32_t vocab_size, const ProposerScript& script, uint64_t seed)
      : answer_(std::move(answer)),
        vocab_size_(vocab_size),
        script_(script),
        seed_(seed),
        rng_(seed),
        idle_rng_(~seed) {}

  void begin_plan(const PlanOutlook& outlook) override;
  void propose(const Sequence& sequence, int32_t max_drafts, Drafts* drafts) override;
  bool must_see(const Sequence& sequence) const override;
  bool forms_one_plan() const override { return needs_idle_; }

 private:
  const std::vector<TokenId>& answer(const Sequence& sequence);

  const Answer answer_;
  const int32_t vocab_size_;
  const ProposerScript script_;
  const uint64_t seed_;
  TestRng rng_, idle_rng_;
  bool needs_idle_ = false;
  std::map<std::pair<const Request*, int32_t>, std::vector<TokenId>> answers_;  // by request and choice
};

}  // namespace llmb::test
