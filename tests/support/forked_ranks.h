// Ranks of a CUDA backend on the host SIMT layer, each a process of its own with a device that works by itself.
#pragma once

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "backend/cuda/cuda_backend.h"
#include "backend/ranks/ranked_backend.h"
#include "kernels/simt/background.h"
#include "kernels/simt/nccl.h"
#include "tests/support/check_ok.h"

namespace llmb::test {

struct ForkedRanksOptions {
  int32_t tensor_size = 2;
  int32_t num_stages = 1;
  int32_t context_size = 1;
  bool divides_kv = false;
  double patience_ms = 0;
  uint64_t delay_seed = 0;                   // of each call in which ranks meet; 0: none waits
  std::function<void(int rank)> in_process;  // called in each rank's process before it loads
  std::function<void(int rank)> has_loaded;  // likewise once it has
};

// The processes of ranks 1, 2, … A thread sees which of them end.
class ForkedPeers final : public RankPeers {
 public:
  ForkedPeers(std::shared_ptr<SharedRanks> ranks, RankPart grid, ForkedRanksOptions options)
      : ranks_(std::move(ranks)), grid_(grid), options_(std::move(options)) {}

  ~ForkedPeers() override {
    ranks_->fail(cancelled("the end"));
    ends_ = true;
    if (watcher_.joinable()) watcher_.join();
    for (const pid_t pid : pids_) ::kill(pid, SIGKILL);
    for (const pid_t pid : pids_) ::waitpid(pid, nullptr, 0);
  }

  Status begin_load(const ModelConfig& config, const LoadOptions& options) override {
    for (RankPart part = grid_; ++part.rank < grid_.num_ranks();) {
      const pid_t pid = ::fork();
      if (pid == 0) be_rank(part, config, options);
      pids_.push_back(pid);
    }
    watcher_ = std::thread([this] { watch(); });
    return {};
  }

  Status await_load() override {
    while (ranks_->failure().ok() && !have_all_loaded()) ::usleep(1000);
    return ranks_->failure();
  }

  const std::vector<pid_t>& pids() const { return pids_; }  // once they have begun to load

 private:
  // A rank that has loaded gives this sign more than RankWatch does: whole thousands.
  bool have_all_loaded() const {
    for (int rank = 1; rank < grid_.num_ranks(); ++rank)
      if (ranks_->num_signs(rank) < kLoaded) return false;
    return true;
  }

  [[noreturn]] void be_rank(const RankPart& part, const ModelConfig& config, const LoadOptions& options) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // where the test ends without its destructors
    const simt::Background device;
    simt::delay_nccl_calls(options_.delay_seed);
    if (options_.in_process) options_.in_process(part.rank);
    try {
      const auto context = make_rank_context(ranks_, part);
      const auto backend = make_cuda_backend(0, context);
      static_cast<void>(serve_rank(*backend, *context, config, options, options_.patience_ms, [&] {
        if (options_.has_loaded) options_.has_loaded(part.rank);
        for (uint32_t i = 0; i < kLoaded; ++i) ranks_->give_sign(part.rank);
      }));
    } catch (const std::exception& e) {
      ranks_->fail(internal_error(e.what()));
    }
    ::_exit(0);
  }

  void watch() {
    while (!ends_) {
      ::usleep(5000);
      for (size_t i = 0; i < pids_.size(); ++i) {
        siginfo_t info = {};
        ::waitid(P_PID, static_cast<id_t>(pids_[i]), &info, WEXITED | WNOHANG | WNOWAIT);
        if (info.si_pid != 0)
          ranks_->fail(device_error(ranks_->place_of(static_cast<int>(i) + 1) + ": the process has ended"));
      }
    }
  }

  static constexpr uint32_t kLoaded = 1u << 20;
  const std::shared_ptr<SharedRanks> ranks_;
  const RankPart grid_;
  const ForkedRanksOptions options_;
  std::vector<pid_t> pids_;
  std::atomic<bool> ends_ = false;
  std::thread watcher_;
};

struct ForkedRanks {
  std::unique_ptr<RankedBackend> backend;  // not loaded yet
  ForkedPeers* peers = nullptr;            // the backend's
};

inline ForkedRanks make_forked_ranks(const ForkedRanksOptions& options) {
  const RankPart grid = {0, options.tensor_size, options.num_stages, options.context_size, options.divides_kv};
  auto ranks = SharedRanks::create(grid.num_ranks(), rank_channels(grid));
  check_ok(ranks.status());
  const auto first = make_rank_context(*ranks, grid);
  auto peers = std::make_unique<ForkedPeers>(*ranks, grid, options);
  ForkedPeers* const seen = peers.get();
  return {make_ranked_backend(make_cuda_backend(0, first), first, std::move(peers), options.patience_ms), seen};
}

// A failed check where they cannot load.
inline std::unique_ptr<Backend> load_forked_ranks(const ForkedRanksOptions& ranks, const ModelConfig& config,
                                                  const LoadOptions& options) {
  ForkedRanks made = make_forked_ranks(ranks);
  check_ok(made.backend->load(config, options));
  return std::move(made.backend);
}

// Ranks that steps meet at work. Rank 0's device works by itself, too, once it has loaded, as plans are submitted while
// others run; so nothing may be loaded beside it.
class RanksAtWork final : public Backend {
 public:
  explicit RanksAtWork(const ForkedRanksOptions& options) : ranks_(make_forked_ranks(options).backend) {}
  Status load(const ModelConfig& config, const LoadOptions& options) override {
    const Status status = ranks_->load(config, options);
    if (status.ok()) device_.emplace();
    return status;
  }
  const BackendInfo& info() const override { return ranks_->info(); }
  Status submit(const StepPlan& plan) override { return ranks_->submit(plan); }
  Status wait(StepOutput* output) override { return ranks_->wait(output); }
  AdapterStore* adapters() override { return ranks_->adapters(); }

 private:
  std::unique_ptr<Backend> ranks_;
  std::optional<simt::Background> device_;
};

}  // namespace llmb::test
