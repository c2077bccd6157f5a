// Ranks of a CPU backend as threads of one process.
#pragma once

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

namespace llmb::test {

// Called with the context of each rank before it is used.
using PrepareRank = std::function<void(RankContext&)>;

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
inline std::unique_ptr<RankedBackend> make_thread_ranks(int32_t tensor_size, int32_t num_stages = 1,
                                                        double patience_ms = 0, const PrepareRank& prepare = nullptr,
                                                        int32_t context_size = 1, bool divides_kv = false) {
  RankPart part = {0, tensor_size, num_stages, context_size, divides_kv};
  const RankPart grid = part;
  auto ranks = SharedRanks::create(grid.num_ranks(), rank_channels(grid));
  check_ok(ranks.status());
  std::vector<std::shared_ptr<RankContext>> contexts;
  for (part.rank = 0; part.rank < grid.num_ranks(); ++part.rank) {
    contexts.push_back(make_rank_context(*ranks, part));
    if (prepare) prepare(*contexts.back());
  }
  const auto first = contexts.front();
  contexts.erase(contexts.begin());
  auto peers = std::make_unique<ThreadPeers>(*ranks, std::move(contexts), patience_ms);
  return make_ranked_backend(make_cpu_backend(first), first, std::move(peers), patience_ms);
}

}  // namespace llmb::test
