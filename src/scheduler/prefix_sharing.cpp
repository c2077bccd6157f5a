// One prompt position that several sequences have is computed once: what a waiting sequence finds of its tokens, and
// what is kept of those that are computed.
#include <algorithm>
#include <span>
#include <utility>
#include <vector>

#include "base/check.h"
#include "scheduler/scheduler.h"

namespace llmb {

// The blocks of another choice or those of the prefix cache, whichever hold more. Where they hold as much they are the
// same. While a choice computes the prompt in this plan, the others wait: find_choice() counts on it that what running
// choices have of the prompt lies in memory.
Scheduler::Shared Scheduler::find_shared(const Sequence& candidate, const StepPlan& plan) const {
  const Shared by_choice = find_choice(candidate, plan);
  if (!keeps_prefix_of(candidate) || by_choice.must_wait) return by_choice;
  Shared cached = find_cached(candidate);
  return by_choice.num_tokens > cached.num_tokens ? by_choice : cached;
}

// Another choice of the request that runs may have computed the prompt, or be about to.
Scheduler::Shared Scheduler::find_choice(const Sequence& candidate, const StepPlan& plan) const {
  Shared shared;
  if (candidate.request->params.sampling.num_choices == 1 || candidate.next_to_score() != INT32_MAX) return shared;
  const bool has_output = candidate.num_output_tokens() > 0;
  // Without output the prompt's last token must be computed for what it samples.
  const int32_t num_tokens = candidate.num_prompt_tokens() - (has_output ? 0 : 1);
  bool is_being_computed = false;
  for (const Sequence* other : running_) {
    if (other->request != candidate.request || !other->blocks.has_seen_from(num_tokens)) continue;
    if (other->num_computed_tokens < candidate.num_prompt_tokens()) {
      is_being_computed = true;
      continue;
    }
    if (config_.num_state_slots > 0) continue;  // its state is that behind its newest token
    shared.from = other;
    shared.num_tokens = num_tokens;
    return shared;
  }
  for (int32_t g = 0; g < plan.num_groups() && !has_output; ++g) {
    const Sequence* other = planned_groups_[g];
    if (plan.groups[g].mode == SampleMode::kScore) continue;
    if (other->request != candidate.request || other->num_output_tokens() > 0 || other->num_in_flight > 0) continue;
    shared.from = other;
    shared.num_tokens = candidate.num_prompt_tokens();
    shared.group = g;
    return shared;
  }
  shared.must_wait = is_being_computed;
  return shared;
}

// Whole blocks may be shared with the sequence that computes them in this very plan. A part of a block is copied before
// the step, so it has to lie there. Who would have to wait for half a block or more of it waits: a sequence in this
// plan computes it, so the next plan finds it. For less than that, waiting costs more than it saves.
Scheduler::Shared Scheduler::find_cached(const Sequence& candidate) const {
  Shared shared;
  std::vector<TokenId> scratch;
  NodeId parent = kNoNode;
  const int32_t end = candidate.max_shared_tokens();
  while (shared.num_tokens < end) {
    const int32_t num_tokens = std::min(config_.block_size, end - shared.num_tokens);
    const PrefixCache::Match match =
        cache_.find(parent, candidate.request->adapter, candidate.tokens(shared.num_tokens, num_tokens, &scratch));
    if (match.num_tokens < config_.block_size) {
      if (!config_.copies_blocks || config_.num_state_slots > 0) break;  // a part of a block has no snapshot
      shared.must_wait = 2 * (match.num_tokens - match.num_ready_tokens) >= config_.block_size;
      if (!is_in_all_groups(match.ready_node)) break;
      shared.copy_from = match.ready_node;
      shared.num_tokens += match.num_ready_tokens;
      break;
    }
    parent = match.node;
    shared.nodes.push_back(parent);
    shared.num_tokens += config_.block_size;
  }
  shared.num_in_blocks = static_cast<int32_t>(shared.nodes.size()) * config_.block_size;
  cut_to_usable(&shared);
  count_blocks(&shared);
  return shared;
}

bool Scheduler::is_in_all_groups(NodeId node) const {
  for (int32_t group = 0; group < num_groups() && node != kNoNode; ++group)
    if (cache_.block(node, group) == kNoBlock && cache_.host_block(node, group) == kNoBlock) return false;
  return node != kNoNode;
}

// To the longest prefix for which every group has what the row behind it sees, and behind which there is a snapshot where
// sequences have recurrent states.
void Scheduler::cut_to_usable(Shared* shared) const {
  std::vector<int32_t> there_from(config_.windows.size());  // blocks of the group are there from this one to the last
  int32_t num_usable = 0;
  for (int32_t i = 0; i < static_cast<int32_t>(shared->nodes.size()); ++i) {
    bool is_usable = true;
    for (int32_t group = 0; group < num_groups(); ++group) {
      const NodeId node = shared->nodes[i];
      if (cache_.block(node, group) == kNoBlock && cache_.host_block(node, group) == kNoBlock) there_from[group] = i + 1;
      is_usable &= there_from[group] <= first_block_seen(group, (i + 1) * config_.block_size);
    }
    is_usable = is_usable && (!needs_snapshots() || snapshot(shared->nodes[i]) >= 0);
    if (is_usable) num_usable = i + 1;
  }
  if (num_usable > 0 && needs_snapshots()) shared->state_slot = snapshot(shared->nodes[num_usable - 1]);
  if (num_usable == static_cast<int32_t>(shared->nodes.size())) return;
  shared->nodes.resize(num_usable);
  shared->num_tokens = num_usable * config_.block_size;
  shared->copy_from = kNoNode;
  shared->must_wait = false;
}

// Blocks that it shares or copies and nobody references, and those it shares that are on the host only: what it copies from
// there comes into a block of its own.
void Scheduler::count_blocks(Shared* shared) const {
  shared->num_idle = shared->num_on_host = 0;
  for (int32_t group = 0; group < num_groups(); ++group) {
    for (auto i = static_cast<size_t>(first_block_seen(group, shared->num_tokens)); i < shared->nodes.size(); ++i) {
      const BlockId block = cache_.block(shared->nodes[i], group);
      shared->num_idle += cache_.is_idle(block);
      shared->num_on_host += block == kNoBlock;
    }
    if (shared->copy_from != kNoNode) shared->num_idle += cache_.is_idle(cache_.block(shared->copy_from, group));
  }
}

// The blocks that it found, to the sequence. What is copied from is held, too.
void Scheduler::share_cached(const Shared& shared, Sequence* sequence, StepPlan* plan) {
  for (int32_t group = 0; group < num_groups() && shared.copy_from != kNoNode; ++group)
    if (const BlockId from = cache_.block(shared.copy_from, group); from != kNoBlock) allocator_.share(from);
  if (shared.num_on_host > 0) bring_back(shared, plan);
  const auto num_nodes = static_cast<int32_t>(shared.nodes.size());
  std::vector<BlockId> blocks;
  for (int32_t group = 0; group < num_groups(); ++group) {
    blocks.assign(shared.nodes.size(), kNoBlock);
    for (int32_t i = first_block_seen(group, shared.num_tokens); i < num_nodes; ++i)
      blocks[i] = cache_.block(shared.nodes[i], group);
    sequence->blocks.share(group, blocks, &allocator_);
  }
  for (const BlockId block : brought_back_) allocator_.release(block);
  brought_back_.clear();
  if (shared.state_slot >= 0) {
    states_.share(sequence->state_slot = shared.state_slot);
    snapshots_.use(shared.nodes.back());
  }
  stand_at(shared.nodes.empty() ? kNoNode : shared.nodes.back(), num_nodes, sequence);
}

// From the host what is there only. All of these blocks are held meanwhile, so that none is taken for another.
void Scheduler::bring_back(const Shared& shared, StepPlan* plan) {
  std::vector<std::pair<NodeId, int32_t>> missing;
  for (int32_t group = 0; group < num_groups(); ++group)
    for (auto i = static_cast<size_t>(first_block_seen(group, shared.num_tokens)); i < shared.nodes.size(); ++i) {
      const BlockId block = cache_.block(shared.nodes[i], group);
      if (block == kNoBlock) {
        missing.emplace_back(shared.nodes[i], group);
        continue;
      }
      allocator_.share(block);
      brought_back_.push_back(block);
    }
  for (const auto& [node, group] : missing) {
    LLMB_CHECK(allocator_.allocate(1, &brought_back_));
    cache_.put_back(node, group, brought_back_.back());
    plan->swaps_in.push_back({group, cache_.host_block(node, group), brought_back_.back()});
  }
}

// The part of a block that it found, to one of its own.
void Scheduler::copy_part(const Shared& shared, Sequence* sequence, StepPlan* plan) {
  LLMB_CHECK(sequence->blocks.grow_to(shared.num_tokens, &allocator_));
  for (int32_t group = 0; group < num_groups(); ++group) {
    const BlockId from = cache_.block(shared.copy_from, group), own = sequence->blocks.blocks(group).back();
    if (from != kNoBlock) plan_copy({group, from, own}, plan);
    else plan->swaps_in.push_back({group, cache_.host_block(shared.copy_from, group), own});
  }
}

// The first `num_blocks` blocks of what the sequence has computed are known up to this node.
void Scheduler::stand_at(NodeId node, int32_t num_blocks, Sequence* sequence) {
  cache_.hold(node);
  cache_.let_go(std::exchange(sequence->cache_node, node));
  sequence->num_blocks_in_cache = num_blocks;
}

// The sequence shares the blocks of another, which begin with `num_full_blocks` of its own tokens.
void Scheduler::stand_beside(const Sequence& other, int32_t num_full_blocks, Sequence* sequence) {
  NodeId node = other.cache_node;
  int32_t num_blocks = other.num_blocks_in_cache;
  for (; num_blocks > num_full_blocks; --num_blocks) node = cache_.parent(node);
  stand_at(node, num_blocks, sequence);
}

// The plan being made computes `num_tokens` tokens more of the sequence.
void Scheduler::cache_planned(Sequence* sequence, int32_t num_tokens) {
  const int32_t num_ready = sequence->num_computed_tokens;
  cache_full_blocks(sequence, num_ready + num_tokens, num_ready);
  if (num_ready + num_tokens == sequence->num_known_tokens())
    cache_last_block(sequence, num_ready + num_tokens, num_ready);
}

// `num_tokens` of the sequence are in its blocks after the plan being made, `num_ready` before it.
void Scheduler::cache_full_blocks(Sequence* sequence, int32_t num_tokens, int32_t num_ready) {
  const int32_t block_size = config_.block_size;
  if (!has_uncached_block(*sequence, num_tokens) || !keeps_prefix_of(*sequence)) return;
  std::vector<TokenId> scratch;
  for (int32_t i = sequence->num_blocks_in_cache; (i + 1) * int64_t{block_size} <= num_tokens; ++i) {
    const int32_t num_ready_here = std::clamp(num_ready - i * block_size, 0, block_size);
    const NodeId node =
        cache_.insert(sequence->cache_node, sequence->request->adapter, sequence->tokens(i * block_size, block_size, &scratch),
                      num_ready_here, sequence->blocks.blocks_at(i, &blocks_at_));
    if (!takes_cached(sequence, i, node, num_ready < num_tokens)) return;
    stand_at(node, i + 1, sequence);
  }
}

// Where another sequence has computed the same, the sequence takes those blocks. One that the plan being made reads or
// writes, or that others hold, stays: given back, it could be written by another entry of that plan. False: so the
// sequence lacks one that sees everything, and nothing may stand behind it.
bool Scheduler::takes_cached(Sequence* sequence, int32_t i, NodeId node, bool is_planned) {
  bool has_all = true;
  for (int32_t group = 0; group < num_groups(); ++group) {
    const BlockId own = sequence->blocks.blocks(group)[i], same = cache_.block(node, group);
    if (own == kNoBlock || own == same) continue;
    const bool may_change = same != kNoBlock && !is_planned && allocator_.num_references(own) == 1;
    if (may_change) sequence->blocks.replace(group, i, same, &allocator_);
    else has_all &= config_.windows[group] > 0;
  }
  return has_all;
}

// So that others copy what a block holds that is not full. Returns the node that begins with it, or none.
NodeId Scheduler::cache_last_block(Sequence* sequence, int32_t num_tokens, int32_t num_ready) {
  const int32_t i = num_tokens / config_.block_size, begin = i * config_.block_size;
  if (!config_.copies_blocks || config_.num_state_slots > 0) return kNoNode;
  if (begin == num_tokens || sequence->num_blocks_in_cache < i || !keeps_prefix_of(*sequence)) return kNoNode;
  const std::span<const BlockId> blocks = sequence->blocks.blocks_at(i, &blocks_at_);
  if (std::all_of(blocks.begin(), blocks.end(), [](BlockId block) { return block == kNoBlock; })) return kNoNode;
  std::vector<TokenId> scratch;
  return cache_.insert(sequence->cache_node, sequence->request->adapter,
                       sequence->tokens(begin, num_tokens - begin, &scratch), std::max(num_ready - begin, 0), blocks);
}

// The cache keeps what its blocks hold for whoever asks for it next, for the sequence itself if it is preempted.
Scheduler::Cached Scheduler::cache_computed(Sequence* sequence) {
  const int32_t num_tokens = sequence->num_reusable_tokens();
  cache_full_blocks(sequence, num_tokens, num_tokens);
  if (const NodeId last = cache_last_block(sequence, num_tokens, num_tokens); last != kNoNode) return {last, num_tokens};
  return {sequence->cache_node, sequence->num_blocks_in_cache * config_.block_size};
}

// `computed` is what the sequence itself has, which is preempted or parked, or the beam that a parked one goes on behind: it
// moves to the host where it would be lost.
void Scheduler::want(const Cached& computed, Sequence* sequence) {
  const NodeId before = std::exchange(sequence->wanted_node, kNoNode);
  const int32_t num_before = std::exchange(sequence->num_wanted_tokens, 0);
  if (config_.num_host_blocks > 0 && !needs_snapshots() && computed.node != kNoNode) {
    cache_.want(computed.node, computed.num_tokens);
    sequence->wanted_node = computed.node;
    sequence->num_wanted_tokens = computed.num_tokens;
  }
  if (before == kNoNode) return;
  if (needs_snapshots()) snapshots_.unwant(before);
  cache_.unwant(before, num_before);
}

void Scheduler::receive(SeqId seq, int32_t num_tokens, PlacesToFill* to_fill) {
  Sequence& sequence = *find_mutable(seq);
  LLMB_CHECK(!sequence.is_running && !sequence.awaits_fork && sequence.wanted_node == kNoNode);
  *to_fill = {};
  if (config_.num_host_blocks == 0 || !keeps_prefix_of(sequence) || num_tokens > sequence.max_shared_tokens()) return;
  if (!has_room_for_state()) return;
  const std::span<const TokenId> tokens(sequence.request->prompt_tokens.data(), static_cast<size_t>(num_tokens));
  sequence.wanted_node = cache_.want_computed(sequence.request->adapter, tokens, &to_fill->blocks);
  if (sequence.wanted_node == kNoNode) return;
  sequence.num_wanted_tokens = num_tokens / config_.block_size * config_.block_size;
  if (needs_snapshots()) to_fill->state_slot = want_snapshot(sequence.wanted_node);
}

void Scheduler::unwant(Sequence* sequence) {
  want({}, sequence);
}

void Scheduler::let_go_of_blocks(Sequence* sequence) {
  sequence->blocks.release_all(&allocator_);
  let_go_of_state(sequence);
  stand_at(kNoNode, 0, sequence);
}

// The source keeps a reference until the plan is complete, so that nobody gets it meanwhile.
void Scheduler::plan_copy(BlockTable::Copy copy, StepPlan* plan) {
  copied_from_.push_back(copy.from);
  // A block that this plan copies holds by then what its source holds.
  const auto is_it = [&](const BlockCopy& other) { return other.to == copy.from; };
  const auto same = std::find_if(plan->block_copies.begin(), plan->block_copies.end(), is_it);
  const auto swap = std::find_if(plan->swaps_in.begin(), plan->swaps_in.end(), is_it);
  if (swap != plan->swaps_in.end()) {
    plan->swaps_in.push_back({copy.group, swap->from, copy.to});
    return;
  }
  plan->block_copies.push_back({copy.group, same == plan->block_copies.end() ? copy.from : same->from, copy.to});
}

}  // namespace llmb
