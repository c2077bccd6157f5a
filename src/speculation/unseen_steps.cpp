#include "speculation/unseen_steps.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/check.h"
#include "core/drafted_tokens.h"
#include "speculation/draft_confidence.h"

namespace llmb {

namespace {
constexpr TokenId kUnseen = 0;
}  // namespace

UnseenSteps::UnseenSteps(Backend& backend, std::unique_ptr<DraftFeed> feed, See see)
    : backend_(backend), feed_(std::move(feed)), see_(std::move(see)), slots_(static_cast<size_t>(feed_->num_slots())) {
  LLMB_CHECK(backend_.info().max_plans_in_flight > 1);
}

UnseenStep& UnseenSteps::begin(int32_t num_best) {
  while (static_cast<int32_t>(steps_.size()) >= backend_.info().max_plans_in_flight) see_oldest();
  UnseenStep& step = steps_.emplace_back();
  step.plan.clear();
  step.plan.block_size = backend_.info().kv.block_size;
  step.number = num_steps_++;
  step.for_plan = plan_;
  step.first_slot = next_slot_;
  step.num_best = num_best;
  return step;
}

void UnseenSteps::add_draft(double acceptance, Sequence* text, Guess* guess) {
  UnseenStep& step = steps_.back();
  LLMB_CHECK(has_slot() && step.plan.num_groups() == static_cast<int32_t>(step.drafts.size()) + 1);
  step.plan.sample_rows.back().num_logprobs = 0;
  // Every step of a chain lies as far ahead as the first one.
  const int32_t max_ahead = text->num_in_flight > 0 ? text->in_flight[0].max_tokens : 1;
  end_chain(text);
  text->add_group_in_flight({.group = step.plan.num_groups() - 1, .max_tokens = max_ahead});
  step.drafts.push_back({text->id, text->num_output_tokens(), text->request->params.sampling.temperature > 0});
  guess->add(drafted_token(next_slot_), guess->size() - 1, acceptance, kind_of_slot(next_slot_));
  slots_[static_cast<size_t>(next_slot_++)] = {.step = step.number};
}

int32_t UnseenSteps::add_best(bool is_sampled) {
  UnseenStep& step = steps_.back();
  LLMB_CHECK(num_free_slots() >= step.num_best && step.plan.groups.back().mode == SampleMode::kBest);
  step.drafts.push_back({step.plan.groups.back().seq, 0, is_sampled});
  for (int32_t i = 0; i < step.num_best; ++i) slots_[static_cast<size_t>(next_slot_ + i)] = {.step = step.number};
  return std::exchange(next_slot_, next_slot_ + step.num_best);
}

bool UnseenSteps::submit() {
  const UnseenStep& step = steps_.back();
  const bool is_wanted = failure_.ok() && !step.plan.empty();
  const Status submitted = is_wanted ? backend_.submit(step.plan) : Status();
  if (!is_wanted || !submitted.ok()) {
    steps_.pop_back();
    fail(submitted);
    return false;
  }
  const auto count = static_cast<int32_t>(step.drafts.size());
  if (count > 0)
    fail(step.num_best > 0 ? feed_->keep_best(step.first_slot, count, step.num_best)
                           : feed_->keep(step.first_slot, count));
  return failure_.ok();
}

void UnseenSteps::end_chain(Sequence* text) {
  if (text->num_in_flight == 0) return;
  text->append_token(kUnseen);
  text->end_oldest_group(0);
}

void UnseenSteps::see_all() {
  while (!steps_.empty()) see_oldest();
}

void UnseenSteps::see_oldest() {
  if (const Status status = backend_.wait(&output_); !status.ok()) {
    steps_.clear();  // nothing is in flight any more
    return fail(status);
  }
  const UnseenStep& step = steps_.front();
  const int32_t num_ranks = std::max(1, step.num_best);
  for (size_t g = 0; g < step.drafts.size(); ++g)
    for (int32_t rank = 0; rank < num_ranks; ++rank) {
      const int32_t at = output_.token_start[g] + rank;
      const int32_t slot = step.first_slot + static_cast<int32_t>(g) * num_ranks + rank;
      const bool is_known = at < output_.token_start[g + 1];  // else logits are not finite
      const double p = is_known ? std::exp(static_cast<double>(output_.logprobs[at])) : 0;
      if (slots_[slot].step != step.number) continue;  // a newer one's
      slots_[slot].kind = DraftConfidence::kind_of(p, rank, step.drafts[g].is_sampled);
      slots_[slot].token = is_known ? output_.tokens[at] : drafted_token(slot);
    }
  fail(see_(step, output_));
  steps_.pop_front();
}

void UnseenSteps::put_tokens(std::span<TokenId> tokens) {
  for (TokenId& token : tokens) {
    if (!is_drafted(token)) continue;
    const Slot& slot = slots_[static_cast<size_t>(drafted_slot(token))];
    while (!steps_.empty() && steps_.front().number <= slot.step) see_oldest();
    if (failure_.ok()) token = slot.token;
  }
}

Guess UnseenSteps::with_kinds(Guess guess) const {
  for (int32_t& kind : guess.kinds)
    if (kind < 0) kind = slots_[static_cast<size_t>(-1 - kind)].kind;
  return guess;
}

// The first failure is why.
void UnseenSteps::fail(const Status& status) {
  if (failure_.ok()) failure_ = status;
}

}  // namespace llmb
