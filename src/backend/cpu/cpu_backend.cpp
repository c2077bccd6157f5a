#include "backend/cpu/cpu_backend.h"

#include <algorithm>
#include <array>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "backend/add_heads.h"
#include "backend/checks.h"
#include "backend/cpu/cached_load.h"
#include "backend/cpu/cpu_ops.h"
#include "backend/cpu/host_writes.h"
#include "backend/cpu/kv_pool.h"
#include "backend/cpu/load_checks.h"
#include "backend/cpu/memory_limit.h"
#include "backend/cpu/open_groups.h"
#include "backend/cpu/stage_link.h"
#include "backend/cpu/waiting_caller.h"
#include "backend/cpu/weight_memory.h"
#include "backend/ranks/step_outputs.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/thread_pool.h"
#include "core/plans_in_flight.h"
#include "kernels/cpu/arithmetic.h"
#include "kernels/cpu/machine_limits.h"
#include "model/model_weights.h"
#include "model/transformer.h"
#include "model/weight_files.h"
#include "model/weight_source.h"

namespace llmb {

namespace {

// Large enough that a decode batch of 100 rows reads the LM head once, small beside the weights.
constexpr int64_t kMaxLogitBytes = int64_t{64} << 20;

// A driver thread runs the step, so that the thread that submitted it is free until wait(), unless that has nothing
// else to do (runs_in_wait), or had nothing (WaitingCaller).
class CpuBackend final : public Backend {
 public:
  explicit CpuBackend(std::shared_ptr<RankContext> ranks) : ranks_(std::move(ranks)) {}
  ~CpuBackend() override {
    {
      std::lock_guard lock(mutex_);
      stop_ = true;
    }
    changed_.notify_all();
    if (driver_.joinable()) driver_.join();
  }

  Status load(const ModelConfig& config, const LoadOptions& options) override {
    LLMB_CHECK_MSG(!transformer_, "load() is called once");
    return guarded(status_of_error, [&] { return do_load(config, options); });
  }

  // lend_blocks()'s, before it loads.
  void borrow(CpuBackend& target, LentBlocks* lent) {
    lending_ = &target.ops_->kv();
    lent->num_blocks = lending_->num_in_plane();
    lent_ = *lent;
  }

  const BackendInfo& info() const override { return info_; }

  Status submit(const StepPlan& plan) override {
    LLMB_RETURN_IF_ERROR(check(plan));
    {
      std::lock_guard lock(mutex_);
      LLMB_CHECK_MSG(num_submitted_ - num_fetched_ < info_.max_plans_in_flight, "too many plans in flight");
      steps_[num_submitted_ % kMaxAlternatingPlans].plan = &plan;
      steps_[num_submitted_ % kMaxAlternatingPlans].host_writes = host_writes_.take();
      if (!ranks_) caller_.submit(num_submitted_ == num_fetched_);
      ++num_submitted_;
      if (caller_.has_step()) return {};
    }
    if (is_early_stage()) outputs_->expect(num_submitted_);
    changed_.notify_all();
    return {};
  }

  Status wait(StepOutput* output) override {
    if (is_early_stage()) return take_output(output);
    std::unique_lock lock(mutex_);
    LLMB_CHECK_MSG(num_fetched_ < num_submitted_, "nothing in flight");
    if (caller_.wait(num_submitted_ - num_fetched_ == 1) || options_.cpu.runs_in_wait) run_next(lock);
    changed_.wait(lock, [&] { return num_done_ > num_fetched_ || !failure_.ok(); });
    if (num_done_ == num_fetched_) {  // what follows the failed step was never run
      num_done_ = num_fetched_ = num_submitted_;
      return std::exchange(failure_, Status());
    }
    std::swap(*output, steps_[num_fetched_ % kMaxAlternatingPlans].output);
    ++num_fetched_;
    return {};
  }

  bool read_blocks(std::span<const BlockId> blocks, int32_t state, std::span<uint8_t> bytes) override {
    ops_->kv().read_blocks(blocks, bytes.data());
    if (state >= 0) ops_->states()->read(state, &bytes[blocks.size() * static_cast<size_t>(info_.block_bytes)]);
    return true;
  }
  void write_host_blocks(std::span<const BlockId> blocks, int32_t state, std::span<const uint8_t> bytes) override {
    host_writes_.add(blocks, state, bytes);
  }

  AdapterStore* adapters() override { return ops_ ? ops_->adapters() : nullptr; }

