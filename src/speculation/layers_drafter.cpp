#include "speculation/layers_drafter.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "scheduler/plan_builder.h"

namespace llmb {

int32_t LayersDrafter::blocks_per_sequence(int32_t max_tokens, int32_t block_size) {
  return 1 + static_cast<int32_t>(ceil_div(max_tokens, block_size));
}

LayersDrafter::LayersDrafter(Backend& target, const LayersDrafterOptions& options, const Clock& clock, OwnDrafts own)
    : target_(target), own_queue_(std::move(own.queue)), options_(options), clock_(clock) {
  const BackendInfo& info = target.info();
  LLMB_CHECK(info.copies_blocks && (options.num_layers > 0 ? info.runs_first_layers : info.has_mtp));
  LLMB_CHECK(info.kv.groups.windows == std::vector<int32_t>{0});
  LLMB_CHECK((own_queue_ == nullptr) == (own.feed == nullptr));
  if (!own_queue_) return;
  const auto see = [this](const UnseenStep& step, const StepOutput& output) {
    cost_.observe(step.plan.num_entries(), /*num_context_tokens=*/0, output.device_ms);
    return Status();
  };
  unseen_.emplace(*own_queue_, std::move(own.feed), see);
}

void LayersDrafter::draft(std::span<const Sequence* const> sequences, const DraftLimits& limits,
                          std::span<Guess> guesses) {
  jobs_.clear();
  num_scratch_used_ = 0;
  for (size_t i = 0; i < sequences.size(); ++i)
    if (!add_job(*sequences[i], limits.max_tokens, &guesses[i])) break;
  while (!has_failed_ && run_step(limits)) {
  }
  if (!has_failed_ && unseen_) feed(limits);
}

// False: there are no blocks left. Where the first draft stands is known, but behind drafts in flight: there it writes to
// the sequence's own blocks, in which the plan in flight writes as far as its drafts stand, and which the next plan
// overwrites before anybody reads them.
bool LayersDrafter::add_job(const Sequence& sequence, int32_t max_tokens, Guess* guess) {
  const int32_t block_size = target_.info().kv.block_size, begin = sequence.max_next_base();  // at most
  if (begin + 1 + max_tokens > options_.max_model_len || sequence.request->is_indivisible) return true;
  const std::vector<BlockId>& blocks = sequence.blocks.blocks();
  const bool is_behind_drafts = sequence.max_unseen_tokens() > 1;
  const int32_t num_shared = is_behind_drafts ? static_cast<int32_t>(blocks.size()) : begin / block_size;
  const int32_t num_own = std::max(0, (begin + max_tokens - 1) / block_size + 1 - num_shared);
  if (num_scratch_used_ + num_own > options_.num_scratch) return false;
  Job job;
  job.guess = guess;
  job.table.assign(blocks.begin(), blocks.begin() + num_shared);
  job.text = std::make_unique<Sequence>(sequence.id, sequence.choice, sequence.request, BlockTable(block_size),
                                        sequence.max_new_tokens, 0);
  job.text->constraint = sequence.constraint == nullptr ? nullptr : sequence.constraint->clone();
  job.text->output_tokens = sequence.output_tokens;
  job.text->penalty_counts = sequence.penalty_counts;
  job.text->num_computed_tokens = sequence.num_computed_tokens;
  if (sequence.num_in_flight > 0) job.text->add_group_in_flight(sequence.in_flight[0]);
  const BlockId first = options_.first_scratch + num_scratch_used_;
  for (int32_t i = 0; i < num_own; ++i) job.table.push_back(first + i);
  if (!is_behind_drafts && begin % block_size != 0) job.copy = BlockCopy{0, blocks[num_shared], first};
  job.is_fed = is_fed(*job.text);
  LLMB_CHECK(job.is_fed || sequence.num_in_flight == 0);
  job.acceptance = acceptance(sequence);
  num_scratch_used_ += num_own;
  jobs_.push_back(std::move(job));
  return true;
}

// As in ModelDrafter.
bool LayersDrafter::is_fed(const Sequence& text) const {
  return unseen_ && !options_.guesses_trees && !text.penalty_counts && text.constraint == nullptr;
}

bool LayersDrafter::guesses_behind(const Sequence& sequence) const { return is_fed(sequence); }

void LayersDrafter::begin_plan(StepPlan* plan) const {
  plan->clear();
  plan->block_size = target_.info().kv.block_size;
  plan->num_layers = options_.num_layers;
  plan->is_mtp = options_.num_layers == 0;
}

void LayersDrafter::append_row(Job& job, StepPlan* plan) {
  append_entry(*job.text, 1, job.table, plan);
  if (job.copy) plan->block_copies.push_back(*std::exchange(job.copy, std::nullopt));
}

// For the jobs that go on and are drafted for by way of the host; false: none does.
bool LayersDrafter::run_step(const DraftLimits& limits) {
  begin_plan(&plan_);
  planned_.clear();
  for (Job& job : jobs_) {
    if (job.is_fed || is_long_enough(job, limits)) continue;
    if (job.last >= 0 && job.text->is_ending_token(job.guess->tokens[job.last])) continue;
    if (job.text->has_no_choice()) continue;
    append_row(job, &plan_);
    plan_.sample_rows.back().num_logprobs = options_.guesses_trees ? DraftConfidence::kMaxRank + 1 : 0;
    ++job.text->num_computed_tokens;
    planned_.push_back(&job);
  }
  if (plan_.empty()) return false;
  const double begin_ms = clock_.now_ms();
  Status status = target_.submit(plan_);
  if (status.ok()) status = target_.wait(&output_);
  if (!status.ok()) {
    give_up(status);
    return false;
  }
  cost_.observe(plan_.num_entries(), /*num_context_tokens=*/0, clock_.now_ms() - begin_ms);
  for (size_t g = 0; g < planned_.size(); ++g) {
    if (output_.token_start[g + 1] == output_.token_start[g]) return false;  // its logits are not finite
    Job& job = *planned_[g];
    const bool is_sampled = job.text->request->params.sampling.temperature > 0;
    job.last = confidence_.add(output_, static_cast<int32_t>(g), is_sampled, job.last, job.guess);
    job.text->append_token(job.guess->tokens[job.last]);
    job.probability *= job.guess->acceptance[job.last];
    ++job.num_drawn;
  }
  return true;
}

// For the others.
void LayersDrafter::feed(const DraftLimits& limits) {
  unseen_->begin_guesses(limits.plan);
  while (feed_step(limits)) {
  }
  if (unseen_->failure().ok()) return;
  give_up(unseen_->failure());
  for (Job& job : jobs_)
    if (job.is_fed) job.guess->clear();
}

bool LayersDrafter::feed_step(const DraftLimits& limits) {
  const auto goes_on = [&](const Job& job) { return job.is_fed && !is_long_enough(job, limits); };
  if (std::ranges::none_of(jobs_, goes_on)) return false;
  UnseenStep& step = unseen_->begin();
  begin_plan(&step.plan);
  for (Job& job : jobs_) {
    if (!goes_on(job)) continue;
    if (!unseen_->has_slot()) break;
    append_row(job, &step.plan);
    unseen_->add_draft(job.acceptance, job.text.get(), job.guess);
    job.probability *= job.acceptance;
    ++job.num_drawn;
  }
  return unseen_->submit();
}

void LayersDrafter::give_up(const Status& status) {
  if (!has_failed_) log_warning("drafts by the model's layers are given up: " + status.message());
  has_failed_ = true;
}

double LayersDrafter::acceptance(const Sequence& sequence) const {
  if (has_failed_) return 0;
  const auto at = acceptance_of_.find(sequence.id);
  return at == acceptance_of_.end() ? acceptance_.share() : at->second.share();
}

void LayersDrafter::see_drafts(std::span<TokenId> tokens) {
  if (!unseen_) return;
  unseen_->put_tokens(tokens);
  if (!unseen_->failure().ok()) give_up(unseen_->failure());
}

void LayersDrafter::learn(const Sequence& sequence, const Guess& guess, std::span<const Verdict> verdicts) {
  const Guess seen = unseen_ ? unseen_->with_kinds(guess) : guess;
  confidence_.learn(seen, verdicts);
  const auto at = acceptance_of_.try_emplace(sequence.id, Acceptance(acceptance_.share(), 8)).first;
  for (int32_t i = 0; i < seen.size(); ++i) {
    if (verdicts[i] == Verdict::kUnknown || DraftConfidence::rank(seen.kinds[i]) > 0) continue;
    acceptance_.add(verdicts[i] == Verdict::kRight);
    at->second.add(verdicts[i] == Verdict::kRight);
  }
}

}  // namespace llmb
