#include "backend/cpu/cpu_backend.h"

#include <algorithm>
#include <array>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <new>
#include <optional>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "backend/add_heads.h"
#include "backend/checks.h"
#include "backend/cpu/cached_load.h"
#include "backend/cpu/cpu_ops.h"
#include "backend/cpu/kv_pool.h"
#include "backend/cpu/memory_limit.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/thread_pool.h"
#include "kernels/cpu/arithmetic.h"
#include "kernels/cpu/machine_limits.h"
#include "model/model_weights.h"
#include "model/transformer.h"
#include "model/weight_files.h"
#include "model/weight_source.h"

namespace llmb {

namespace {

// More threads than a few for each core only wait for each other.
int num_threads(int wanted) {
  const int num_cores = usable_cpu_count(), most = std::max(16, 4 * num_cores);
  if (wanted <= 0) return num_cores;
  if (wanted <= most) return wanted;
  log_warning("--threads " + std::to_string(wanted) + ": " + std::to_string(num_cores) + " cores are usable; " +
              std::to_string(most) + " threads are started (the results are the same)");
  return most;
}

// Large enough that a decode batch of 100 rows reads the LM head once, small beside the weights.
constexpr int64_t kMaxLogitBytes = int64_t{64} << 20;

// An estimate of the weights' memory. files: null where there are none; dtype: of activations.
int64_t resident_weight_bytes(const ModelConfig& config, Quantization quantization, DType dtype,
                              const WeightFiles* files) {
  const int64_t stored = stored_weight_bytes(config);
  if (quantization == Quantization::kNone) {
    const bool stays_blocks = files != nullptr && files->stays_packed() && dtype != DType::kBF16;
    return stays_blocks ? files->stored_bytes() * (files->is_gguf() ? 21 : 24) / 20 : stored;
  }
  const int64_t vocabulary = (config.tie_word_embeddings ? 1 : 2) * int64_t{config.vocab_size} * config.hidden_size;
  const int64_t projections = stored / dtype_bytes(config.dtype) - vocabulary;
  return vocabulary + (quantization == Quantization::kInt8 ? projections : projections * 9 / 16);
}

Status status_of_error(const std::exception& e) { return internal_error(e.what()); }

// A driver thread runs the step, so that the thread that submitted it is free until wait(), unless that has nothing
// else to do (runs_in_wait).
class CpuBackend final : public Backend {
 public:
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

  const BackendInfo& info() const override { return info_; }

  Status submit(const StepPlan& plan) override {
    LLMB_RETURN_IF_ERROR(check(plan));
    {
      std::lock_guard lock(mutex_);
      LLMB_CHECK_MSG(num_submitted_ - num_fetched_ < kMaxPlansInFlight, "too many plans in flight");
      steps_[num_submitted_ % kMaxPlansInFlight].plan = &plan;
      ++num_submitted_;
    }
    changed_.notify_all();
    return {};
  }

  Status wait(StepOutput* output) override {
    std::unique_lock lock(mutex_);
    LLMB_CHECK_MSG(num_fetched_ < num_submitted_, "nothing in flight");
    if (options_.cpu.runs_in_wait) run_next(lock);
    changed_.wait(lock, [&] { return num_done_ > num_fetched_ || !failure_.ok(); });
    if (num_done_ == num_fetched_) {  // what follows the failed step was never run
      num_done_ = num_fetched_ = num_submitted_;
      return std::exchange(failure_, Status());
    }
    std::swap(*output, steps_[num_fetched_ % kMaxPlansInFlight].output);
    ++num_fetched_;
    return {};
  }

  AdapterStore* adapters() override { return ops_ ? ops_->adapters() : nullptr; }

