#include "backend/ranks/ranked_backend.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "backend/ranks/packed_plan.h"
#include "backend/ranks/rank_blocks.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/packed_bytes.h"
#include "core/plans_in_flight.h"

namespace llmb {

namespace {

// Rank 0 tells the others which of these to do.
enum class Order : int32_t { kPlan, kReadBlocks, kWriteHostBlocks };

struct OrderHeader {
  Order order = Order::kPlan;
  int64_t size = 0;  // of what follows
};

void send_order(Collectives& plans, Order order, std::string bytes) {
  OrderHeader header = {order, static_cast<int64_t>(bytes.size())};
  plans.broadcast(&header, sizeof header, 0);
  plans.broadcast(bytes.data(), header.size, 0);
}

Order receive_order(Collectives& plans, std::string* bytes) {
  OrderHeader header;
  plans.broadcast(&header, sizeof header, 0);
  bytes->resize(static_cast<size_t>(header.size));
  plans.broadcast(bytes->data(), header.size, 0);
  return header.order;
}

// Which blocks and state slot are read or written, then the bytes of all ranks where they are written.
std::string pack_places(std::span<const BlockId> blocks, int32_t state, std::span<const uint8_t> bytes) {
  PackedBytes packed;
  packed.add(std::vector<BlockId>(blocks.begin(), blocks.end()));
  packed.add(state);
  packed.add(std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
  return packed.bytes();
}

// With each rank's sizes of a block and a state.
RankBlocks agree_on_blocks(RankContext& context, const BackendInfo& own) {
  const RankBytes bytes = {own.block_bytes, own.state_bytes};
  std::vector<RankBytes> all(static_cast<size_t>(context.part.num_ranks()));
  context.blocks->all_gather(&bytes, sizeof bytes, all.data());
  return RankBlocks(std::move(all));
}

// Another rank reads or writes its part.
void move_part(Order order, std::string_view packed, RankContext& context, const RankBlocks& all, Backend& backend) {
  std::vector<BlockId> blocks;
  int32_t state = -1;
  std::string bytes;
  PackedReader reader(packed);
  reader.read(blocks), reader.read(state), reader.read(bytes);
  const auto rank = static_cast<size_t>(context.part.rank);
  std::vector<uint8_t> part(static_cast<size_t>(all.part_bytes(rank, blocks.size(), state >= 0)));
  if (order == Order::kWriteHostBlocks) {
    all.take_part(rank, blocks.size(), state >= 0, reinterpret_cast<const uint8_t*>(bytes.data()), part.data());
    return backend.write_host_blocks(blocks, state, part);
  }
  LLMB_CHECK(backend.read_blocks(blocks, state, part));
  context.blocks->send(part.data(), static_cast<int64_t>(part.size()), 0);
}

Status status_of_call(const auto& body) {
  try {
    body();
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
    const RankPart& part = context_->part;
    LLMB_RETURN_IF_ERROR(check_ranks(config, part.tensor_size, part.num_stages, part.context_size,
                                     options.cpu.quantization));
    Status status = peers_->begin_load(config, options);
    if (status.ok()) status = local_->load(config, options);
    if (!status.ok()) {
      context_->ranks->fail(status);  // where it is not another rank's already
      return status;
    }
    LLMB_RETURN_IF_ERROR(peers_->await_load());
    context_->ranks->set_patience_ms(patience_ms_);
    LLMB_RETURN_IF_ERROR(status_of_call([&] { blocks_ = agree_on_blocks(*context_, local_->info()); }));
    info_ = local_->info();
    info_.block_bytes = blocks_.all().block, info_.state_bytes = blocks_.all().state;
    info_.device = std::to_string(context_->part.num_ranks()) + " ranks of " + info_.device;
    return {};
  }

  const BackendInfo& info() const override { return info_; }

  Status submit(const StepPlan& plan) override {
    LLMB_RETURN_IF_ERROR(status_of_call([&] { send_order(*context_->plans, Order::kPlan, pack_plan(plan)); }));
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

  // Rank 0 has what the plan gave that wrote them: by then all have written their parts.
  bool read_blocks(std::span<const BlockId> blocks, int32_t state, std::span<uint8_t> bytes) override {
    return status_of_call([&] {
             send_order(*context_->plans, Order::kReadBlocks, pack_places(blocks, state, {}));
             for (int rank = 0; rank < context_->part.num_ranks(); ++rank) {
               const auto r = static_cast<size_t>(rank);
               std::vector<uint8_t> part(static_cast<size_t>(blocks_.part_bytes(r, blocks.size(), state >= 0)));
               if (rank == 0) LLMB_CHECK(local_->read_blocks(blocks, state, part));
               else context_->blocks->receive(part.data(), static_cast<int64_t>(part.size()), rank);
               blocks_.put_part(r, blocks.size(), state >= 0, part.data(), bytes.data());
             }
           })
        .ok();
  }

  // Where another rank has failed the next plan says so.
  void write_host_blocks(std::span<const BlockId> blocks, int32_t state, std::span<const uint8_t> bytes) override {
    std::vector<uint8_t> part(static_cast<size_t>(blocks_.part_bytes(0, blocks.size(), state >= 0)));
    blocks_.take_part(0, blocks.size(), state >= 0, bytes.data(), part.data());
    local_->write_host_blocks(blocks, state, part);
    static_cast<void>(status_of_call([&] {
      send_order(*context_->plans, Order::kWriteHostBlocks, pack_places(blocks, state, bytes));
    }));
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
  RankBlocks blocks_;
  const SteadyClock clock_;
  int num_in_flight_ = 0;
  double begin_ms_ = 0, steps_ms_ = 0;  // since when a plan is in flight, and how long some were before
};

}  // namespace

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
  RankBlocks blocks;
  if (const Status status = status_of_call([&] { blocks = agree_on_blocks(context, backend.info()); }); !status.ok())
    return tell(status);
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
    if (status.ok()) status = status_of_call([&] {
      for (Order order; (order = receive_order(*context.plans, &bytes)) != Order::kPlan;)
        move_part(order, bytes, context, blocks, backend);
      unpack_plan(bytes, &plan);
    });
    if (status.ok()) status = backend.submit(plan);
    if (status.ok()) continue;
    static_cast<void>(tell(status));  // so that steps in flight end, which use the plans
    while (num_waited < step) num_waited = backend.wait(&output).ok() ? num_waited + 1 : step;
    return status;
  }
}

}  // namespace llmb
