#include "job/rank_team.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "backend/make_backend.h"
#include "base/clock.h"
#include "base/core_parts.h"
#include "job/worker_order.h"

namespace llmb {

namespace {

constexpr int kSignsLookMs = 100;

// Tells which rank gives no signs of life for too long. Time that this process was stopped itself does not count.
class LifeSigns {
 public:
  LifeSigns(SharedRanks& ranks, int num_ranks, double patience_ms)  // 0: any time
      : ranks_(ranks), patience_ms_(patience_ms), seen_(static_cast<size_t>(num_ranks)), last_ms_(clock_.now_ms()) {}

  // Called every kSignsLookMs or more often.
  void look() {
    const double now = clock_.now_ms(), passed = std::min(now - std::exchange(last_ms_, now), 2.0 * kSignsLookMs);
    for (size_t rank = 1; rank < seen_.size(); ++rank) {
      Seen& seen = seen_[rank];
      const uint32_t signs = ranks_.num_signs(static_cast<int>(rank));
      seen.silent_ms = signs == std::exchange(seen.signs, signs) ? seen.silent_ms + passed : 0;
      if (patience_ms_ > 0 && seen.silent_ms >= patience_ms_)
        ranks_.fail(device_error(ranks_.place_of(static_cast<int>(rank)) + " does not answer"));
    }
  }

 private:
  struct Seen {
    uint32_t signs = 0;
    double silent_ms = 0;
  };
  SharedRanks& ranks_;
  const double patience_ms_;
  const SteadyClock clock_;
  std::vector<Seen> seen_;  // [num_ranks]
  double last_ms_;
};

// A thread looks whether they are ready, and whether they live: as long as one loads nobody else may wait for it.
class RankProcesses final : public RankPeers {
 public:
  RankProcesses(const RankOptions& options, std::shared_ptr<SharedRanks> ranks)
      : options_(options), ranks_(std::move(ranks)), stop_(real_file_ops(), ::eventfd(0, EFD_CLOEXEC)) {}

  ~RankProcesses() override {
    ranks_->fail(cancelled("rank 0 has ended"));
    const uint64_t one = 1;
    static_cast<void>(!::write(stop_.get(), &one, sizeof one));
    if (watcher_.joinable()) watcher_.join();
  }

  Status begin_load(const ModelConfig& config, const LoadOptions& load) override {
    for (int32_t rank = 1; rank < options_.grid.num_ranks(); ++rank) {
      const int32_t count = options_.grid.num_ranks();
      LLMB_ASSIGN_OR_RETURN(StartedProcess process, options_.start(rank, count, ranks_->descriptor()));
      WorkerProcess& started = *processes_.emplace_back(std::make_unique<WorkerProcess>(std::move(process)));
      const RankOrder order = {options_.orders[static_cast<size_t>(rank)], rank_settings(options_.build, config, load),
                               load.num_blocks_override};
      started.send(MessageKind::kOrder, pack_rank_order(order));
    }
    run_on(divide_cores(usable_cpus(), options_.grid.num_ranks())[0]);
    watcher_ = std::thread([this] { watch(); });
    return {};
  }

  Status await_load() override {
    std::unique_lock lock(mutex_);
    while (!are_ready() && ranks_->failure().ok()) changed_.wait_for(lock, std::chrono::milliseconds(20));
    return ranks_->failure();
  }

 private:
  bool are_ready() const { return num_ready_ + 1 == options_.grid.num_ranks(); }

  void watch() {
    std::vector<bool> is_open(processes_.size(), true);
    LifeSigns signs(*ranks_, options_.grid.num_ranks(), rank_patience_ms(options_.orders[0]));
    for (bool is_loading = true;;) {
      if (is_loading) {
        signs.look();
        std::lock_guard lock(mutex_);
        is_loading = !are_ready();
      }
      std::vector<pollfd> polled = {{stop_.get(), POLLIN, 0}};
      for (size_t i = 0; i < processes_.size(); ++i)
        polled.push_back({is_open[i] ? processes_[i]->socket() : -1,
                          static_cast<short>(POLLIN | (processes_[i]->has_unsent() ? POLLOUT : 0)), 0});
      if (::poll(polled.data(), polled.size(), is_loading ? kSignsLookMs : -1) < 0) continue;
      if (polled[0].revents != 0) return;
      for (size_t i = 0; i < processes_.size(); ++i)
        if (polled[i + 1].revents != 0) is_open[i] = take_messages(static_cast<int>(i) + 1);
    }
  }

