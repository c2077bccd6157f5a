// Ranks of a CPU backend as threads of one process.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "backend/cpu/cpu_backend.h"
#include "backend/ranks/ranked_backend.h"
#include "tests/support/check_ok.h"
#include "tests/support/test_rng.h"

namespace llmb::test {

// Called with the context of each rank before it is used.
using PrepareRank = std::function<void(RankContext&)>;

// A rank's calls, each behind a random delay.
class DelayedCalls final : public Collectives {
 public:
  DelayedCalls(std::unique_ptr<Collectives> inner, uint64_t seed) : inner_(std::move(inner)), rng_(seed) {}
  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  void broadcast(void* data, int64_t bytes, int root) override { wait(), inner_->broadcast(data, bytes, root); }
  void all_reduce(float* data, int64_t count) override { wait(), inner_->all_reduce(data, count); }
  void all_gather(const void* part, int64_t bytes, void* all) override { wait(), inner_->all_gather(part, bytes, all); }
  void send(const void* data, int64_t bytes, int to) override { wait(), inner_->send(data, bytes, to); }
  void receive(void* data, int64_t bytes, int from) override { wait(), inner_->receive(data, bytes, from); }

 private:
  void wait() {
    if (rng_.chance(0.1)) std::this_thread::sleep_for(std::chrono::microseconds(rng_.between(0, 200)));
  }
  const std::unique_ptr<Collectives> inner_;
  TestRng rng_;
};

// Each call of a rank then waits up to 0.2 ms now and then, at other times for each seed.
inline void delay_calls(RankContext* context, uint64_t seed) {
  seed = 100 * seed + 4 * static_cast<uint64_t>(context->part.rank);
  for (std::unique_ptr<Collectives>* calls : {&context->plans, &context->all, &context->stages, &context->tensor})
    *calls = std::make_unique<DelayedCalls>(std::move(*calls), seed++);
}

class ThreadPeers final : public RankPeers {
 public:
  ThreadPeers(std::shared_ptr<SharedRanks> ranks, std::vector<std::shared_ptr<RankContext>> contexts,
              double patience_ms)
      : ranks_(std::move(ranks)), contexts_(std::move(contexts)), patience_ms_(patience_ms) {}
  ~ThreadPeers() override {
    ranks_->fail(cancelled("the end"));
    for (std::thread& thread : threads_) thread.join();
  }
  Status begin_load(const ModelConfig& config, const LoadOptions& options) override {
    for (const auto& context : contexts_)
      threads_.emplace_back([this, context, config, options] {
        const auto backend = make_cpu_backend(context);
        static_cast<void>(serve_rank(*backend, *context, config, options, patience_ms_, [&] { add_loaded(); }));
        std::lock_guard lock(mutex_);
        changed_.notify_all();
      });
    return {};
  }
  Status await_load() override {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return num_loaded_ == contexts_.size() || !ranks_->failure().ok(); });
    return ranks_->failure();
  }

 private:
  void add_loaded() {
    std::lock_guard lock(mutex_);
    ++num_loaded_;
    changed_.notify_all();
  }
  const std::shared_ptr<SharedRanks> ranks_;
  const std::vector<std::shared_ptr<RankContext>> contexts_;
  const double patience_ms_;
  std::vector<std::thread> threads_;
  std::mutex mutex_;
  std::condition_variable changed_;
  size_t num_loaded_ = 0;
};

// Not loaded yet.
inline std::unique_ptr<Backend> make_thread_ranks(int32_t tensor_size, int32_t num_stages = 1, double patience_ms = 0,
                                                  const PrepareRank& prepare = nullptr) {
  const RankPart grid = {0, tensor_size, num_stages};
  auto ranks = SharedRanks::create(grid.num_ranks(), rank_channels(grid));
  check_ok(ranks.status());
  std::vector<std::shared_ptr<RankContext>> contexts;
  for (int32_t r = 0; r < grid.num_ranks(); ++r) {
    contexts.push_back(make_rank_context(*ranks, {r, tensor_size, num_stages}));
    if (prepare) prepare(*contexts.back());
  }
  const auto first = contexts.front();
  contexts.erase(contexts.begin());
  auto peers = std::make_unique<ThreadPeers>(*ranks, std::move(contexts), patience_ms);
  return make_ranked_backend(make_cpu_backend(first), first, std::move(peers), patience_ms);
}

}  // namespace llmb::test