  MachineLimits measure_limits() override {
    LLMB_CHECK_MSG(transformer_.has_value(), "load() comes before measure_limits()");
    const cpu::Rate peak = options_.cpu.quantization == Quantization::kInt8 ? cpu::measure_peak_int8_ops(*pool_)
                           : options_.dtype == DType::kBF16                 ? cpu::measure_peak_bf16_flops(*pool_)
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
    if (options.kv_cache_dtype == DType::kF16)
      return unsupported("kv-cache-dtype float16: on the CPU it is float32, bfloat16 or int8");
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
    const int64_t weight_bytes = resident_weight_bytes(config, options.cpu.quantization, chosen->dtype, stored);
    LLMB_ASSIGN_OR_RETURN(const KvLayout kv, plan_memory(config, options, weight_bytes));
    config_ = config;
    options_ = options;
    LLMB_RETURN_IF_ERROR(choose_arithmetic());
    info_.kv = kv;
    info_.max_idle_blocks = max_idle_blocks(info_.kv, options);
    pool_.emplace(num_threads(options.num_threads));
    ops_.emplace(config, info_.kv, num_scratch_blocks(options), options.max_model_len, options.cpu.quantization,
                 options.cpu.rounds_block_activations ? DType::kI8 : *options_.dtype, *pool_);
    if (config.has_states()) add_states(weight_bytes);
    else add_host_pool(weight_bytes);
    if (options.adapters) ops_->add_adapters(options.adapters, options.adapter_bytes);
    LLMB_RETURN_IF_ERROR(load_weights(files));
    info_.kind = DeviceKind::kCpu;
    info_.device = "cpu (" + cpu::simd_target_name() + ", " + std::to_string(pool_->num_threads()) +
                   (pool_->num_threads() == 1 ? " thread)" : " threads)");
    info_.max_plans_in_flight = kMaxPlansInFlight;
    info_.max_drafts_per_group = config.has_states() ? max_state_drafts(options) : options.max_num_drafts;
    info_.max_best_tokens = INT32_MAX;
    info_.verifies_trees = options.verifies_trees && !config.has_states();
    info_.copies_blocks = info_.runs_first_layers = info_.scores_prompts = true;
    info_.load_ms = clock.now_ms();
    if (!options.cpu.runs_in_wait) driver_ = std::thread([this] { drive(); });
    return {};
  }

  // Snapshots take a part of the memory that weights and pool leave.
  void add_states(int64_t weight_bytes) {
    constexpr int64_t kShare = 4;
    const int64_t available = available_memory_bytes();
    const int64_t left = available - weight_bytes - info_.kv.num_blocks * info_.kv.bytes_per_block();
    const int64_t most = available > 0 ? std::clamp<int64_t>(left / kShare, 0, kSnapshotBytes) : kSnapshotBytes;
    const StateLayout layout = state_layout(config_, options_.max_num_seqs, max_state_drafts(options_), most);
    ops_->add_states(layout);
    info_.num_state_slots = layout.num_slots;
    info_.num_snapshots = layout.num_snapshots;
  }

  // Takes memory that weights and pool leave. Without a host pool preempted sequences are computed again.
  void add_host_pool(int64_t weight_bytes) {
    const int64_t available = available_memory_bytes();
    const int64_t used = weight_bytes + info_.kv.num_blocks * info_.kv.bytes_per_block();
    const int32_t num_blocks = plan_host_blocks(info_.kv, options_, available > 0 ? available - used : INT64_MAX);
    if (num_blocks == 0) return;
    try {
      ops_->add_host_pool(num_blocks);
      info_.swap_bytes_per_s = measure_copy_bytes_per_s(*pool_);
      info_.num_host_blocks = num_blocks;
    } catch (const std::bad_alloc&) {
      log_warning("no memory for swapped blocks: preempted requests are computed again; lower --swap-space");
    }
  }

  // Sets what the process computes in; another backend in it that does not care keeps what it has.
  Status choose_arithmetic() {
    const Result<CpuArithmetic> chosen =
        choose_cpu_arithmetic(config_, options_.cpu.quantization, options_.dtype, options_.cpu.arithmetic);
    LLMB_RETURN_IF_ERROR(chosen.status());
    LLMB_RETURN_IF_ERROR(check_cpu_arithmetic(chosen->arithmetic));
    options_.dtype = chosen->dtype;
    const bool is_any_bf16 =
        chosen->dtype == DType::kF32 && chosen->arithmetic == Arithmetic::kFma && is_bf16_arithmetic(cpu::arithmetic());
    if (!is_any_bf16) cpu::set_arithmetic(chosen->arithmetic);
    return {};
  }

