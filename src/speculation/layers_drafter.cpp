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

LayersDrafter::LayersDrafter(Backend& target, const LayersDrafterOptions& options, const Clock& clock)
    : target_(target), options_(options), clock_(clock) {
  const BackendInfo& info = target.info();
  LLMB_CHECK(info.copies_blocks && (options.num_layers > 0 ? info.runs_first_layers : info.has_mtp));
  LLMB_CHECK(info.kv.groups.windows == std::vector<int32_t>{0});
}

void LayersDrafter::draft(std::span<const Sequence* const> sequences, const DraftLimits& limits,
                          std::span<Guess> guesses) {
  jobs_.clear();
  copies_.clear();
  num_scratch_used_ = 0;
  for (size_t i = 0; i < sequences.size(); ++i)
    if (!add_job(*sequences[i], limits.max_tokens, &guesses[i])) break;
  while (!has_failed_ && run_step(limits)) {
  }
}

// False: there are no blocks left.
bool LayersDrafter::add_job(const Sequence& sequence, int32_t max_tokens, Guess* guess) {
  const int32_t block_size = target_.info().kv.block_size, begin = sequence.num_computed_tokens;
  if (begin + 1 + max_tokens > options_.max_model_len || sequence.request->is_indivisible) return true;
  const int32_t num_whole = begin / block_size;
  const int32_t num_own = (begin + max_tokens - 1) / block_size + 1 - num_whole;
  if (num_scratch_used_ + num_own > options_.num_scratch) return false;
  const std::vector<BlockId>& blocks = sequence.blocks.blocks();
  Job job;
  job.guess = guess;
  job.table.assign(blocks.begin(), blocks.begin() + num_whole);
  job.text = std::make_unique<Sequence>(sequence.id, sequence.choice, sequence.request, BlockTable(block_size),
                                        sequence.max_new_tokens, 0);
  job.text->constraint = sequence.constraint == nullptr ? nullptr : sequence.constraint->clone();
  job.text->output_tokens = sequence.output_tokens;
  job.text->penalty_counts = sequence.penalty_counts;
  job.text->num_computed_tokens = begin;
  const BlockId first = options_.first_scratch + num_scratch_used_;
  for (int32_t i = 0; i < num_own; ++i) job.table.push_back(first + i);
  if (begin % block_size != 0) copies_.push_back({0, blocks[num_whole], first});
  num_scratch_used_ += num_own;
  jobs_.push_back(std::move(job));
  return true;
}

// For the jobs that go on; false: none does.
bool LayersDrafter::run_step(const DraftLimits& limits) {
  plan_.clear();
  plan_.block_size = target_.info().kv.block_size;
  plan_.num_layers = options_.num_layers;
  plan_.is_mtp = options_.num_layers == 0;
  plan_.block_copies = std::exchange(copies_, {});
  planned_.clear();
  for (Job& job : jobs_) {
    if (job.num_drawn == limits.max_tokens || job.probability < limits.min_probability) continue;
    if (job.last >= 0 && job.text->is_ending_token(job.guess->tokens[job.last])) continue;
    if (job.text->has_no_choice()) continue;
    append_entry(*job.text, 1, job.table, &plan_);
    plan_.sample_rows.back().num_logprobs = options_.guesses_trees ? DraftConfidence::kMaxRank + 1 : 0;
    ++job.text->num_computed_tokens;
    planned_.push_back(&job);
  }
  if (plan_.empty()) return false;
  const double begin_ms = clock_.now_ms();
  Status status = target_.submit(plan_);
  if (status.ok()) status = target_.wait(&output_);
  has_failed_ = !status.ok();
  if (has_failed_) {
    log_warning("drafts by the model's layers are given up: " + status.message());
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

double LayersDrafter::acceptance(const Sequence& sequence) const {
  if (has_failed_) return 0;
  const auto at = acceptance_of_.find(sequence.id);
  return at == acceptance_of_.end() ? acceptance_.share() : at->second.share();
}

void LayersDrafter::learn(const Sequence& sequence, const Guess& guess, std::span<const Verdict> verdicts) {
  confidence_.learn(guess, verdicts);
  const auto at = acceptance_of_.try_emplace(sequence.id, Acceptance(acceptance_.share(), 8)).first;
  for (int32_t i = 0; i < guess.size(); ++i) {
    if (verdicts[i] == Verdict::kUnknown || DraftConfidence::rank(guess.kinds[i]) > 0) continue;
    acceptance_.add(verdicts[i] == Verdict::kRight);
    at->second.add(verdicts[i] == Verdict::kRight);
  }
}

}  // namespace llmb
