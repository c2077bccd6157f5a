// State slots: what a sequence's tokens leave behind in layers with a recurrent state. A sequence that runs has one; those
// that go on as copies of another share its slot until one of them computes its next token.
//
// A prefix is found again as far as there is a snapshot of the state behind it. Snapshots stand where others go on from
// what a sequence computes: its entry ends there, the snapshot takes a reference to its slot, and the sequence goes on in
// a copy. The next plan finds it.
//
// A state that was computed elsewhere comes as a snapshot, which stays until its sequence joins.
//
// Where a slot holds the open group of an int4 KV cache (SchedulerConfig::state_period) there are no snapshots: prefixes are
// found in whole blocks, behind which any slot will do.
#include <algorithm>
#include <functional>
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
  const int32_t first = sequence->next_write();
  LLMB_CHECK(shared >= 0 || (config_.state_period > 0 ? first % config_.state_period : first) == 0);
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

// Sets the positions in which others go on from what the sequence, which joins, computes: those that wait, and one that
// has left blocks behind which it has no snapshot.
void Scheduler::find_forks(const Shared& shared, Sequence* sequence) const {
  constexpr int32_t kMostWaiting = 64;  // that are looked at
  sequence->forks.clear();
  if (!keeps_snapshots_of(*sequence) || shared.group != kNoGroup) return;
  const auto add = [&](int32_t num_tokens) {
    num_tokens -= num_tokens % config_.block_size;
    if (num_tokens > shared.num_tokens) sequence->forks.push_back(num_tokens);
  };
  if (sequence->num_preemptions() == 0 && sequence->num_output_tokens() == 0) add(shared.num_in_blocks);
  const int32_t num_seats = std::min(config_.max_num_seqs, config_.max_num_batched_tokens) - num_running();
  int64_t num_joining = std::min<int64_t>(num_seats, num_candidates_ - 1);
  int32_t num_seen = 0;
  for (const Sequence* other : waiting_) {
    if (++num_seen > kMostWaiting) break;
    // Choices that join when the prompt has been computed share the state behind it.
    if (other->request == sequence->request && num_joining-- > 0) continue;
    if (other->request->adapter != sequence->request->adapter || !keeps_prefix_of(*other)) continue;
    const int32_t end = std::min(sequence->num_known_tokens(), other->max_shared_tokens());
    int32_t num_common = 0;
    while (num_common < end && sequence->token(num_common) == other->token(num_common)) ++num_common;
    add(num_common);
  }
  std::sort(sequence->forks.begin(), sequence->forks.end(), std::greater<>());
  sequence->forks.erase(std::unique(sequence->forks.begin(), sequence->forks.end()), sequence->forks.end());
}

// How many of the sequence's next tokens lie before its next fork.
int32_t Scheduler::up_to_fork(const Sequence& sequence, int32_t num_tokens) const {
  return sequence.forks.empty() ? num_tokens : std::min(num_tokens, sequence.forks.back() - sequence.next_base());
}

bool Scheduler::ends_at_fork(const Sequence& sequence, int32_t num_tokens) const {
  return !sequence.forks.empty() && sequence.next_base() + num_tokens == sequence.forks.back();
}

// The node of the cache that ends behind so many tokens of the sequence. REQUIRES: whole blocks, computed
NodeId Scheduler::node_behind(const Sequence& sequence, int32_t num_tokens) const {
  const int32_t size = config_.block_size;
  NodeId node = sequence.cache_node;
  int32_t num_blocks = sequence.num_blocks_in_cache;
  for (; num_blocks > num_tokens / size; --num_blocks) node = cache_.parent(node);
  std::vector<TokenId> scratch;
  for (; num_blocks < num_tokens / size; ++num_blocks) {
    const auto found =
        cache_.find(node, sequence.request->adapter, sequence.tokens(num_blocks * size, size, &scratch));
    if (found.num_tokens < size) return kNoNode;
    node = found.node;
  }
  return node;
}

// Keeps the sequence's state, if the plan that is made ends at a fork of it.
void Scheduler::keep_snapshot(Sequence* sequence) {
  if (sequence->forks.empty() || sequence->num_computed_tokens != sequence->forks.back()) return;
  sequence->forks.pop_back();
  const NodeId node = node_behind(*sequence, sequence->num_computed_tokens);
  if (node == kNoNode) return;
  states_.share(sequence->state_slot);
  if (const int32_t given_up = snapshots_.add(node, cache_.serial(node), sequence->state_slot); given_up >= 0)
    states_.release(given_up);
}

// For a sequence that waits, the snapshot behind the node's tokens. Returns the slot that it will be in, or -1: it is
// there. REQUIRES: has_room_for_state()
int32_t Scheduler::want_snapshot(NodeId node) {
  std::vector<int32_t> slot = {-1};
  if (snapshot(node) < 0) {
    // First, as all slots may be in use with a plan in flight.
    if (const int32_t given_up = snapshots_.make_room(); given_up >= 0) states_.release(given_up);
    slot.clear();
    LLMB_CHECK_MSG(states_.allocate(1, &slot), "no state slot is free");
    if (const int32_t stale = snapshots_.add(node, cache_.serial(node), slot[0]); stale >= 0) states_.release(stale);
  }
  snapshots_.want(node);
  return slot[0];
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
  if (snapshots_.slots().size() > static_cast<size_t>(config_.num_snapshots))
    return internal_error("more snapshots than there may be");
  for (const int32_t slot : snapshots_.slots()) ++num_held[static_cast<size_t>(slot)];
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
