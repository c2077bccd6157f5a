// State slots: what a sequence's tokens leave behind in layers with a recurrent state. A sequence that runs has one; those
// that go on as copies of another share its slot until one of them computes its next token.
#include <algorithm>
#include <string>
#include <vector>

#include "base/check.h"
#include "scheduler/scheduler.h"

namespace llmb {

// A slot of its own to write to, if the model has states: in the place of one that others have too, of which it gets a copy.
void Scheduler::take_state(Sequence* sequence, StepPlan* plan) {
  if (config_.num_state_slots == 0) return;
  const int32_t shared = sequence->state_slot;
  if (shared >= 0) {
    const auto num_kept = std::count(states_copied_from_.begin(), states_copied_from_.end(), shared);
    if (states_.num_references(shared) - num_kept == 1) return;
  }
  LLMB_CHECK(shared >= 0 || sequence->next_write() == 0);
  std::vector<BlockId> own;
  LLMB_CHECK_MSG(states_.allocate(1, &own), "no state slot is free");
  sequence->state_slot = own[0];
  if (shared < 0) return;
  // Nobody gets it before the copy is made.
  states_copied_from_.push_back(shared);
  plan->state_copies.push_back({shared, own[0]});
}

void Scheduler::share_state(const Sequence& other, Sequence* sequence) {
  LLMB_CHECK(sequence->state_slot < 0);
  sequence->state_slot = other.state_slot;
  if (sequence->state_slot >= 0) states_.share(sequence->state_slot);
}

void Scheduler::let_go_of_state(Sequence* sequence) {
  if (sequence->state_slot >= 0) states_.release(sequence->state_slot);
  sequence->state_slot = -1;
}

// The plan that copies them, blocks and states, is made.
void Scheduler::release_copied() {
  for (const BlockId block : copied_from_) allocator_.release(block);
  copied_from_.clear();
  for (const int32_t slot : states_copied_from_) states_.release(slot);
  states_copied_from_.clear();
}

Status Scheduler::check_states() const {
  std::vector<int32_t> num_held(static_cast<size_t>(config_.num_state_slots));
  for (const auto& [id, sequence] : sequences_) {
    const int32_t slot = sequence->state_slot;
    if (slot >= 0 && !sequence->is_running) return internal_error("sequence " + std::to_string(id) + " waits with a state");
    const bool needs_one = config_.num_state_slots > 0 && sequence->num_computed_tokens > 0 && sequence->is_running;
    if (needs_one && slot < 0) return internal_error("sequence " + std::to_string(id) + " has no state");
    if (slot >= 0) ++num_held[static_cast<size_t>(slot)];
  }
  for (size_t slot = 0; slot < num_held.size(); ++slot)
    if (states_.num_references(static_cast<int32_t>(slot)) != num_held[slot])
      return internal_error("state slot " + std::to_string(slot) + " is lost or held too often");
  return states_.check_integrity();
}

}  // namespace llmb