  MachineLimits measure_limits() override {
    LLMB_CHECK_MSG(transformer_.has_value(), "load() comes before measure_limits()");
    const Quantization format = options_.cpu.quantization;
    const bool is_int8 = format == Quantization::kInt8 || format == Quantization::kW4A8;
    const cpu::Rate peak = is_int8                          ? cpu::measure_peak_int8_ops(*pool_)
                           : options_.dtype == DType::kBF16 ? cpu::measure_peak_bf16_flops(*pool_)
                                                            : cpu::measure_peak_flops(*pool_);
    const int64_t available = available_memory_bytes();
    const cpu::Rate reads = cpu::measure_read_bandwidth(*pool_, available > 0 ? available / 4 : INT64_MAX);
    return {peak.sustained, reads.sustained};
  }

 private:
  Status do_load(const ModelConfig& config, const LoadOptions& options) {
    const SteadyClock clock;
    LLMB_RETURN_IF_ERROR(check_load_options(config, options));
    LLMB_RETURN_IF_ERROR(check_dtype(config, options));
    LLMB_RETURN_IF_ERROR(check_kv_dtype(config, options));
    const bool is_int4 = options.kv_cache_dtype == DType::kI4;
    if (!options.cpu.weight_cache_dir.empty() && options.load_format == LoadFormat::kDummy)
      return unsupported("weight-cache: random weights are made anew in each run; leave it out");
    std::optional<WeightFiles> files;
    if (options.load_format == LoadFormat::kAuto) {
      LLMB_ASSIGN_OR_RETURN(WeightFiles opened, WeightFiles::open(options.model_dir, config));
      files.emplace(std::move(opened));
    }
    const WeightFiles* const stored = files ? &*files : nullptr;
    LLMB_RETURN_IF_ERROR(check_block_activations(config, options, stored));
    const Result<CpuArithmetic> chosen =
        choose_cpu_arithmetic(config, options.cpu.quantization, options.dtype, options.cpu.arithmetic);
    LLMB_RETURN_IF_ERROR(chosen.status());
    const int64_t weight_bytes = (ranks_ ? ranks_->part.context_size : 1) *
                                 resident_weight_bytes(config, options.cpu.quantization, chosen->dtype, stored);
    LLMB_ASSIGN_OR_RETURN(const KvLayout kv, lending_ ? borrowed_kv_layout(config, options, lent_)
                                                      : plan_memory(config, options, weight_bytes));
    config_ = own_ = config, options_ = options;
    LLMB_RETURN_IF_ERROR(use_cpu_arithmetic(config_, &options_));
    info_.kv = kv;
    KvLayout own_kv = kv;
    if (ranks_) {
      share_ = share_of(config, ranks_->part);
      own_ = config_of(config, *share_);
      info_.kv.num_blocks = least_of_ranks(num_blocks_of_ranks(config, options, kv, ranks_->part));
      own_kv = kv_of_rank(config, kv, ranks_->part);
      own_kv.num_blocks = info_.kv.num_blocks;
    }
    info_.max_idle_blocks = max_idle_blocks(info_.kv, options);
    pool_.emplace(num_threads_for(options.num_threads));
    const int32_t num_scratch = lending_ ? 0 : num_scratch_blocks(options) - num_row_slices(options);
    ops_.emplace(own_, own_kv, lending_ ? KvPool(own_kv, *lending_, lent_) : KvPool(own_kv, num_scratch_blocks(options)), num_scratch,
                 options.max_model_len, options.cpu.quantization,
                 options.cpu.rounds_block_activations ? DType::kI8 : *options_.dtype, *pool_);
    if (share_) ops_->begin_at_layer(share_->layers.begin, config);
    if (ranks_ && ranks_->part.tensor_size > 1) ops_->join_ranks(*ranks_, config, *share_);
    if (ranks_ && ranks_->part.context_size > 1) ops_->share_rows(*ranks_->context, config);
    if (divides_kv()) ops_->divide_kv(*ranks_->context, own_kv.num_blocks + num_scratch);
    if (config.has_states()) add_states(weight_bytes);
    if (!config.has_states() || options.receives_prompts) add_host_pool(weight_bytes);
    if (is_int4) add_open_groups();
    info_.block_bytes = ops_->kv().block_bytes();
    if (options.adapters) add_adapters();
    LLMB_RETURN_IF_ERROR(load_weights(files));
    describe(config, options, pool_->num_threads(), ranks_ ? ranks_->part.num_stages : 1, &info_);
    info_.load_ms = clock.now_ms();
    if (!options.cpu.runs_in_wait) driver_ = std::thread([this] { drive(); });
    return {};
  }

  // The memory that was given is that of all ranks.
  void add_adapters() {
    std::optional<LoraShare> rank;
    if (ranks_) rank = {config_, *share_};
    ops_->add_adapters(options_.adapters, options_.adapter_bytes / (ranks_ ? ranks_->part.num_ranks() : 1), rank);
  }

