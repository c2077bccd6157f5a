#include "speculation/model_drafter.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/log.h"

namespace llmb {

ModelDrafter::ModelDrafter(std::unique_ptr<Backend> backend, const ModelDrafterOptions& options, const Clock& clock,
                           std::unique_ptr<DraftFeed> feed)
    : backend_(std::move(backend)),
      options_(options),
      clock_(clock),
      prefixes_(backend_->info(), options.lent) {
  const auto see_one = [this](const UnseenStep& step, const StepOutput& output) { return see_unseen(step, output); };
  if (feed) unseen_.emplace(*backend_, std::move(feed), see_one);
}

void ModelDrafter::draft(std::span<const Sequence* const> sequences, const DraftLimits& limits,
                         std::span<Guess> guesses) {
  const auto is_seen = [](const Sequence* sequence) { return sequence->num_in_flight == 0; };
  const bool is_behind = !std::ranges::all_of(sequences, is_seen);
  if (!is_behind) see_all();
  if (has_failed_) return;
  ++num_calls_;
  std::vector<Job> jobs, fed;
  int32_t num_rows = options_.max_num_batched_tokens;  // left of the first step of those that are fed
  for (size_t i = 0; i < sequences.size() && static_cast<int32_t>(jobs.size() + fed.size()) < options_.max_num_seqs; ++i) {
    const Sequence& sequence = *sequences[i];
    const bool has_room = is_fed(sequence) && num_rows >= most_first_rows(sequence);
    if (is_behind && (!has_room || !is_group_known(sequence))) continue;
    Row* const row = row_for(sequence, limits);
    if (row == nullptr) continue;
    if (has_room) num_rows -= most_first_rows(sequence);
    (has_room ? fed : jobs).push_back({.text = row->text.get(),
                                       .guess = &guesses[i],
                                       .acceptance = row->acceptance.share(),
                                       .row = row,
                                       .target = is_seen(&sequence) ? nullptr : &sequence});
  }
  while (run_step(jobs, limits)) {
  }
  if (!fed.empty()) feed(fed, limits);
  prefixes_.give_back(lender_);
}

// With blocks for the drafts; null: there is no room.
ModelDrafter::Row* ModelDrafter::row_for(const Sequence& sequence, const DraftLimits& limits) {
  const int64_t num_slots = int64_t{sequence.num_known_tokens()} + sequence.max_unseen_tokens() + limits.max_tokens;
  if (num_slots > options_.max_model_len || sequence.request->is_indivisible) return nullptr;
  auto at = rows_.find(sequence.id);
  if (at == rows_.end()) {
    auto text = std::make_unique<Sequence>(sequence.id, sequence.choice, sequence.request,
                                           BlockTable(prefixes_.block_size()), sequence.max_new_tokens, 0);
    text->num_scored_tokens = text->num_prompt_tokens();  // prompt_logprobs are the target's
    at = rows_.emplace(sequence.id, Row{std::move(text), Acceptance(acceptance_.share(), 8)}).first;
  }
  Row& row = at->second;
  row.last_call = num_calls_;
  if (!follow(sequence, limits.plan, &row)) return nullptr;
  prefixes_.share(row.text.get());
  BlockAllocator* const lender = lender_for(limits);
  if (prefixes_.grow_to(num_slots, lender, row.text.get())) return &row;
  make_room();
  return prefixes_.grow_to(num_slots, lender, row.text.get()) ? &row : nullptr;
}

// Null while a plan of the target's runs beside: blocks that are free for the next one may still be its own. Steps of one
// queue run one after the other.
BlockAllocator* ModelDrafter::lender_for(const DraftLimits& limits) {
  if (!options_.lent || limits.lender == nullptr || (limits.num_in_flight > 0 && !unseen_)) return nullptr;
  if (lender_ == nullptr) limits.lender->set_borrower(this);
  return lender_ = limits.lender;
}

BlockId ModelDrafter::give_back(bool even_used) {
  BlockId block = prefixes_.take_unused();
  if (block != kNoBlock || !even_used) return block;
  ++num_taken_back_;
  while (block == kNoBlock) {
    const auto before = [](const auto& a, const auto& b) {
      return std::pair(a.second.last_call, -a.first) < std::pair(b.second.last_call, -b.first);
    };
    const auto at = std::ranges::min_element(rows_, before);
    LLMB_CHECK(at != rows_.end());
    prefixes_.release(at->second.text.get());
    rows_.erase(at);
    block = prefixes_.take_unused();
  }
  return block;
}

// Takes back the drafts that were wrong. False: it lacks tokens of the plan in flight, whose drafts were not its own.
bool ModelDrafter::follow(const Sequence& sequence, int64_t plan, Row* row) {
  Sequence* const text = row->text.get();
  const bool is_behind = sequence.num_in_flight > 0;
  const bool has_drafted_before = is_behind && row->last_plan >= plan - 1;
  if (sequence.max_unseen_tokens() > 1 && !has_drafted_before) return false;
  const auto [mine, theirs] = std::mismatch(text->output_tokens.begin(), text->output_tokens.end(),
                                            sequence.output_tokens.begin(), sequence.output_tokens.end());
  const int32_t num_alike = text->num_prompt_tokens() + static_cast<int32_t>(mine - text->output_tokens.begin());
  text->output_tokens = sequence.output_tokens;
  text->penalty_counts = sequence.penalty_counts;
  text->constraint = sequence.constraint == nullptr ? nullptr : sequence.constraint->clone();
  const int32_t num_known = text->num_known_tokens();
  if (has_drafted_before) text->num_computed_tokens = num_known;
  else text->num_computed_tokens = std::min({text->num_computed_tokens, num_alike, num_known - (is_behind ? 0 : 1)});
  row->text_plan = -1;
  return true;
}

void ModelDrafter::make_room() {
  std::erase_if(rows_, [&](auto& entry) {
    if (entry.second.last_call == num_calls_) return false;
    prefixes_.release(entry.second.text.get());
    return true;
  });
}

bool ModelDrafter::goes_on(const Job& job, const DraftLimits& limits) {
  if (job.num_drawn == limits.max_tokens || job.probability < limits.min_probability) return false;
  if (job.text->has_no_choice()) return false;
  return job.last < 0 || !job.text->is_ending_token(job.guess->tokens[job.last]);
}

// For the jobs that go on; false: none does.
bool ModelDrafter::run_step(std::span<Job> jobs, const DraftLimits& limits) {
  plan_.clear();
  plan_.block_size = backend_->info().kv.block_size;
  planned_.clear();
  bool catches_up = false;
  for (Job& job : jobs) {
    if (!goes_on(job, limits)) continue;
    const int32_t budget = options_.max_num_batched_tokens - plan_.num_tokens();
    if (budget == 0) break;
    prefixes_.share(job.text);
    const int32_t num_tokens = std::min(budget, job.text->num_pending_tokens());
    catches_up |= num_tokens > 2;  // two: all drafts were right
    add_entry(job.text, num_tokens, &plan_);
    job.text->num_computed_tokens += num_tokens;
    if (job.text->num_pending_tokens() > 0) continue;
    plan_.sample_rows.back().num_logprobs = options_.guesses_trees ? DraftConfidence::kMaxRank + 1 : 0;
    planned_.push_back(&job);
  }
  if (plan_.empty() || !run_plan(catches_up)) return false;
  for (size_t g = 0; g < planned_.size(); ++g) {
    if (output_.token_start[g + 1] == output_.token_start[g]) {  // its logits are not finite
      has_failed_ = true;
      return false;
    }
    Job& job = *planned_[g];
    const bool is_sampled = job.text->request->params.sampling.temperature > 0;
    job.last = confidence_.add(output_, static_cast<int32_t>(g), is_sampled, job.last, job.guess);
    job.text->append_token(job.guess->tokens[job.last]);
    job.probability *= job.guess->acceptance[job.last];
    ++job.num_drawn;
  }
  return true;
}

void ModelDrafter::add_entry(Sequence* text, int32_t num_tokens, StepPlan* plan) {
  prefixes_.keep(text, num_tokens);
  prefixes_.append_entry(*text, num_tokens, plan);
}

bool ModelDrafter::run_plan(bool catches_up) {
  prefixes_.end_plan();
  const double begin_ms = clock_.now_ms();
  Status status = backend_->submit(plan_);
  if (status.ok()) status = backend_->wait(&output_);
  const double ms = clock_.now_ms() - begin_ms;
  if (!status.ok()) {
    give_up(status);
    return false;
  }
  if (catches_up) invested_ms_ += ms;
  else cost_.observe(plan_.num_entries(), /*num_context_tokens=*/0, ms);
  return true;
}

void ModelDrafter::give_up(const Status& status) {
  if (!has_failed_) log_warning("the draft model is given up: " + status.message());
  has_failed_ = true;
}

double ModelDrafter::acceptance(const Sequence& sequence) const {
  if (has_failed_) return 0;
  const auto at = rows_.find(sequence.id);
  return at == rows_.end() ? acceptance_.share() : at->second.acceptance.share();
}

double ModelDrafter::take_invested_ms() { return std::exchange(invested_ms_, 0); }

void ModelDrafter::see_drafts(std::span<TokenId> tokens) {
  if (!unseen_) return;
  unseen_->put_tokens(tokens);
  if (!unseen_->failure().ok()) give_up(unseen_->failure());
}

void ModelDrafter::learn(const Sequence& sequence, const Guess& guess, std::span<const Verdict> verdicts) {
  const Guess seen = unseen_ ? unseen_->with_kinds(guess) : guess;
  confidence_.learn(seen, verdicts);
  const auto at = rows_.find(sequence.id);
  for (int32_t i = 0; i < seen.size(); ++i) {
    if (verdicts[i] == Verdict::kUnknown || DraftConfidence::rank(seen.kinds[i]) > 0) continue;
    acceptance_.add(verdicts[i] == Verdict::kRight);
    if (at != rows_.end()) at->second.acceptance.add(verdicts[i] == Verdict::kRight);
  }
}

void ModelDrafter::forget(const Sequence& sequence) {
  const auto at = rows_.find(sequence.id);
  if (at == rows_.end()) return;
  prefixes_.release(at->second.text.get());
  rows_.erase(at);
  prefixes_.give_back(lender_);
}

}  // namespace llmb
