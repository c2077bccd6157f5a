#include "job/remote_worker.h"

#include <unistd.h>

#include <chrono>
#include <exception>
#include <mutex>
#include <new>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "job/model_inventory.h"
#include "job/ordered_model.h"
#include "job/remote_rows.h"
#include "job/supervisor.h"
#include "job/worker.h"
#include "job/worker_messages.h"
#include "job/worker_setup.h"

namespace llmb {

namespace {

constexpr std::chrono::milliseconds kReportInterval{250};

class RemoteWorker {
 public:
  RemoteWorker(JobOptions options, Descriptor socket, StartRank start_rank)
      : options_(std::move(options)), start_rank_(std::move(start_rank)), link_(std::move(socket)) {}

  [[noreturn]] void run(const BackendFactory& make_backend) {
    std::thread([this] { report(); }).detach();
    std::optional<JobStop> stop;
    try {
      stop = work(make_backend);
    } catch (const std::bad_alloc&) {
      stop = JobStop{JobEnd::kOutOfMemory, "out of memory"};
    } catch (const std::exception& e) {
      stop = JobStop{JobEnd::kBug, e.what()};
    }
    if (stop) link_.send(MessageKind::kFailed, pack_message(WorkerFailure{stop->end, stop->message, false}));
    ::_exit(stop ? 1 : 0);
  }

 private:
  std::optional<JobStop> work(const BackendFactory& make_backend) {
    const Message first = link_.receive();
    const WorkerOrder order = unpack_message<WorkerOrder>(first.payload);
    if (auto stop = load_ordered_model(order, &options_, &model_)) return stop;
    WorkerOptions worker_options;
    if (auto stop = set_up_worker(options_, model_, &worker_options)) return stop;
    worker_options.ranks = rank_options(options_, model_, order.merged_adapters, start_rank_);
    for (WorkerOrder& of_rank : worker_options.ranks.orders) of_rank.role = order.role;
    worker_options.gives_blocks = order.role == WorkerRole::kPrefill;
    worker_options.load.receives_prompts = order.role == WorkerRole::kDecode;
    Worker worker(std::move(worker_options));
    if (auto stop = worker.load(make_backend)) return stop;
    if (order.role == WorkerRole::kPrefill) prompt_block_size_ = worker.info().kv.block_size;
    if (const Status status = check_inventory(options_.model, model_.inventory); !status.ok())
      return model_stop(status);
    link_.send(MessageKind::kReady, pack_message(worker.info()));
    Message message = link_.receive();
    while (message.kind != MessageKind::kStart) message = link_.receive();
    const WorkerStart start = unpack_message<WorkerStart>(message.payload);
    worker.set_step_cost(StepCost(start.step_cost));
    const Status status = answer_rows(worker, order.watchdog_ms);
    if (!status.ok()) return engine_stop(status);
    finish(worker, start.measures_limits);
    return {};
  }

  Status answer_rows(Worker& worker, double watchdog_ms) {
    SteadyClock clock;
    start_ms_ = monotonic_ms();
    RemoteRows& rows = rows_.emplace(link_, model_.files.context, options_.seed, start_ms_, prompt_block_size_);
    rows.begin();
    Supervisor supervisor(worker.watch(), rows.interrupted(), 1000 * options_.grace_s, /*leaves_blocked=*/false);
    supervisor.begin_steps(watchdog_ms);
    Status status;
    const WorkEnding how = supervisor.run([&] {
      status = worker.run(rows, rows, model_.files.context->tokenizer.get(), clock, rows.interrupted(),
                          [&](const EngineProgress& progress) { keep(worker, progress); });
    });
    if (how == WorkEnding::kStalled)
      fail(worker, "the device has not answered within `watchdog_timeout` (" + worker.info().device + ")");
    if (how != WorkEnding::kReturned) fail(worker, "the device has not answered within the grace");
    return status;
  }

  // Threads hang in calls of the device. The last report says in which step.
  [[noreturn]] void fail(const Worker& worker, const std::string& message) {
    {
      std::lock_guard lock(mutex_);
      set_report(worker);
      link_.send(MessageKind::kReport, pack_message(report_));
    }
    link_.send(MessageKind::kFailed, pack_message(WorkerFailure{JobEnd::kDeviceFault, message, true}));
    ::_exit(1);
  }

  // On the engine's thread, after each step.
  void keep(const Worker& worker, const EngineProgress& progress) {
    const auto now = std::chrono::steady_clock::now();
    if (now < next_keep_) return;
    next_keep_ = now + kReportInterval;
    std::lock_guard lock(mutex_);
    set_report(worker);
    report_.progress = progress;
  }

  void set_report(const Worker& worker) {
    report_.start_ms = start_ms_;
    report_.steps = worker.metrics();
    report_.speculation = worker.speculation();
    report_.num_left = worker.num_left();
  }

  // Signs of life, for as long as the process lives.
  void report() {
    while (true) {
      std::string packed;
      {
        std::lock_guard lock(mutex_);
        if (has_finished_) return;
        packed = pack_message(report_);
        link_.send(MessageKind::kReport, packed);
      }
      std::this_thread::sleep_for(kReportInterval);
    }
  }

  // Once the job has heard this, it needs this process no more.
  void finish(Worker& worker, bool measures_limits) {
    const MachineLimits limits = measures_limits ? worker.measure_limits() : MachineLimits();
    std::lock_guard lock(mutex_);
    has_finished_ = true;
    set_report(worker);
    report_.step_cost = worker.step_cost().curve();
    report_.limits = limits;
    link_.send(MessageKind::kFinished, pack_message(report_));
  }

  JobOptions options_;
  const StartRank start_rank_;
  JobLink link_;
  JobModel model_;
  std::optional<RemoteRows> rows_;
  double start_ms_ = 0;
  int32_t prompt_block_size_ = 0;  // 0: rows are answered
  std::chrono::steady_clock::time_point next_keep_;
  std::mutex mutex_;
  WorkerReport report_;        // guarded by mutex_
  bool has_finished_ = false;  // guarded by mutex_
};

}  // namespace

void run_remote_worker(JobOptions options, Descriptor socket, const BackendFactory& make_backend,
                       StartRank start_rank) {
  // Never destroyed: other threads use it until the process ends.
  auto* const worker = new RemoteWorker(std::move(options), std::move(socket), std::move(start_rank));
  worker->run(make_backend);
}

}  // namespace llmb
