// One prompt position that several sequences have is computed once: what a waiting sequence finds of its tokens, and
// what is kept of those that are computed.
#include <algorithm>
#include <vector>

#include "scheduler/scheduler.h"

namespace llmb {

namespace {

constexpr int32_t kBaseModel = -1;  // no adapter

}  // namespace

Scheduler::Shared Scheduler::find_shared(const Sequence& candidate, const StepPlan& plan) const {
  Shared by_choice = find_choice(candidate, plan);
  if (!keeps_prefix_of(candidate) || by_choice.group != kNoGroup || by_choice.must_wait) return by_choice;
  Shared cached = find_cached(candidate);
  return by_choice.from != nullptr && by_choice.num_tokens >= cached.num_tokens ? by_choice : cached;
}

// Another choice of the request that runs may have computed the prompt, or be about to.
Scheduler::Shared Scheduler::find_choice(const Sequence& candidate, const StepPlan& plan) const {
  Shared shared;
  if (candidate.request->params.sampling.num_choices == 1) return shared;
  const bool has_output = candidate.num_output_tokens() > 0;
  // Without output the prompt's last token must be computed for what it samples.
  const int32_t num_tokens = candidate.num_prompt_tokens() - (has_output ? 0 : 1);
  for (const Sequence* other : running_) {
    if (other->request != candidate.request || !other->blocks.has_seen_from(num_tokens)) continue;
    if (other->num_computed_tokens >= num_tokens) {
      shared.from = other;
      shared.num_tokens = num_tokens;
      shared.must_wait = false;
      return shared;
    }
    shared.must_wait = true;
  }
  for (int32_t g = 0; g < plan.num_groups() && !has_output; ++g) {
    const Sequence* other = planned_groups_[g];
    if (other->request != candidate.request || other->num_output_tokens() > 0 || other->num_in_flight > 0) continue;
    shared.from = other;
    shared.num_tokens = candidate.num_prompt_tokens();
    shared.group = g;
    shared.must_wait = false;
    return shared;
  }
  return shared;
}

// Whole blocks may be shared with the sequence that computes them in this very plan. A part of a block is copied before
// the step, so it has to lie there. Who would have to wait for half a block or more of it waits: a sequence in this
// plan computes it, so the next plan finds it. For less than that, waiting costs more than it saves.
Scheduler::Shared Scheduler::find_cached(const Sequence& candidate) const {
  Shared shared;
  std::vector<TokenId> scratch;
  BlockId parent = kNoBlock;
  // The last known token is computed for what it samples.
  const int32_t end = candidate.num_known_tokens() - 1;
  while (shared.num_tokens < end) {
    const int32_t num_tokens = std::min(config_.block_size, end - shared.num_tokens);
    const PrefixCache::Match match =
        cache_.find(parent, kBaseModel, candidate.tokens(shared.num_tokens, num_tokens, &scratch));
    if (match.num_tokens < config_.block_size) {
      if (!config_.copies_blocks) break;
      shared.must_wait = 2 * (match.num_tokens - match.num_ready_tokens) >= config_.block_size;
      if (!is_in_all_groups(match.ready_block)) break;
      shared.copy_from = match.ready_block;
      shared.num_tokens += match.num_ready_tokens;
      break;
    }
    parent = match.block;
    shared.blocks.push_back(parent);
    shared.num_tokens += config_.block_size;
  }
  cut_to_windows(&shared);
  shared.num_idle = num_idle(shared);
  return shared;
}

bool Scheduler::is_in_all_groups(BlockId first) const {
  for (int32_t group = 1; group < num_groups() && first != kNoBlock; ++group)
    if (cache_.beside(first, group) == kNoBlock) return false;
  return first != kNoBlock;
}

// To the longest prefix for which every group has what the row behind it sees.
void Scheduler::cut_to_windows(Shared* shared) const {
  std::vector<int32_t> there_from(config_.windows.size());  // blocks of the group are there from this one to the last
  int32_t num_usable = 0;
  for (int32_t i = 0; i < static_cast<int32_t>(shared->blocks.size()); ++i) {
    bool is_usable = true;
    for (int32_t group = 1; group < num_groups(); ++group) {
      if (cache_.beside(shared->blocks[i], group) == kNoBlock) there_from[group] = i + 1;
      is_usable &= there_from[group] <= first_block_seen(group, (i + 1) * config_.block_size);
    }
    if (is_usable) num_usable = i + 1;
  }
  if (num_usable == static_cast<int32_t>(shared->blocks.size())) return;
  shared->blocks.resize(num_usable);
  shared->num_tokens = num_usable * config_.block_size;
  shared->copy_from = kNoBlock;
  shared->must_wait = false;
}

// Blocks that it shares or copies and nobody references.
int32_t Scheduler::num_idle(const Shared& shared) const {
  int32_t count = 0;
  for (int32_t group = 0; group < num_groups(); ++group) {
    for (auto i = static_cast<size_t>(first_block_seen(group, shared.num_tokens)); i < shared.blocks.size(); ++i)
      count += cache_.is_idle(cache_.beside(shared.blocks[i], group));
    if (shared.copy_from != kNoBlock) count += cache_.is_idle(cache_.beside(shared.copy_from, group));
  }
  return count;
}

// The blocks that it found, to the sequence.
void Scheduler::share_cached(const Shared& shared, Sequence* sequence) {
  for (int32_t group = 0; group < num_groups(); ++group) {
    std::vector<BlockId> blocks = shared.blocks;
    for (int32_t i = 0; i < static_cast<int32_t>(blocks.size()); ++i)
      blocks[i] = i < first_block_seen(group, shared.num_tokens) ? kNoBlock : cache_.beside(blocks[i], group);
    sequence->blocks.share(group, blocks, &allocator_);
  }
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
  const std::vector<BlockId>& blocks = sequence->blocks.blocks();
  std::vector<TokenId> scratch;
  for (int32_t& i = sequence->num_blocks_in_cache; (i + 1) * int64_t{block_size} <= num_tokens; ++i) {
    const BlockId parent = i == 0 ? kNoBlock : blocks[i - 1];
    const int32_t num_ready_here = std::clamp(num_ready - i * block_size, 0, block_size);
    const BlockId same = cache_.insert(parent, kBaseModel, sequence->tokens(i * block_size, block_size, &scratch),
                                       num_ready_here, blocks[i]);
    if (same == blocks[i]) {
      cache_beside(sequence, i, num_ready < num_tokens);
      continue;
    }
    // Another sequence has computed the same. A block that the plan being made writes, or that others hold, stays.
    if (num_ready < num_tokens || allocator_.num_references(blocks[i]) > 1) return;
    sequence->blocks.replace(0, i, same, &allocator_);
    cache_beside(sequence, i, false);
  }
}

// The other groups' blocks of the same tokens.
void Scheduler::cache_beside(Sequence* sequence, int32_t i, bool is_planned) {
  for (int32_t group = 1; group < num_groups(); ++group) {
    const BlockId own = sequence->blocks.blocks(group)[i];
    if (own == kNoBlock) continue;
    const BlockId same = cache_.put_beside(sequence->blocks.blocks()[i], group, own);
    if (same == own || same == kNoBlock || is_planned || allocator_.num_references(own) > 1) continue;
    sequence->blocks.replace(group, i, same, &allocator_);
  }
}

// So that others copy what a block holds that is not full.
void Scheduler::cache_last_block(Sequence* sequence, int32_t num_tokens, int32_t num_ready) {
  const int32_t i = num_tokens / config_.block_size, begin = i * config_.block_size;
  if (!config_.copies_blocks || begin == num_tokens || sequence->num_blocks_in_cache < i || !keeps_prefix_of(*sequence))
    return;
  const std::vector<BlockId>& blocks = sequence->blocks.blocks();
  std::vector<TokenId> scratch;
  const BlockId same =
      cache_.insert(i == 0 ? kNoBlock : blocks[i - 1], kBaseModel,
                    sequence->tokens(begin, num_tokens - begin, &scratch), std::max(num_ready - begin, 0), blocks[i]);
  if (same == blocks[i]) cache_beside(sequence, i, /*is_planned=*/true);
}

// The cache keeps what they hold for whoever asks for it next, for the sequence itself if it is preempted.
void Scheduler::give_back_blocks(Sequence* sequence) {
  const int32_t num_tokens = sequence->num_reusable_tokens();
  cache_full_blocks(sequence, num_tokens, num_tokens);
  cache_last_block(sequence, num_tokens, num_tokens);
  sequence->blocks.release_all(&allocator_);
  sequence->num_blocks_in_cache = 0;
}

// The source keeps a reference until the plan is complete, so that nobody gets it meanwhile.
void Scheduler::plan_copy(BlockTable::Copy copy, StepPlan* plan) {
  copied_from_.push_back(copy.from);
  // A block that this plan copies holds by then what its source holds.
  const auto is_it = [&](const BlockCopy& other) { return other.to == copy.from; };
  const auto same = std::find_if(plan->block_copies.begin(), plan->block_copies.end(), is_it);
  plan->block_copies.push_back({copy.group, same == plan->block_copies.end() ? copy.from : same->from, copy.to});
}

}  // namespace llmb