  void add_states(int64_t weight_bytes) {
    const int64_t used = weight_bytes + info_.kv.num_blocks * info_.kv.bytes_per_block();
    StateLayout layout = plan_states(own_, options_, used, ranks_ ? ranks_->part.num_ranks() : 1);
    layout.keep_snapshots(least_of_ranks(layout.num_snapshots), options_.max_num_seqs);
    ops_->add_states(layout);
    info_.state_bytes = ops_->states()->slot_bytes();
    info_.num_state_slots = layout.num_slots;
    info_.num_snapshots = layout.num_snapshots;
  }

  void add_open_groups() {
    ops_->add_open_groups(options_);
    info_.num_state_slots = OpenGroups::num_slots(options_);
    info_.state_period = kKvGroup;
  }

  // Takes memory that weights and pool leave. Without a host pool preempted sequences are computed again.
  void add_host_pool(int64_t weight_bytes) {
    const int64_t available = available_memory_bytes();
    const int64_t used = weight_bytes + info_.kv.num_blocks * info_.kv.bytes_per_block();
    const int32_t num_blocks =
        least_of_ranks(plan_host_blocks(info_.kv, options_, available > 0 ? available - used : INT64_MAX));
    if (num_blocks == 0) return;
    try {
      ops_->add_host_pool(num_blocks);
      info_.swap_bytes_per_s = measure_copy_bytes_per_s(*pool_);
      info_.num_host_blocks = num_blocks;
    } catch (const std::bad_alloc&) {
      if (ranks_) throw;  // the others have their part of it
      log_warning("no memory for swapped blocks: preempted requests are computed again; lower --swap-space");
    }
  }

  // Ranks have equally many blocks and slots.
  int32_t least_of_ranks(int32_t own) { return std::ranges::min(of_all_ranks(ranks_.get(), own)); }

  Status load_weights(const std::optional<WeightFiles>& files) {
    const ModelShare* const share = share_ ? &*share_ : nullptr;
    Result<ModelWeights> weights = [&]() -> Result<ModelWeights> {
      if (!files) {
        RandomSource source(options_.dummy_seed, config_.dtype, *pool_);
        return load_model_weights(config_, source, *ops_, share);
      }
      if (options_.cpu.weight_cache_dir.empty())
        return load_model_weights(config_, *files->make_source(*pool_, WeightAccess::kValues, weight_form(options_)),
                                  *ops_, share);
      LLMB_ASSIGN_OR_RETURN(CachedLoad load, load_model_weights_cached(config_, *files, options_, *ops_, *pool_, share,
                                                                       ranks_ ? &ranks_->part : nullptr));
      weight_file_ = std::move(load.file);
      return std::move(load.weights);
    }();
    if (files) LLMB_RETURN_IF_ERROR(files->still_readable());
    if (!weights.ok()) return weights.status().with_context(options_.model_dir);
    LLMB_RETURN_IF_ERROR(add_eagle_layer(options_, config_, share_, *pool_, *ops_, &*weights));
    info_.weight_bytes = 0;
    for (const int64_t bytes : of_all_ranks(ranks_.get(), weights->resident_bytes())) info_.weight_bytes += bytes;
    // As many rows on all ranks, whose parts of the vocabulary differ.
    const int64_t logit_rows = std::max<int64_t>(1, kMaxLogitBytes / (int64_t{config_.vocab_size} * 4));
    transformer_.emplace(own_, std::move(*weights), *ops_, options_.max_num_batched_tokens,
                         options_.max_num_samples(), logit_rows * own_.vocab_size * 4);
    if (options_.adapters) ops_->set_merge_base(transformer_->weights());
    if (has_stages()) {
      link_.emplace(*ranks_);
      outputs_.emplace(*ranks_->all, ranks_->part.num_ranks() - ranks_->part.stage_size());
      transformer_->be_stage(static_cast<int32_t>(share_->layers.begin), share_->draws, &*link_);
    }
    LLMB_RETURN_IF_ERROR(add_pooling_head(options_, config_, share_, files, *pool_, *ops_, &*transformer_));
    return add_heads(options_, config_, share_, *ops_, &*transformer_, &info_);
  }

  bool divides_kv() const { return ranks_ && ranks_->part.num_slices() > 1; }
  bool has_stages() const { return ranks_ && ranks_->part.num_stages > 1; }
  bool is_early_stage() const { return has_stages() && !ranks_->part.is_last_stage(); }

  // The last stage gives what the oldest step in flight gave.
  Status take_output(StepOutput* output) {
    LLMB_CHECK_MSG(num_fetched_ < num_submitted_, "nothing in flight");
    const Status status = guarded(status_of_error, [&] {
      outputs_->take(num_fetched_ + 1);
      return Status();
    });
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return num_done_ > num_fetched_ || !failure_.ok(); });  // the plan is used until then
    if (!status.ok() || num_done_ == num_fetched_) {
      num_done_ = num_fetched_ = num_submitted_;
      return status.ok() ? std::exchange(failure_, Status()) : status;
    }
    std::swap(*output, outputs_->output(num_fetched_));
    ++num_fetched_;
    return {};
  }

