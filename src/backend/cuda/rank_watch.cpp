#include "backend/cuda/rank_watch.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>

#include "base/clock.h"

namespace llmb {

namespace {

constexpr int kLookEveryMs = 20;
constexpr double kShareOfPatience = 0.95;  // before calls on the host give up, which know less of who is silent
constexpr double kMostPassedMs = 10 * kLookEveryMs;  // between two looks; beyond, this process was stopped

}  // namespace

RankWatch::RankWatch(std::shared_ptr<RankContext> ranks, std::function<void()> on_failure)
    : ranks_(std::move(ranks)),
      on_failure_(std::move(on_failure)),
      seen_(static_cast<size_t>(ranks_->part.num_ranks())),
      thread_([this] { watch(); }) {}

RankWatch::~RankWatch() {
  {
    std::lock_guard lock(mutex_);
    stops_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void RankWatch::begin_step() {
  std::lock_guard lock(mutex_);
  if (num_in_flight_++ == 0) step_ms_ = 0;
}

void RankWatch::end_step() {
  std::lock_guard lock(mutex_);
  num_in_flight_ = std::max(0, num_in_flight_ - 1);
  step_ms_ = 0;
}

void RankWatch::watch() {
  const SteadyClock clock;
  double last_ms = clock.now_ms();
  std::unique_lock lock(mutex_);
  while (!changed_.wait_for(lock, std::chrono::milliseconds(kLookEveryMs), [&] { return stops_; })) {
    lock.unlock();
    const double now = clock.now_ms();
    look(std::min(now - std::exchange(last_ms, now), kMostPassedMs));
    if (!ranks_->ranks->failure().ok()) return on_failure_();
    lock.lock();
  }
}

void RankWatch::look(double passed_ms) {
  SharedRanks& ranks = *ranks_->ranks;
  ranks.give_sign(ranks_->part.rank);
  for (size_t rank = 0; rank < seen_.size(); ++rank) {
    const uint32_t signs = ranks.num_signs(static_cast<int>(rank));
    Seen& seen = seen_[rank];
    seen.silent_ms = signs == std::exchange(seen.signs, signs) ? seen.silent_ms + passed_ms : 0;
  }
  std::unique_lock lock(mutex_);
  if (num_in_flight_ == 0) return;
  step_ms_ += passed_ms;
  const double patience_ms = ranks.patience_ms();
  const bool gives_up = patience_ms > 0 && step_ms_ >= kShareOfPatience * patience_ms;
  lock.unlock();
  if (gives_up) give_up();
}

// A rank that does not run has been silent for most of that time.
void RankWatch::give_up() {
  SharedRanks& ranks = *ranks_->ranks;
  const auto most_silent = std::max_element(seen_.begin(), seen_.end(),
                                            [](const Seen& a, const Seen& b) { return a.silent_ms < b.silent_ms; });
  const auto rank = static_cast<int>(most_silent - seen_.begin());
  if (most_silent->silent_ms >= std::min(ranks.patience_ms() / 2, 2000.0))
    ranks.fail(device_error(ranks.place_of(rank) + " does not answer"));
  else ranks.fail(device_error(ranks.place_of(ranks_->part.rank) + ": its GPU does not answer"));
}

}  // namespace llmb
