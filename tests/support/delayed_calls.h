// Collectives whose calls wait at random before they begin, so that ranks meet at other times in each run.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <thread>
#include <utility>

#include "backend/ranks/rank_context.h"
#include "base/collectives.h"
#include "tests/support/test_rng.h"

namespace llmb::test {

class DelayedCalls final : public Collectives {
 public:
  DelayedCalls(std::unique_ptr<Collectives> inner, uint64_t seed) : inner_(std::move(inner)), rng_(seed) {}
  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  void broadcast(void* data, int64_t bytes, int root) override { wait(), inner_->broadcast(data, bytes, root); }
  void all_reduce(float* data, int64_t count) override { wait(), inner_->all_reduce(data, count); }
  void all_gather(const void* part, int64_t bytes, void* all) override { wait(), inner_->all_gather(part, bytes, all); }
  void* room(int64_t bytes) override { return wait(), inner_->room(bytes); }
  std::span<const void* const> share() override { return wait(), inner_->share(); }
  int64_t num_calls() const { return num_calls_; }
  int64_t room_bytes() const override { return inner_->room_bytes(); }
  void send(const void* data, int64_t bytes, int to) override { wait(), inner_->send(data, bytes, to); }
  void receive(void* data, int64_t bytes, int from) override { wait(), inner_->receive(data, bytes, from); }

 private:
  // Short ones let others spin, long ones let them sleep.
  void wait() {
    ++num_calls_;
    if (rng_.chance(0.1)) std::this_thread::sleep_for(std::chrono::microseconds(rng_.between(0, 200)));
    if (rng_.chance(0.002)) std::this_thread::sleep_for(std::chrono::milliseconds(rng_.between(1, 30)));
  }
  const std::unique_ptr<Collectives> inner_;
  TestRng rng_;
  int64_t num_calls_ = 0;
};

// All calls of a rank, at other times for each seed.
inline void delay_calls(RankContext* context, uint64_t seed) {
  seed = 100 * seed + 6 * static_cast<uint64_t>(context->part.rank);
  for (std::unique_ptr<Collectives>* calls : {&context->plans, &context->all, &context->stages, &context->blocks,
                                              &context->tensor, &context->context})
    *calls = std::make_unique<DelayedCalls>(std::move(*calls), seed++);
}

}  // namespace llmb::test