  Status check(const StepPlan& plan) const {
    LLMB_CHECK_MSG(transformer_.has_value(), "load() comes before submit()");
    // The thread that submits is the only one that changes these two counts.
    const bool follows = num_submitted_ > num_fetched_;
    const StepPlan* in_flight = follows ? steps_[(num_submitted_ - 1) % kMaxAlternatingPlans].plan : nullptr;
    return check_plan(plan, config_, options_, info_, in_flight);
  }

  void drive() {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [&] { return stop_ || (failure_.ok() && num_done_ < num_submitted_ && !caller_.has_step()); });
      if (stop_) return;
      run_next(lock);
    }
  }

  // Heads and the layer behind the last one are the last stage's.
  void run_layers(const StepPlan& plan) {
    const bool is_behind_all = plan.is_mtp || !plan.hidden_rows.empty();
    if (is_behind_all && is_early_stage()) return;
    if (plan.is_mtp) transformer_->forward_mtp(plan.num_tokens(), plan.num_samples());
    else if (is_behind_all) transformer_->forward_heads(plan.num_tokens(), plan.num_samples());
    else transformer_->forward(ops_->num_rows(), plan.num_samples(), plan.num_layers);
  }

  // The oldest step that is not done. `lock` is released while it runs.
  void run_next(std::unique_lock<std::mutex>& lock) {
    Step& step = steps_[num_done_ % kMaxAlternatingPlans];
    const int64_t number = num_done_;
    lock.unlock();
    const SteadyClock clock;
    if (ranks_) ranks_->ranks->begin_step(ranks_->part.rank, step.plan->step);
    const Status status = guarded(status_of_error, [&] {
      const StepPlan& plan = *step.plan;
      if (is_early_stage() && follows_another(plan)) {
        outputs_->take(number);
        ops_->set_given(outputs_->given(number - 1));
      }
      step.host_writes.run(ops_->host_kv(), ops_->states());
      ops_->begin_step(plan);
      run_layers(plan);
      if (is_early_stage()) {
        ops_->end_stage();
        return Status();
      }
      ops_->end_step(&step.output);
      step.output.device_ms = has_stages() ? 0 : clock.now_ms();
      if (has_stages() && ranks_->part.rank % ranks_->part.stage_size() == 0) outputs_->give(step.output, ops_->given());
      else if (has_stages()) outputs_->take(number + 1);
      if (!weight_file_) return Status();
      return weight_file_->check(*pool_).with_context("weight cache");
    });
    // Nothing where another rank has failed before.
    if (ranks_) ranks_->ranks->end_step(ranks_->part.rank, status);
    lock.lock();
    if (status.ok()) ++num_done_;
    else failure_ = status;
    changed_.notify_all();
  }

  const std::shared_ptr<RankContext> ranks_;  // null: this one computes all
  ModelConfig config_, own_;                  // of the model, and of what this one computes
  std::optional<ModelShare> share_;           // of a rank
  LoadOptions options_;
  BackendInfo info_;
  KvPool* lending_ = nullptr;  // whose memory the pool is in; null: it has its own
  LentBlocks lent_;            // of it
  std::optional<ThreadPool> pool_;
  std::optional<CpuOps> ops_;
  std::optional<CachedWeights> weight_file_;  // before what lies in it
  std::optional<CpuStageLink> link_;          // where there are several stages
  std::optional<StepOutputs> outputs_;        // likewise
  std::optional<Transformer> transformer_;

  HostWrites host_writes_;  // before the next plan that is submitted

  std::mutex mutex_;
  std::condition_variable changed_;
  // A step's entry belongs to the driver while it runs.
  struct Step {
    const StepPlan* plan = nullptr;
    HostWrites host_writes;  // before it
    StepOutput output;
  };
  std::array<Step, kMaxAlternatingPlans> steps_;  // step i in entry i % size; this and what follows is guarded by mutex_
  int64_t num_submitted_ = 0, num_done_ = 0, num_fetched_ = 0;
  WaitingCaller caller_;
  Status failure_;  // of step num_done_
  bool stop_ = false;
  std::thread driver_;
};

}  // namespace

std::unique_ptr<Backend> make_cpu_backend(std::shared_ptr<RankContext> ranks) {
  return std::make_unique<CpuBackend>(std::move(ranks));
}

bool lend_cpu_blocks(Backend& target, Backend& draft, LentBlocks* lent) {
  auto *const lending = dynamic_cast<CpuBackend*>(&target), *const borrowing = dynamic_cast<CpuBackend*>(&draft);
  if (lending == nullptr || borrowing == nullptr) return false;
  borrowing->borrow(*lending, lent);
  return true;
}

}  // namespace llmb
