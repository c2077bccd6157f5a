// Scheduler::check_integrity: every invariant of scheduler.h and sequence.h that can be seen between two calls.
#include <algorithm>
#include <string>
#include <vector>

#include "core/layer_groups.h"
#include "scheduler/scheduler.h"

namespace llmb {

namespace {

Status broken(const std::string& invariant, const Sequence& s) {
  return internal_error("scheduler invariant broken: " + invariant + ": sequence " + std::to_string(s.id) + ", " +
                        std::to_string(s.num_computed_tokens) + " of " + std::to_string(s.num_known_tokens()) +
                        " tokens computed, " + std::to_string(s.blocks.num_blocks()) + " blocks, " +
                        std::to_string(s.num_memory_preemptions) + " preemptions for memory, " +
                        std::to_string(s.num_policy_preemptions) + " by policy");
}

Status check_sequence(const Sequence& s, int32_t num_levels) {
  if (s.awaits_fork && (!s.is_beam() || s.num_in_flight > 0)) return broken("a beam awaits its fork", s);
  const int32_t num_uncomputed = s.is_running && s.awaits_fork ? 0 : 1;
  if (s.num_computed_tokens < 0 || s.num_computed_tokens > s.num_known_tokens() - num_uncomputed + s.num_in_flight)
    return broken("computed <= known", s);
  if (s.max_new_tokens < 1 || s.num_output_tokens() + std::max(s.num_in_flight - 1, 0) >= s.max_new_tokens)
    return broken("output < max_new_tokens", s);
  if (s.num_in_flight > 0 && s.num_computed_tokens != s.num_known_tokens() - 1 + s.num_in_flight)
    return broken("known tokens are computed where tokens are unseen", s);
  if (s.num_memory_preemptions > kMaxPreemptions) return broken("preemptions <= kMaxPreemptions", s);
  if (s.num_policy_preemptions > num_levels) return broken("preemptions by policy <= levels", s);
  if (s.num_demotions > std::max(num_levels - 1, 0) || s.is_promoted > (num_levels > 0))
    return broken("changes of rank <= levels", s);
  return {};
}

}  // namespace

std::vector<SeqId> Scheduler::running_ids() const {
  std::vector<SeqId> ids;
  for (const Sequence* s : running_) ids.push_back(s->id);
  return ids;
}

Status Scheduler::check_running() const {
  int32_t num_ending = 0, num_lagging = 0;
  for (size_t i = 0; i < running_.size(); ++i) {
    const Sequence& s = *running_[i];
    LLMB_RETURN_IF_ERROR(check_sequence(s, config_.policy.num_levels));
    if (find(s.id) != &s || !s.is_running) return broken("running is found", s);
    if (s.wanted_node != kNoNode) return broken("running wants nothing back", s);
    if (i > 0 && !goes_before(*running_[i - 1], s)) return broken("running in order of rank", s);
    if (s.blocks.capacity_tokens() < s.num_computed_tokens) return broken("blocks >= computed", s);
    if (s.blocks.num_blocks() > ceil_div(s.num_known_tokens() + s.max_unseen_tokens(), config_.block_size))
      return broken("spare blocks", s);
    for (int32_t group = 0; group < s.blocks.num_groups(); ++group) {
      const int32_t num_unseen = first_seen(config_.windows[group], s.next_write()) / config_.block_size;
      if (s.blocks.num_live(group) != std::max(0, s.blocks.num_blocks() - num_unseen))
        return broken("blocks before the window are given back, and no others", s);
    }
    if ((s.num_pending_tokens() < 1) != s.awaits_fork) return broken("running has pending tokens", s);
    num_lagging += s.lags();
    if (num_lagging > 1) return broken("at most one lags, and sequences with tokens out of place", s);
    if (s.num_in_flight > (alternates() ? 1 : num_in_flight_)) return broken("groups of plans in flight", s);
    if (s.is_demotion_due && s.num_in_flight == 0) return broken("a demotion waits for plans in flight only", s);
    num_ending += s.ends_in_flight();
  }
  if (num_ending != num_ending_) return internal_error("scheduler invariant broken: sequences that end in flight");
  return {};
}

Status Scheduler::check_waiting() const {
  int64_t num_members = 0;
  const Sequence* previous = nullptr;
  for (const Sequence* s : waiting_) {
    LLMB_RETURN_IF_ERROR(check_sequence(*s, config_.policy.num_levels));
    if (find(s->id) != s || s->is_running || s->awaits_fork) return broken("waiting is found", *s);
    if (s->num_in_flight != 0 || s->is_demotion_due) return broken("waiting has seen its tokens", *s);
    LLMB_RETURN_IF_ERROR(check_wanted(*s));
    if (previous != nullptr && previous->is_member == s->is_member && !goes_before(*previous, *s))
      return broken("waiting in order of rank", *s);
    if (previous != nullptr && !previous->is_member && s->is_member) return broken("members of the batch first", *s);
    if (s->blocks.num_blocks() != 0 || s->num_computed_tokens != 0 || s->num_misplaced_tokens != 0 ||
        s->num_blocks_in_cache != 0 || s->cache_node != kNoNode)
      return broken("waiting holds nothing", *s);
    num_members += s->is_member;
    previous = s;
  }
  if (num_members != waiting_.num_members()) return internal_error("scheduler invariant broken: batch members");
  int64_t num_parked = 0;
  for (const auto& [id, s] : sequences_) {
    if (s->is_running || !s->awaits_fork) continue;
    if (s->blocks.num_blocks() != 0 || s->num_computed_tokens != 0 || s->num_blocks_in_cache != 0)
      return broken("parked holds nothing", *s);
    LLMB_RETURN_IF_ERROR(check_wanted(*s));
    ++num_parked;
  }
  if (sequences_.size() != running_.size() + static_cast<size_t>(num_waiting() + num_parked))
    return internal_error("scheduler invariant broken: every sequence runs, waits or is parked");
  return {};
}

// The tokens that it wants are its own.
Status Scheduler::check_wanted(const Sequence& s) const {
  if ((s.wanted_node != kNoNode) != (s.num_wanted_tokens > 0)) return broken("a wanted node has tokens", s);
  if (s.num_wanted_tokens > s.num_known_tokens()) return broken("wanted <= known", s);
  NodeId node = kNoNode;
  std::vector<TokenId> scratch;
  for (int32_t begin = 0; begin < s.num_wanted_tokens; begin += config_.block_size) {
    const int32_t num_tokens = std::min(config_.block_size, s.num_wanted_tokens - begin);
    const PrefixCache::Match match = cache_.find(node, s.request->adapter, s.tokens(begin, num_tokens, &scratch));
    if (match.num_ready_tokens != num_tokens) return broken("wanted tokens are found", s);
    // Another node may begin as one that is not full does.
    const bool is_whole = num_tokens == config_.block_size;
    if (is_whole ? begin + num_tokens == s.num_wanted_tokens && match.node != s.wanted_node
                 : cache_.parent(s.wanted_node) != node)
      return broken("wanted tokens lead to the wanted node", s);
    node = match.node;
  }
  return {};
}

Status Scheduler::check_cached(const Sequence& s) const {
  NodeId node = kNoNode;
  std::vector<TokenId> scratch;
  for (int32_t i = 0; i < s.num_blocks_in_cache; ++i) {
    const PrefixCache::Match match =
        cache_.find(node, s.request->adapter, s.tokens(i * config_.block_size, config_.block_size, &scratch));
    if (match.num_ready_tokens != config_.block_size)
      return broken("blocks in the prefix cache are found by their tokens", s);
    node = match.node;
    for (int32_t group = 0; group < num_groups(); ++group)
      if (config_.windows[group] == 0 && cache_.block(node, group) != s.blocks.blocks(group)[i])
        return broken("blocks that see everything stand in the sequence's nodes", s);
  }
  return node == s.cache_node ? Status() : broken("the sequence's node is that of its last block in the cache", s);
}

Status Scheduler::check_blocks() const {
  LLMB_RETURN_IF_ERROR(allocator_.check_integrity());
  LLMB_RETURN_IF_ERROR(cache_.check_integrity());
  std::vector<int32_t> num_holders(static_cast<size_t>(allocator_.num_blocks()));
  for (const Sequence* s : running_) {
    for (int32_t group = 0; group < s->blocks.num_groups(); ++group)
      for (const BlockId block : s->blocks.blocks(group))
        if (block != kNoBlock) ++num_holders[block];
    if (s->num_blocks_in_cache * int64_t{config_.block_size} > s->num_reusable_tokens())
      return broken("blocks in the prefix cache are full", *s);
    LLMB_RETURN_IF_ERROR(check_cached(*s));
    // The block that it writes next may be shared, and is then copied; later ones are its own.
    const int64_t own_from = (s->next_write() / config_.block_size + 1) * int64_t{config_.block_size};
    for (int64_t position = own_from; position < s->blocks.capacity_tokens(); position += config_.block_size)
      for (int32_t group = 0; group < s->blocks.num_groups(); ++group)
        if (s->blocks.is_shared(group, position, allocator_))
          return broken("a sequence writes to blocks of its own", *s);
  }
  for (BlockId block = 0; block < allocator_.num_blocks(); ++block)
    if (allocator_.num_references(block) != num_holders[block])
      return internal_error("scheduler invariant broken: block " + std::to_string(block) + " has " +
                            std::to_string(allocator_.num_references(block)) + " references and " +
                            std::to_string(num_holders[block]) + " sequences");
  return {};
}

Status Scheduler::check_integrity() const {
  LLMB_RETURN_IF_ERROR(check_running());
  LLMB_RETURN_IF_ERROR(check_waiting());
  LLMB_RETURN_IF_ERROR(check_blocks());
  LLMB_RETURN_IF_ERROR(check_states());
  if (num_running() > config_.max_num_seqs || num_running() > config_.max_num_batched_tokens)
    return internal_error("scheduler invariant broken: " + std::to_string(num_running()) + " sequences run");
  const int64_t num_members = waiting_.num_members();
  const int32_t batch_limit = config_.batching == BatchingMode::kNone ? 1 : config_.max_num_seqs;
  if (config_.batching != BatchingMode::kContinuous && num_running() + num_members > batch_limit)
    return internal_error("scheduler invariant broken: " + std::to_string(num_running() + num_members) +
                          " sequences in a batch of " + std::to_string(batch_limit));
  return {};
}

}  // namespace llmb
