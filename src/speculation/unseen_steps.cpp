#include "speculation/unseen_steps.h"

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
    : backend_(backend), feed_(std::move(feed)), see_(std::move(see)), kinds_(static_cast<size_t>(feed_->num_slots())) {
  LLMB_CHECK(backend_.info().max_plans_in_flight > 1);
}

UnseenStep& UnseenSteps::begin() {
  while (static_cast<int32_t>(steps_.size()) >= backend_.info().max_plans_in_flight) see_oldest();
  UnseenStep& step = steps_.emplace_back();
  step.plan.clear();
  step.plan.block_size = backend_.info().kv.block_size;
  step.first_slot = next_slot_;
  return step;
}

bool UnseenSteps::has_slot() const { return next_slot_ < feed_->num_slots(); }

void UnseenSteps::add_draft(double acceptance, Sequence* text, Guess* guess) {
  UnseenStep& step = steps_.back();
  LLMB_CHECK(has_slot() && step.plan.num_groups() == static_cast<int32_t>(step.drafts.size()) + 1);
  step.plan.sample_rows.back().num_logprobs = 0;
  end_chain(text);
  text->add_group_in_flight({.group = step.plan.num_groups() - 1, .max_tokens = 1});
  step.drafts.push_back({text->id, text->num_output_tokens(), text->request->params.sampling.temperature > 0});
  guess->add(drafted_token(next_slot_++), guess->size() - 1, acceptance, /*kind=*/0);
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
  if (!step.drafts.empty()) fail(feed_->keep(step.first_slot, static_cast<int32_t>(step.drafts.size())));
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
  for (size_t g = 0; g < step.drafts.size(); ++g) {
    const int32_t at = output_.token_start[g];
    if (output_.token_start[g + 1] == at) continue;  // its logits are not finite
    const double p = std::exp(static_cast<double>(output_.logprobs[at]));
    const size_t slot = static_cast<size_t>(step.first_slot) + g;
    kinds_[slot] = DraftConfidence::kind_of(p, /*rank=*/0, step.drafts[g].is_sampled);
  }
  fail(see_(step, output_));
  steps_.pop_front();
}

Guess UnseenSteps::with_kinds(Guess guess) const {
  for (int32_t i = 0; i < guess.size(); ++i)
    if (is_drafted(guess.tokens[i])) guess.kinds[i] = kinds_[static_cast<size_t>(drafted_slot(guess.tokens[i]))];
  return guess;
}

// The first failure is why.
void UnseenSteps::fail(const Status& status) {
  if (failure_.ok()) failure_ = status;
}

}  // namespace llmb