  // False: the rank has ended.
  bool take_messages(int rank) {
    WorkerProcess& process = *processes_[static_cast<size_t>(rank) - 1];
    std::vector<Message> messages;
    const bool is_open = process.exchange(&messages);
    std::lock_guard lock(mutex_);
    for (const Message& message : messages) num_ready_ += message.kind == MessageKind::kReady;
    // It has told the others why, unless it could not.
    if (!is_open) ranks_->fail(device_error(ranks_->place_of(rank) + ": " + process.ending()));
    changed_.notify_all();
    return is_open;
  }

  const RankOptions options_;
  const std::shared_ptr<SharedRanks> ranks_;
  const Descriptor stop_;
  std::vector<std::unique_ptr<WorkerProcess>> processes_;  // of ranks 1, 2, …; the watcher's once it runs
  std::thread watcher_;
  std::mutex mutex_;  // of what follows
  std::condition_variable changed_;
  int32_t num_ready_ = 0;
};

// Beside what is checked of ranks on any device.
std::optional<JobStop> check_gpu_options(const JobOptions& o, const std::string& name) {
  if (o.device.starts_with("cuda:"))
    return JobStop{JobEnd::kOptionRefused,
                   name + ": ranks take a GPU each, from the first on; say which with CUDA_VISIBLE_DEVICES, and "
                          "`device` cuda"};
  if (const Status status = check_rank_gpus(std::max(1, o.num_workers) * rank_grid(o).num_ranks()); !status.ok())
    return JobStop{JobEnd::kDeviceFault, status.with_context(name).message()};
  return {};
}

}  // namespace

RankPart rank_grid(const JobOptions& options) {
  const int32_t context_size = std::max(options.prefill_context_parallel_size, options.decode_context_parallel_size);
  return {0, options.tensor_parallel_size, options.pipeline_parallel_size, context_size,
          options.decode_context_parallel_size > 1, options.stage_rows};
}

std::optional<JobStop> check_rank_options(const JobOptions& o, DeviceKind device, const ModelFiles& model) {
  const RankPart grid = rank_grid(o);
  if (grid.num_ranks() == 1) return {};
  std::string name;
  const auto add = [&](const char* option, int32_t size) {
    if (size > 1) name += (name.empty() ? "`" : ", `") + std::string(option) + "` " + std::to_string(size);
  };
  add("tensor_parallel_size", grid.tensor_size);
  add("pipeline_parallel_size", grid.num_stages);
  add(grid.divides_kv ? "decode_context_parallel_size" : "prefill_context_parallel_size", grid.context_size);
  if (device == DeviceKind::kLedger)
    return JobStop{JobEnd::kOptionRefused, name + ": ranks compute on CPUs and GPUs; leave `device` ledger out"};
  ModelConfig config = model.config;
  config.mtp.is_used = o.speculation.mtp || !o.speculation.eagle.empty();
  const Status status =
      check_ranks(config, grid.tensor_size, grid.num_stages, grid.context_size, o.load.cpu.quantization);
  if (!status.ok()) return model_stop(status.with_context(name));
  return device == DeviceKind::kCuda ? check_gpu_options(o, name) : std::nullopt;
}

double rank_patience_ms(const WorkerOrder& order) { return 0.9 * order.watchdog_ms; }

RankOptions rank_options(const JobOptions& o, const JobModel& model, const std::vector<std::string>& merged_adapters,
                         StartRank start) {
  RankOptions ranks;
  ranks.grid = rank_grid(o);
  ranks.start = std::move(start);
  ranks.build = o.build;
  ranks.device = model.device.kind;
  for (int32_t rank = 0; rank < ranks.grid.num_ranks(); ++rank) {
    ranks.orders.push_back(order_of(o, model, rank, ranks.grid.num_ranks()));
    ranks.orders.back().count = std::max(1, o.num_workers);
    ranks.orders.back().merged_adapters = merged_adapters;
  }
  return ranks;
}

Result<std::unique_ptr<RankedBackend>> make_rank_team(const RankOptions& options, LoadOptions* load) {
  LLMB_ASSIGN_OR_RETURN(auto ranks, SharedRanks::create(options.grid.num_ranks(), rank_channels(options.grid)));
  load->num_threads = options.orders[0].num_threads;
  const auto context = make_rank_context(ranks, options.grid);
  LLMB_ASSIGN_OR_RETURN(auto local, make_rank_backend(options.device, context));
  return make_ranked_backend(std::move(local), context, std::make_unique<RankProcesses>(options, ranks),
                             rank_patience_ms(options.orders[0]));
}

}  // namespace llmb
