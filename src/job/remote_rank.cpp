#include "job/remote_rank.h"

#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <new>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "backend/make_backend.h"
#include "backend/ranks/ranked_backend.h"
#include "job/model_inventory.h"
#include "job/ordered_model.h"
#include "job/rank_team.h"
#include "job/remote_rows.h"
#include "job/worker.h"
#include "job/worker_setup.h"

namespace llmb {

namespace {

Status status_of(const JobStop& stop) {
  switch (stop.end) {
    case JobEnd::kOutOfMemory:
      return resource_exhausted(stop.message);
    case JobEnd::kDeviceFault:
      return device_error(stop.message);
    case JobEnd::kBug:
      return internal_error(stop.message);
    default:
      return unsupported(stop.message);
  }
}

// Gives signs of a rank's life until it is destroyed.
class SignsOfLife {
 public:
  SignsOfLife(SharedRanks& ranks, int rank) : thread_([this, &ranks, rank] { give(ranks, rank); }) {}
  ~SignsOfLife() {
    {
      std::lock_guard lock(mutex_);
      stops_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

 private:
  void give(SharedRanks& ranks, int rank) {
    std::unique_lock lock(mutex_);
    do ranks.give_sign(rank);
    while (!changed_.wait_for(lock, std::chrono::milliseconds(100), [&] { return stops_; }));
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  bool stops_ = false;  // guarded by mutex_
  std::thread thread_;
};

Status serve(JobOptions options, RankContext& context, JobLink& link, const std::shared_ptr<RankContext>& shared) {
  std::optional<SignsOfLife> signs;
  signs.emplace(*context.ranks, context.part.rank);
  const RankOrder order = unpack_rank_order(link.receive().payload);
  JobModel model;
  if (const auto stop = load_ordered_model(order.order, &options, &model)) return status_of(*stop);
  context.part.rows = options.stage_rows;
  WorkerOptions worker;
  if (const auto stop = set_up_worker(options, model, &worker)) return status_of(*stop);
  worker.load.receives_prompts = order.order.role == WorkerRole::kDecode;
  LoadOptions load = target_load_options(worker);
  load.num_blocks_override = order.num_blocks;
  LLMB_RETURN_IF_ERROR(check_settings(rank_settings(options.build, worker.model, load), order.settings));
  if (const Status status = check_inventory(options.model, model.inventory); !status.ok()) return status;
  LLMB_ASSIGN_OR_RETURN(const auto backend, make_rank_backend(model.device.kind, shared));
  return serve_rank(*backend, context, worker.model, load, rank_patience_ms(order.order),
                    [&] {
                      link.send(MessageKind::kReady);
                      signs.reset();
                    });
}

}  // namespace

void run_remote_rank(JobOptions options, RankSeat seat, int exit_code) {
  RankPart part = rank_grid(options);
  part.rank = seat.rank;
  if (part.num_ranks() != seat.count) ::_exit(exit_code);  // rank 0 sees that it has ended
  auto ranks = SharedRanks::open(std::move(seat.memory), seat.count, rank_channels(part));
  if (!ranks.ok()) ::_exit(exit_code);
  const auto context = make_rank_context(*ranks, part);
  JobLink link(std::move(seat.socket));
  Status status;
  try {
    status = serve(std::move(options), *context, link, context);
  } catch (const std::bad_alloc&) {
    status = resource_exhausted("out of memory");
  } catch (const std::exception& e) {
    status = internal_error(e.what());
  }
  (*ranks)->fail(status.with_context("rank " + std::to_string(seat.rank)));
  ::_exit(exit_code);
}

}  // namespace llmb