  static Status check_dtype(const ModelConfig& config, const LoadOptions& options) {
    const DType dtype = options.dtype.value_or(DType::kF32);
    if (dtype == DType::kF32) return {};
    const std::string name = std::string("dtype ") + dtype_name(dtype) + ": ";
    if (dtype != DType::kBF16) return unsupported(name + "the CPU computes in float32, or bfloat16 over such weights");
    if (options.cpu.quantization != Quantization::kNone)
      return unsupported(name + "not with quantization " + quantization_name(options.cpu.quantization) +
                         ", which says what products take; leave one of the two out");
    if (config.dtype == DType::kBF16) return {};
    return unsupported(name + "on the CPU only over weights stored as bfloat16; these are " + dtype_name(config.dtype) +
                       ", leave it out");
  }

  static Status check_block_activations(const ModelConfig& config, const LoadOptions& options,
                                        const WeightFiles* files) {
    if (!options.cpu.rounds_block_activations) return {};
    const std::string name = "gguf-activations int8: ";
    if (files == nullptr || !files->is_gguf() || !config.is_dequantised)
      return unsupported(name + "the model has no weights in GGUF's blocks of few bits; leave it out");
    if (options.cpu.quantization == Quantization::kNone) return {};
    return unsupported(name + "not with quantization " + quantization_name(options.cpu.quantization) +
                       ", which rounds these weights anew; leave one of the two out");
  }

  // Before any weight is read, so that what cannot fit is refused at once.
  static Result<KvLayout> plan_memory(const ModelConfig& config, const LoadOptions& options, int64_t weights) {
    const int64_t available = available_memory_bytes();
    if (available > 0 && weights >= available)
      return resource_exhausted("the weights need " + std::to_string(weights >> 20) + " MiB, but only " +
                                std::to_string(available >> 20) + " MiB of memory are available");
    const int64_t states =
        options.max_num_seqs * state_layout(config, options.max_num_seqs, max_state_drafts(options)).slot_bytes();
    if (available > 0 && states >= (available - weights) / 2)
      return resource_exhausted("the states of " + std::to_string(options.max_num_seqs) + " sequences need " +
                                std::to_string(states >> 20) + " MiB, but only " + std::to_string(available >> 20) +
                                " MiB of memory are available; lower --max-num-seqs");
    return plan_kv_layout(config, options, available > 0 ? available - weights - states : 0);
  }

  Status load_weights(const std::optional<WeightFiles>& files) {
    Result<ModelWeights> weights = [&]() -> Result<ModelWeights> {
      if (!files) {
        RandomSource source(options_.dummy_seed, config_.dtype, *pool_);
        return load_model_weights(config_, source, *ops_);
      }
      if (options_.cpu.weight_cache_dir.empty())
        return load_model_weights(config_, *files->make_source(*pool_, WeightAccess::kValues, weight_form(options_)),
                                  *ops_);
      LLMB_ASSIGN_OR_RETURN(CachedLoad load, load_model_weights_cached(config_, *files, options_, *ops_, *pool_));
      weight_file_ = std::move(load.file);
      return std::move(load.weights);
    }();
    if (files) LLMB_RETURN_IF_ERROR(files->still_readable());
    if (!weights.ok()) return weights.status().with_context(options_.model_dir);
    info_.weight_bytes = weights->resident_bytes();
    transformer_.emplace(config_, std::move(*weights), *ops_, options_.max_num_batched_tokens,
                         options_.max_num_samples(), kMaxLogitBytes);
    if (options_.adapters) ops_->set_merge_base(transformer_->weights());
    if (options_.pooling) {
      std::unique_ptr<WeightSource> source;
      if (files) source = files->make_source(*pool_);
      else source = std::make_unique<RandomSource>(options_.dummy_seed, config_.dtype, *pool_);
      Result<PoolingHead> head = PoolingHead::load(*options_.pooling, *source, *ops_);
      if (files) LLMB_RETURN_IF_ERROR(files->still_readable());
      if (!head.ok()) return head.status().with_context(options_.model_dir);
      transformer_->give_vectors(std::move(*head));
    }
    return add_heads(options_, config_, *ops_, &*transformer_, &info_);
  }

