// Drafts of the plan that is made.
#include <algorithm>

#include "base/check.h"
#include "scheduler/scheduler.h"

namespace llmb {

namespace {

// A beam's tokens are chosen by somebody else.
bool may_have_drafts(const Sequence& sequence) { return !sequence.is_beam(); }

// It computes nothing but its last token, which is seen.
bool is_decoding(const Sequence& sequence) {
  return sequence.num_in_flight == 0 && sequence.num_pending_tokens() == 1 && sequence.num_output_tokens() > 0;
}

}  // namespace

void Scheduler::begin_proposals(bool has_blocks, int32_t num_rows) {
  decoding_.clear(), behind_.clear();
  PlanOutlook outlook;
  outlook.num_rows = num_rows;
  outlook.num_in_flight = num_in_flight_;
  outlook.alternates = alternates();
  outlook.num_alternating = config_.num_alternating;
  outlook.num_running = num_running();
  for (const Sequence* sequence : running_) {
    const bool is_unseen = sequence->num_in_flight > 0 && is_planned(*sequence);
    outlook.num_unseen += is_unseen;
    if (!has_blocks || !may_have_drafts(*sequence)) continue;
    if (is_decoding(*sequence)) decoding_.push_back(sequence);
    else if (is_unseen) behind_.push_back(sequence);
  }
  outlook.decoding = decoding_;
  outlook.behind = behind_;
  outlook.step = next_step_;
  outlook.lender = &allocator_;
  allocator_.allow_loans(num_lendable());
  proposer_->begin_plan(outlook);
  allocator_.allow_loans(0);
}

// Blocks that drafts may have in this plan, of which nothing is decided yet: whoever drafts at once may overwrite what its
// step is to read. No block is still to be moved to the host: where blocks were evicted, the plan they were taken for has
// rows. None are lent while a sequence waits that had to give up its own, nor those that running ones soon ask for: what is
// taken back has to be computed again.
int32_t Scheduler::num_lendable() const {
  LLMB_CHECK_MSG(!cache_.has_swaps_out(), "blocks were evicted before the plan was begun");
  if (waiting_.num_preempted() > 0) return 0;
  const auto num_growing = static_cast<int64_t>(running_.size()) * num_groups();
  const int64_t num_kept = std::min<int64_t>(num_growing, ceil_div(config_.num_blocks, 8));
  return static_cast<int32_t>(std::max<int64_t>(0, allocator_.num_unlent() - num_kept));
}

// To drafts_, with blocks for them.
void Scheduler::propose(Sequence* sequence, Spare* spare) {
  if (sequence->constraint == nullptr && proposer_ == nullptr) return;
  if (!may_have_drafts(*sequence) || spare->blocks < 0) return;
  // Other choices may join for the prompt's last row: then drafts would stand in a block that is theirs, too.
  const bool is_in_prompt = sequence->num_computed_tokens < sequence->num_prompt_tokens();
  if (is_in_prompt && sequence->request->params.sampling.num_choices > 1) return;
  const int32_t end = sequence->max_next_base() + sequence->num_pending_tokens();  // where the first draft may stand
  const int32_t num_groups = sequence->blocks.num_groups();
  const int64_t num_slots = sequence->blocks.capacity_tokens() + spare->blocks / num_groups * config_.block_size - end;
  const int64_t num_givable =  // and one token more
      int64_t{sequence->max_new_tokens} - sequence->num_output_tokens() - sequence->max_unseen_tokens() - 1;
  ChainLimits limits;
  limits.rows = static_cast<int32_t>(
      std::min({num_slots, num_givable, int64_t{spare->tokens}, int64_t{num_spare_rows_}}));
  if (limits.rows <= 0) return;
  limits.guesses = std::min(limits.rows, config_.max_drafts_per_group);
  if (proposer_ != nullptr && limits.guesses > 0) proposer_->propose(*sequence, limits.guesses, &drafts_);
  LLMB_CHECK_MSG(drafts_.is_valid(), "a draft whose parent is not a draft before it");
  drafts_.keep_first(limits.guesses);
  if (!config_.allows_trees) drafts_.keep_chain();
  if (sequence->constraint != nullptr)
    draft_states_ = constrain_drafts(*sequence, limits, &drafts_, &num_forced_drafts_);
  const int32_t num_blocks = sequence->blocks.num_blocks();
  LLMB_CHECK(sequence->blocks.grow_to(int64_t{end} + drafts_.size(), &allocator_));
  spare->blocks -= (sequence->blocks.num_blocks() - num_blocks) * num_groups;
  spare->tokens -= drafts_.size();
  num_spare_rows_ -= drafts_.size();
}

}  // namespace llmb
