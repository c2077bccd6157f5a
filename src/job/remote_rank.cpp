#include "job/remote_rank.h"

#include <unistd.h>

#include <exception>
#include <new>
#include <string>
#include <utility>

#include "backend/cpu/cpu_backend.h"
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

Status serve(JobOptions options, RankContext& context, JobLink& link, const std::shared_ptr<RankContext>& shared) {
  const RankOrder order = unpack_rank_order(link.receive().payload);
  JobModel model;
  if (const auto stop = load_ordered_model(order.order, &options, &model)) return status_of(*stop);
  WorkerOptions worker;
  if (const auto stop = set_up_worker(options, model, &worker)) return status_of(*stop);
  LoadOptions load = target_load_options(worker);
  load.num_blocks_override = order.num_blocks;
  LLMB_RETURN_IF_ERROR(check_settings(rank_settings(options.build, worker.model, load), order.settings));
  if (const Status status = check_inventory(options.model, model.inventory); !status.ok()) return status;
  const auto backend = make_cpu_backend(shared);
  return serve_rank(*backend, context, worker.model, load, rank_patience_ms(order.order),
                    [&] { link.send(MessageKind::kReady); });
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