  Status check(const StepPlan& plan) const {
    LLMB_CHECK_MSG(transformer_.has_value(), "load() comes before submit()");
    // The thread that submits is the only one that changes these two counts.
    const bool follows = num_submitted_ > num_fetched_;
    const StepPlan* in_flight = follows ? steps_[(num_submitted_ - 1) % kMaxPlansInFlight].plan : nullptr;
    return check_plan(plan, config_, options_, info_, in_flight);
  }

  void drive() {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [&] { return stop_ || (failure_.ok() && num_done_ < num_submitted_); });
      if (stop_) return;
      run_next(lock);
    }
  }

  // The oldest step that is not done. `lock` is released while it runs.
  void run_next(std::unique_lock<std::mutex>& lock) {
    Step& step = steps_[num_done_ % kMaxPlansInFlight];
    lock.unlock();
    const SteadyClock clock;
    const Status status = guarded(status_of_error, [&] {
      ops_->begin_step(*step.plan);
      const StepPlan& plan = *step.plan;
      if (plan.hidden_rows.empty()) transformer_->forward(plan.num_tokens(), plan.num_samples(), plan.num_layers);
      else transformer_->forward_heads(plan.num_tokens(), plan.num_samples());
      ops_->end_step(&step.output);
      step.output.device_ms = clock.now_ms();
      if (!weight_file_) return Status();
      return weight_file_->check(*pool_).with_context("weight cache");
    });
    lock.lock();
    if (status.ok()) ++num_done_;
    else failure_ = status;
    changed_.notify_all();
  }

  ModelConfig config_;
  LoadOptions options_;
  BackendInfo info_;
  std::optional<ThreadPool> pool_;
  std::optional<CpuOps> ops_;
  std::optional<CachedWeights> weight_file_;  // before what lies in it
  std::optional<Transformer> transformer_;

  std::mutex mutex_;
  std::condition_variable changed_;
  // A step's entry belongs to the driver while it runs.
  struct Step {
    const StepPlan* plan = nullptr;
    StepOutput output;
  };
  std::array<Step, kMaxPlansInFlight> steps_;  // step i in entry i % size; this and what follows is guarded by mutex_
  int64_t num_submitted_ = 0, num_done_ = 0, num_fetched_ = 0;
  Status failure_;  // of step num_done_
  bool stop_ = false;
  std::thread driver_;
};

}  // namespace

std::unique_ptr<Backend> make_cpu_backend() { return std::make_unique<CpuBackend>(); }

Result<CpuArithmetic> choose_cpu_arithmetic(const ModelConfig& config, Quantization quantization,
                                            std::optional<DType> dtype, std::optional<Arithmetic> arithmetic) {
  const bool stay_bf16 = config.dtype == DType::kBF16 && quantization == Quantization::kNone;
  if (arithmetic && is_bf16_arithmetic(*arithmetic) && (!stay_bf16 || dtype.value_or(DType::kBF16) != DType::kBF16))
    return invalid_argument(std::string("arithmetic ") + arithmetic_name(*arithmetic) +
                            " multiplies bfloat16 by bfloat16: not with " +
                            (stay_bf16 ? "dtype float32" : "weights that are not kept as bfloat16"));
  const Arithmetic fastest = cpu::fastest_arithmetic(stay_bf16);
  const DType own = stay_bf16 && is_bf16_arithmetic(arithmetic.value_or(fastest)) ? DType::kBF16 : DType::kF32;
  const DType chosen = dtype.value_or(own);
  return CpuArithmetic{chosen, arithmetic.value_or(cpu::fastest_arithmetic(chosen == DType::kBF16))};
}

Status check_cpu_arithmetic(Arithmetic arithmetic) {
  if (cpu::can_compute(arithmetic)) return {};
  std::string able;
  for (const Arithmetic other : kAllArithmetic)
    if (cpu::can_compute(other)) able += std::string(able.empty() ? "" : ", ") + arithmetic_name(other);
  return unsupported(std::string("arithmetic ") + arithmetic_name(arithmetic) +
                     ": this processor cannot compute it (it can: " + able + ")");
}

DType cpu_activation_dtype(const ModelConfig& config, Quantization quantization) {
  return choose_cpu_arithmetic(config, quantization, std::nullopt, std::nullopt)->dtype;
}

}  // namespace llmb
