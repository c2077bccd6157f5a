#include "backend/cuda/rank_steps.h"

#include <utility>

#include "base/check.h"

namespace llmb {

RankSteps::RankSteps(std::shared_ptr<RankContext> context, CudaRanks& ranks, OnDevice device)
    : context_(std::move(context)), ranks_(ranks), device_(std::move(device)) {
  const RankPart& part = context_->part;
  if (part.num_stages > 1) outputs_.emplace(*context_->all, part.num_ranks() - part.stage_size());
  thread_ = std::thread([this] { see_ends(); });
}

RankSteps::~RankSteps() {
  {
    std::lock_guard lock(mutex_);
    stops_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void RankSteps::add() {
  {
    std::lock_guard lock(mutex_);
    ++num_added_;
  }
  changed_.notify_all();
}

Status RankSteps::wait(StepOutput* output) {
  std::unique_lock lock(mutex_);
  LLMB_CHECK_MSG(num_fetched_ < num_added_, "nothing in flight");
  changed_.wait(lock, [&] { return num_ended_ > num_fetched_ || !failure_.ok(); });
  if (num_ended_ == num_fetched_) {
    num_fetched_ = num_ended_ = num_added_;
    return failure_;
  }
  const int64_t step = num_fetched_++;
  StepOutput& own = own_[static_cast<size_t>(step % kMaxAlternatingPlans)];
  std::swap(*output, is_early_stage() ? outputs_->output(step) : own);
  return {};
}

void RankSteps::see_ends() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return stops_ || num_ended_ < num_added_; });
    if (stops_) return;
    const int64_t step = num_ended_;
    lock.unlock();
    const Status status = see_end(step);
    lock.lock();
    if (status.ok()) ++num_ended_;
    else failure_ = status;
    changed_.notify_all();
    if (!status.ok()) return;
  }
}

Status RankSteps::see_end(int64_t step) {
  double busy_ms = 0;
  const Status status = guarded_as_rank(context_.get(), [&] {
    busy_ms = device_.await(step);
    LLMB_RETURN_IF_ERROR(ranks_.failure());
    if (is_early_stage()) {
      outputs_->take(step + 1);
      return Status();
    }
    StepOutput& output = own_[static_cast<size_t>(step % kMaxAlternatingPlans)];
    const GivenTokens& given = device_.read(step, &output);
    output.device_ms = outputs_ ? 0 : busy_ms;  // which one stage's time says nothing about
    if (!outputs_) return Status();
    if (context_->part.rank % context_->part.stage_size() == 0) outputs_->give(output, given);
    else outputs_->take(step + 1);
    return Status();
  });
  ranks_.end_step(status, busy_ms);
  return status;
}

}  // namespace llmb
