#include "backend/ranks/ranked_backend.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <utility>

#include "backend/ranks/packed_plan.h"
#include "base/clock.h"
#include "base/log.h"
#include "core/plans_in_flight.h"

namespace llmb {

namespace {

// The size, then the bytes.
void send_plan(Collectives& plans, const StepPlan& plan) {
  std::string bytes = pack_plan(plan);
  auto size = static_cast<int64_t>(bytes.size());
  plans.broadcast(&size, sizeof size, 0);
  plans.broadcast(bytes.data(), size, 0);
}

void receive_plan(Collectives& plans, std::string* bytes, StepPlan* plan) {
  int64_t size = 0;
  plans.broadcast(&size, sizeof size, 0);
  bytes->resize(static_cast<size_t>(size));
  plans.broadcast(bytes->data(), size, 0);
  unpack_plan(*bytes, plan);
}

Status try_receive_plan(Collectives& plans, std::string* bytes, StepPlan* plan) {
  try {
    receive_plan(plans, bytes, plan);
    return {};
  } catch (const RankError& e) {
    return e.status();
  }
}

class FirstRank final : public RankedBackend {
 public:
  FirstRank(std::unique_ptr<Backend> local, std::shared_ptr<RankContext> context, std::unique_ptr<RankPeers> peers,
            double patience_ms)
      : context_(std::move(context)), patience_ms_(patience_ms), local_(std::move(local)), peers_(std::move(peers)) {}

  // Whoever still waits for another one is told to stop.
  ~FirstRank() override {
    report_waits();
    context_->ranks->fail(cancelled("rank 0 has ended"));
  }

  Status load(const ModelConfig& config, const LoadOptions& options) override {
    LLMB_RETURN_IF_ERROR(check_ranked_load(config, options, context_->part));
    Status status = peers_->begin_load(config, options);
    if (status.ok()) status = local_->load(config, options);
    if (!status.ok()) {
      context_->ranks->fail(status);  // where it is not another rank's already
      return status;
    }
    LLMB_RETURN_IF_ERROR(peers_->await_load());
    context_->ranks->set_patience_ms(patience_ms_);
    info_ = local_->info();
    info_.device = std::to_string(context_->part.num_ranks()) + " ranks of " + info_.device;
    return {};
  }

  const BackendInfo& info() const override { return info_; }

  Status submit(const StepPlan& plan) override {
    try {
      send_plan(*context_->plans, plan);
    } catch (const RankError& e) {
      return e.status();
    }
    const Status status = local_->submit(plan);
    if (status.ok() && num_in_flight_++ == 0) begin_ms_ = clock_.now_ms();
    return status;
  }

  Status wait(StepOutput* output) override {
    const Status status = local_->wait(output);
    num_in_flight_ = status.ok() ? num_in_flight_ - 1 : 0;
    if (num_in_flight_ == 0) steps_ms_ += clock_.now_ms() - begin_ms_;
    return status;
  }

  RankTimes times() const override {
    RankTimes times{steps_ms_, {}};
    for (int rank = 0; rank < context_->part.num_ranks(); ++rank)
      times.busy_ms.push_back(context_->ranks->busy_ms(rank));
    return times;
  }

  AdapterStore* adapters() override { return local_->adapters(); }
  // All ranks together, as if each had what this one measures.
  MachineLimits measure_limits() override {
    MachineLimits limits = local_->measure_limits();
    limits.flops_per_s *= context_->part.num_ranks();
    limits.bytes_per_s *= context_->part.num_ranks();
    return limits;
  }

 private:
  // How much of the time in which steps ran each rank was idle; of less than a second it tells nothing.
  void report_waits() const {
    if (steps_ms_ < 1000 || !context_->ranks->failure().ok()) return;
    const RankTimes all = times();
    std::string shares;
    for (size_t rank = 0; rank < all.busy_ms.size(); ++rank)
      shares += (rank == 0 ? "" : ", ") + std::to_string(std::lround(100 * all.idle_share(rank))) + " %";
    log_info("ranks were idle " + shares + " of the " + std::to_string(std::lround(steps_ms_ / 1e3)) +
             " s of steps");
  }

  const std::shared_ptr<RankContext> context_;
  const double patience_ms_;
  const std::unique_ptr<Backend> local_;
  const std::unique_ptr<RankPeers> peers_;  // ended before local_, which may wait for them
  BackendInfo info_;
  const SteadyClock clock_;
  int num_in_flight_ = 0;
  double begin_ms_ = 0, steps_ms_ = 0;  // since when a plan is in flight, and how long some were before
};

}  // namespace

Status check_ranked_load(const ModelConfig& config, const LoadOptions& options, const RankPart& grid) {
  LLMB_RETURN_IF_ERROR(check_ranks(config, grid.tensor_size, grid.num_stages, grid.context_size));
  const auto refused = [](const char* what) { return unsupported(std::string(what) + ": not over several ranks yet"); };
  if (options.pooling) return refused("vectors and scores of texts");
  if (!options.heads_dir.empty()) return refused("heads that draft");
  if (config.mtp.is_used) return refused("a layer behind the last one that drafts (mtp, eagle)");
  if (options.drafting_layers > 0 && grid.num_stages > 1) return refused("the model's first layers that draft");
  if (!options.cpu.weight_cache_dir.empty()) return refused("weight-cache");
  if (options.adapters && grid.tensor_size > 1 && (config.has_states() || config.attention_gate))
    return refused("adapters of a model with recurrent states or gated attention");
  return {};
}

Status check_gpu_ranks(const RankPart& grid) {
  if (!grid.divides_kv) return {};
  return unsupported("ranks that divide keys and values: not over several GPUs yet; use --device cpu, or leave it out");
}

std::unique_ptr<RankedBackend> make_ranked_backend(std::unique_ptr<Backend> local, std::shared_ptr<RankContext> context,
                                                   std::unique_ptr<RankPeers> peers, double patience_ms) {
  return std::make_unique<FirstRank>(std::move(local), std::move(context), std::move(peers), patience_ms);
}

// A plan stays where it is until its step has ended.
Status serve_rank(Backend& backend, RankContext& context, const ModelConfig& config, const LoadOptions& options,
                  double patience_ms, const std::function<void()>& on_loaded) {
  const auto tell = [&](const Status& status) {  // nothing where another rank has failed before
    context.ranks->fail(status.with_context("rank " + std::to_string(context.part.rank)));
    return status;
  };
  if (const Status status = backend.load(config, options); !status.ok()) return tell(status);
  context.ranks->set_patience_ms(patience_ms);
  on_loaded();
  std::array<StepPlan, kMaxAlternatingPlans> plans;
  StepOutput output;
  std::string bytes;
  int64_t num_waited = 0;
  for (int64_t step = 0;; ++step) {
    Status status;
    if (step - num_waited == backend.info().max_plans_in_flight) {
      status = backend.wait(&output);
      num_waited = status.ok() ? num_waited + 1 : step;  // after an error nothing is in flight
    }
    StepPlan& plan = plans[static_cast<size_t>(step % kMaxAlternatingPlans)];
    if (status.ok()) status = try_receive_plan(*context.plans, &bytes, &plan);
    if (status.ok()) status = backend.submit(plan);
    if (status.ok()) continue;
    static_cast<void>(tell(status));  // so that steps in flight end, which use the plans
    while (num_waited < step) num_waited = backend.wait(&output).ok() ? num_waited + 1 : step;
    return status;
  }
}

}  // namespace llmb
