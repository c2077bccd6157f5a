// Scheduler::check_integrity: every invariant of scheduler.h and sequence.h that can be seen between two calls.
#include <algorithm>
#include <string>
#include <vector>

#include "scheduler/scheduler.h"

namespace llmb {

namespace {

Status broken(const std::string& invariant, const Sequence& s) {
  return internal_error("scheduler invariant broken: " + invariant + ": sequence " + std::to_string(s.id) + ", " +
                        std::to_string(s.num_computed_tokens) + " of " + std::to_string(s.num_known_tokens()) +
                        " tokens computed, " + std::to_string(s.blocks.num_blocks()) + " blocks, " +
                        std::to_string(s.num_preemptions) + " preemptions");
}

Status check_sequence(const Sequence& s) {
  if (s.num_computed_tokens < 0 || s.num_computed_tokens > s.num_known_tokens() - 1 + s.num_in_flight)
    return broken("computed <= known", s);
  if (s.max_new_tokens < 1 || s.num_output_tokens() + std::max(s.num_in_flight - 1, 0) >= s.max_new_tokens)
    return broken("output < max_new_tokens", s);
  if (s.num_in_flight > 0 && s.num_computed_tokens != s.num_known_tokens() - 1 + s.num_in_flight)
    return broken("known tokens are computed where tokens are unseen", s);
  if (s.num_preemptions > kMaxPreemptions) return broken("preemptions <= kMaxPreemptions", s);
  return {};
}

}  // namespace

Status Scheduler::check_sequences() const {
  SeqId previous = -1;
  int32_t num_ending = 0;
  for (const SequencePtr& s : running_) {
    LLMB_RETURN_IF_ERROR(check_sequence(*s));
    if (s->id <= previous) return broken("running in order of age", *s);
    if (s->blocks.capacity_tokens() < s->num_computed_tokens) return broken("blocks >= computed", *s);
    if (s->blocks.num_blocks() > ceil_div(s->num_known_tokens() + s->max_unseen_tokens(), config_.block_size))
      return broken("spare blocks", *s);
    if (s->num_pending_tokens() < 1) return broken("running has pending tokens", *s);
    if (s != running_.back() && s->num_pending_tokens() > 1 + s->num_misplaced_tokens)
      return broken("only the newest lags, and sequences with tokens out of place", *s);
    if (s->num_in_flight > num_in_flight_) return broken("groups of plans in flight", *s);
    num_ending += s->ends_in_flight();
    previous = s->id;
  }
  if (num_ending != num_ending_) return internal_error("scheduler invariant broken: sequences that end in flight");
  for (const SequencePtr& s : waiting_) {
    LLMB_RETURN_IF_ERROR(check_sequence(*s));
    if (s->num_in_flight != 0) return broken("waiting has seen its tokens", *s);
    if (s->id <= previous) return broken("waiting in order of age, younger than running", *s);
    if (s->blocks.num_blocks() != 0 || s->num_computed_tokens != 0) return broken("waiting holds nothing", *s);
    previous = s->id;
  }
  return {};
}

Status Scheduler::check_blocks() const {
  LLMB_RETURN_IF_ERROR(allocator_.check_integrity());
  std::vector<int32_t> num_holders(static_cast<size_t>(allocator_.num_blocks()));
  for (const SequencePtr& s : running_) {
    for (const BlockId block : s->blocks.blocks()) ++num_holders[block];
    // What it writes next may be shared, and is then copied; what comes after is its own.
    const int64_t own_from = (s->next_write() / config_.block_size + 1) * int64_t{config_.block_size};
    for (int64_t position = own_from; position < s->blocks.capacity_tokens(); position += config_.block_size)
      if (s->blocks.is_shared(position, allocator_)) return broken("a sequence writes to blocks of its own", *s);
  }
  for (BlockId block = 0; block < allocator_.num_blocks(); ++block)
    if (allocator_.num_references(block) != num_holders[block])
      return internal_error("scheduler invariant broken: block " + std::to_string(block) + " has " +
                            std::to_string(allocator_.num_references(block)) + " references and " +
                            std::to_string(num_holders[block]) + " sequences");
  return {};
}

Status Scheduler::check_integrity() const {
  LLMB_RETURN_IF_ERROR(check_sequences());
  LLMB_RETURN_IF_ERROR(check_blocks());
  if (num_running() > config_.max_num_seqs || num_running() > config_.max_num_batched_tokens)
    return internal_error("scheduler invariant broken: " + std::to_string(num_running()) + " sequences run");
  if (num_members_ < 0 || num_members_ > num_waiting())
    return internal_error("scheduler invariant broken: batch members");
  const int32_t batch_limit = config_.batching == BatchingMode::kNone ? 1 : config_.max_num_seqs;
  if (config_.batching != BatchingMode::kContinuous && num_running() + num_members_ > batch_limit)
    return internal_error("scheduler invariant broken: " + std::to_string(num_running() + num_members_) +
                          " sequences in a batch of " + std::to_string(batch_limit));
  return {};
}

}  // namespace llmb
