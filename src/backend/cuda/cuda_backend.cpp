#include "backend/cuda/cuda_backend.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "backend/add_heads.h"
#include "backend/checks.h"
#include "backend/cuda/cuda_draft_feed.h"
#include "backend/cuda/cuda_ops.h"
#include "backend/cuda/cuda_ranks.h"
#include "backend/cuda/gpu_weights.h"
#include "backend/cuda/lent_cuda_blocks.h"
#include "backend/cuda/memory_plan.h"
#include "backend/cuda/ops_options.h"
#include "backend/cuda/own_queue.h"
#include "backend/cuda/rank_steps.h"
#include "backend/cuda/sampled_output.h"
#include "backend/cuda/share_cuda_queue.h"
#include "backend/cuda/step_flight.h"
#include "backend/cuda/step_graphs.h"
#include "backend/cuda/step_splits.h"
#include "backend/cuda/supported.h"
#include "backend/cuda/warm_up.h"
#include "backend/ranks/ranked_backend.h"
#include "base/clock.h"
#include "base/thread_pool.h"
#include "kernels/cuda/hopper.h"
#include "model/model_weights.h"
#include "model/quantization_config.h"
#include "model/transformer.h"
#include "model/weight_files.h"

namespace llmb {

using cuda::check;

namespace {

class CudaBackend final : public Backend, public BlockTenant {
 public:
  CudaBackend(int index, std::shared_ptr<RankContext> ranks, SplitMode splits)
      : index_(index), context_(std::move(ranks)), split_mode_(splits) {}

  ~CudaBackend() override {
    steps_.reset();
    if (stream_) cudaStreamSynchronize(stream_->get());  // nothing may run in memory that goes away
  }

  Status load(const ModelConfig& config, const LoadOptions& options) override {
    LLMB_CHECK_MSG(!transformer_, "load() is called once");
    return guard([&] { return do_load(config, options); });
  }

  // DraftFeed's: this one drafts for the target, if both are on one GPU.
  std::unique_ptr<DraftFeed> draft_for(CudaBackend& target) {
    if (index_ != target.index_ || context_ || target.context_) return nullptr;
    LLMB_CHECK(target.transformer_ && !stream_);
    stream_ = target.stream_;
    target_ops_ = &*target.ops_, flights_.target = &target.flights_;
    target.is_fed_ = true;
    return std::make_unique<CudaDraftFeed>(index_, target.ops_, ops_, stream_);
  }

  OwnDrafts own_drafts() {
    if (num_own_drafts() == 0) return {};
    is_fed_ = true, own_drafts_.forget_all();  // of one before
    own_drafts_.target = &flights_;
    const auto submit_one = [this](const StepPlan& plan) { return submit_to(own_drafts_, plan); };
    const auto wait_for_one = [this](StepOutput* output) { return wait_for(own_drafts_, output); };
    return {std::make_unique<OwnQueue>(info_, num_own_drafts(), submit_one, wait_for_one),
            std::make_unique<CudaDraftFeed>(index_, ops_, ops_, stream_)};
  }

  void borrow(int32_t num_blocks) override { num_borrowed_ = num_blocks; }  // behind draft_for()
  const BackendInfo& info() const override { return info_; }
  MachineLimits measure_limits() override { return measure_device(dtype_, stream_->get()); }
  AdapterStore* adapters() override { return ops_ && ops_->adapters() ? &ops_->adapters()->store() : nullptr; }

  Status submit(const StepPlan& plan) override { return submit_to(flights_, plan); }
  Status wait(StepOutput* output) override { return wait_for(flights_, output); }
  bool read_blocks(std::span<const BlockId> blocks, int32_t state, std::span<uint8_t> bytes) override {
    return ops_->read_blocks(blocks, state, bytes.data());
  }
  void write_host_blocks(std::span<const BlockId> blocks, int32_t state, std::span<const uint8_t> bytes) override {
    ops_->write_host_blocks(blocks, state, bytes);
  }

 private:
  Status guard(const auto& body) const { return guarded_as_rank(context_.get(), body); }

  Status submit_to(FlightQueue& queue, const StepPlan& plan) {
    LLMB_CHECK_MSG(transformer_.has_value(), "load() comes before submit()");
    LLMB_CHECK_MSG(queue.has_room(), "too many plans in flight");
    const DraftRules rules{is_fed_ ? ops_->num_drafted() : 0, queue.passes_on()};
    LLMB_RETURN_IF_ERROR(check_plan(plan, config_, options_, info_, queue.before().newest_plan(), rules));
    LLMB_RETURN_IF_ERROR(check_device_plan(plan, ops_->limits(), is_early_stage()));
    return guard([&] {
      check(cudaSetDevice(index_), "cudaSetDevice");  // of this thread, which need not be the one that loaded
      if (ranks_) LLMB_RETURN_IF_ERROR(ranks_->failure());
      if (queue.follows_target() && follows_another(plan)) ops_->follow(drafts() ? *target_ops_ : *ops_);
      start(plan, queue);
      return Status();
    });
  }

  Status wait_for(FlightQueue& queue, StepOutput* output) {
    LLMB_CHECK_MSG(!queue.empty(), "nothing in flight");
    const Status status = steps_ ? steps_->wait(output) : guard([&] {
      StepFlight& flight = queue.of(queue.num_fetched);
      const double device_ms = await(flight);
      read_output(queue, queue.num_fetched, output);
      output->device_ms = device_ms;
      splits_.observe(flight.work, device_ms);
      return Status();
    });
    if (status.ok()) ++queue.num_fetched;
    else queue.forget_all();
    return status;
  }

  int32_t max_plans_in_flight() const {
    return drafts() ? kPlansOfDraftModel : plans_in_flight_of(context_ ? context_->part.num_stages : 1);
  }
  bool drafts() const { return target_ops_ != nullptr; }  // for another one
  bool is_early_stage() const { return context_ && !context_->part.is_last_stage(); }
  int32_t num_slices() const { return context_ ? context_->part.num_slices() : 1; }
  // Not those that give vectors, as they compute prompts, nor those whose ranks give each other any number of slices.
  bool records_steps() const { return !options_.pooling && num_slices() == 1; }
  int32_t num_own_drafts() const { return context_ ? 0 : num_own_plans(config_, options_); }

  Status do_load(const ModelConfig& config, const LoadOptions& options) {
    const SteadyClock clock;
    LLMB_RETURN_IF_ERROR(check_load_options(config, options));
    LLMB_RETURN_IF_ERROR(check_cuda_options(config, options, num_slices()));
    LLMB_RETURN_IF_ERROR(check_cuda_support(config, options.max_model_len));
    std::optional<WeightFiles> files;
    if (options.load_format == LoadFormat::kAuto) {
      LLMB_ASSIGN_OR_RETURN(WeightFiles opened, WeightFiles::open(options.model_dir, config));
      files.emplace(std::move(opened));
    }
    LLMB_ASSIGN_OR_RETURN(device_, open_cuda_device(index_));
    config_ = own_ = config, options_ = options;
    if (context_) LLMB_RETURN_IF_ERROR(take_share());
    dtype_ = options.dtype.value_or(config.gpu_dtype());
    kv_dtype_ = options.kv_cache_dtype.value_or(dtype_);
    if (files) {
      LLMB_ASSIGN_OR_RETURN(stored_, stays_packed_on_gpu(options.model_dir, config, dtype_, options.cpu.quantization));
    }
    LLMB_RETURN_IF_ERROR(check_weights_fit(own_, least_weight_bits(stored_, options.cpu.quantization, dtype_)));
    if (!stream_) stream_ = std::make_shared<const cuda::Stream>();
    splits_ = StepSplits(context_ ? SplitMode::kNever : split_mode_, config_, options_);
    if (context_) LLMB_RETURN_IF_ERROR(join_ranks());
    make_ops();
    LLMB_RETURN_IF_ERROR(load_weights(files));
    LLMB_RETURN_IF_ERROR(ops_->add_states(options_, &info_));
    if (ranks_) info_.weight_bytes = ranks_->total(info_.weight_bytes);
    LLMB_RETURN_IF_ERROR(size_kv_pool());
    splits_.count(config_, info_, device_, ops_->limits().part_sms);
    ops_->add_host_pool(options_, &info_);
    record_graphs();
    if (ranks_) info_.kv = kv_of_all_ranks(config_, options_, kv_dtype_, info_.kv.num_blocks);
    describe(config, options_, device_, dtype_, &info_);
    info_.max_plans_in_flight = max_plans_in_flight();
    info_.load_ms = clock.now_ms();
    return {};
  }

  // The host's memory that was given, and that for adapters, is that of all ranks.
  Status take_share() {
    share_ = share_of_gpu(config_, context_->part);
    own_ = config_of(config_, *share_);
    options_.swap_space_gib /= context_->part.num_ranks();
    options_.adapter_bytes /= context_->part.num_ranks();
    return {};
  }

  Status join_ranks() {
    const int64_t max_rows = std::max(options_.max_num_batched_tokens, options_.max_num_samples());
    const CudaRanksLimits limits{max_rows, max_logit_rows(config_, options_), kMaxBestTokens,
                                 options_.cuda.deterministic, dtype_bytes(dtype_), options_.max_num_samples()};
    LLMB_ASSIGN_OR_RETURN(ranks_, CudaRanks::join(context_, config_, limits, stream_->get()));
    const auto read = [this](int64_t s, StepOutput* o) -> const GivenTokens& { return read_output(flights_, s, o); };
    steps_.emplace(context_, *ranks_, RankSteps::OnDevice{[this](int64_t s) { return await(flights_.of(s)); }, read});
    return {};
  }

  void make_ops() {
    const Range layers = share_ ? share_->layers : Range{0, config_.num_hidden_layers};
    const int32_t num_plans = max_plans_in_flight(), num_stages = num_plans + num_own_drafts();
    CudaOpsOptions o = ops_options(config_, own_, layers, num_stages, options_, dtype_, kv_dtype_, num_slices());
    o.hopper = cuda::has_hopper_code(stream_->get());
    std::unique_ptr<SplitStreams> split_streams;
    if (splits_.are_possible()) {
      split_streams = std::make_unique<SplitStreams>(device_);
      o.limits.part_sms = split_streams->num_attention_sms();
    }
    ops_.emplace(own_, device_, o, stream_->get());
    ops_->add_split_streams(std::move(split_streams));
    if (num_borrowed_ > 0) ops_->borrow_from(*target_ops_);
    if (ranks_) ops_->join_ranks(&*ranks_);
    std::optional<LoraShare> rank;
    if (share_) rank = {config_, *share_};
    if (options_.adapters) ops_->add_adapters(options_.adapters, options_.adapter_bytes, std::move(rank));
    if (options_.pooling) ops_->add_pooling(*options_.pooling);
    flights_.make_room(num_plans, ops_->sampled_bytes_with_top(), options_.max_num_batched_tokens);
    own_drafts_.make_room(num_own_drafts(), ops_->sampled_bytes_with_top(), options_.max_num_batched_tokens);
  }

  Status load_weights(const std::optional<WeightFiles>& files) {
    ThreadPool pool(options_.num_threads > 0 ? options_.num_threads : usable_cpu_count());
    const auto source = make_gpu_source(files ? &*files : nullptr, config_, options_, dtype_, stored_, pool);
    Result<ModelWeights> weights = load_model_weights(config_, *source, *ops_, share_ ? &*share_ : nullptr);
    if (files) LLMB_RETURN_IF_ERROR(files->still_readable());
    if (!weights.ok()) return weights.status().with_context(options_.model_dir);
    LLMB_RETURN_IF_ERROR(add_eagle_layer(options_, config_, share_, pool, *ops_, &*weights));
    ops_->set_head_tokens(weights->mtp.head_tokens);
    info_.weight_bytes = weights->resident_bytes();
    transformer_.emplace(own_, std::move(*weights), *ops_, options_.max_num_batched_tokens,
                         options_.max_num_samples(), max_logit_rows(config_, options_) * own_.vocab_size * 4);
    if (context_) transformer_->be_stage(static_cast<int32_t>(share_->layers.begin), share_->draws, nullptr);
    LLMB_RETURN_IF_ERROR(add_pooling_head(options_, config_, share_, files, pool, *ops_, &*transformer_));
    LLMB_RETURN_IF_ERROR(add_heads(options_, config_, share_, *ops_, &*transformer_, &info_));
    ops_->end_of_weights();
    return {};
  }

  // Runs the largest step that there can be on a small pool, sees what is left, and makes the pool of that.
  Status size_kv_pool() {
    if (num_borrowed_ > 0) return set_kv_pool(num_borrowed_), Status();
    const StepPlan plan = worst_case_plan(config_, options_, num_groups());
    set_kv_pool(num_blocks_of(plan));
    StepOutput ignored;
    LLMB_RETURN_IF_ERROR(submit(plan));
    LLMB_RETURN_IF_ERROR(wait(&ignored));
    // Every recorded step takes about as much as the first.
    int64_t graph_bytes = 0;
    if (records_steps()) {
      const int64_t free_before = free_device_bytes();
      record({largest_bucket(), /*needs_all=*/true, ops_->stage().fullest_decode_kind()});
      graph_bytes = std::clamp<int64_t>(free_before - free_device_bytes(), 0, kMostGraphBytes);
      graphs_.clear();
    }
    set_kv_pool(0);
    const int64_t num_graphs = max_num_graphs(config_, options_, ops_->stage(), splits_.are_possible());
    const int64_t adapter_bytes = options_.adapters ? options_.adapter_bytes : 0;
    const int64_t reserved = graph_bytes * num_graphs + adapter_bytes + cuda::Linear::tuning_bytes() + kSpareBytes;
    const DeviceMemoryUse use{device_.total_bytes, free_device_bytes(), reserved, ops_->beside_block_bytes()};
    LLMB_ASSIGN_OR_RETURN(const int32_t num_blocks, plan_num_blocks(options_, ops_->kv_layout(0), use));
    set_kv_pool(ranks_ ? ranks_->least(num_blocks) : num_blocks);
    return {};
  }

  int32_t num_groups() const { return ops_->kv_layout(0).groups.num_groups(); }
  void set_kv_pool(int32_t count) { ops_->set_kv_pool(count), info_.kv = as_planned(ops_->kv_layout(count), options_); }

  int64_t largest_bucket() const { return largest_graph(options_); }
  void record_graphs() {
    if (options_.pooling) return;
    for (const int64_t size : graph_sizes(largest_bucket())) {
      tune(static_cast<int32_t>(size));
      for (const bool needs_all : {false, true})
        if (records_steps()) record({size, needs_all, ops_->stage().decode_kind()});
    }
    stream_->synchronize();
  }

  void tune(int32_t rows) {
    const int32_t num_seqs = std::min({rows, options_.max_num_seqs, info_.kv.num_blocks / num_groups()});
    tune_products(decode_plan(config_, options_, num_seqs, num_groups()), rows, own_.mtp.is_used, *ops_, *transformer_,
                  stream_->get());
  }

  void record(const Recording& step) {
    const auto rows = static_cast<int32_t>(step.size);
    const StepShape shape{rows, rows, rows, step.second};
    const cuda::SampleNeeds all{true, true, true, true, true};
    ops_->set_step(ops_->stage().arrays(shape, step.kind), step.needs_all ? all : cuda::SampleNeeds());
    ops_->set_drafting(drafts() || step.num_layers > 0 || step.kind.is_mtp);
    if (CudaAdapters* const adapters = ops_->adapters()) adapters->record_step(shape, step.adapters);
    graphs_.record(step, stream_->get(), [&] { run(rows, rows, step.num_layers, step.kind.is_mtp); });
  }

  // The step that was set: what is recorded of it, or queued op by op.
  void run(int32_t num_tokens, int32_t num_samples, int32_t num_layers, bool is_mtp) {
    ops_->resolve_step();
    if (is_mtp) transformer_->forward_mtp(num_tokens, num_samples);
    else if (ops_->second_row() > 0) transformer_->forward_in_parts(num_tokens, num_samples, num_layers, *ops_);
    else transformer_->forward(num_tokens, num_samples, num_layers);
    if (!is_early_stage()) ops_->give_tokens();
  }

  void start(const StepPlan& given, FlightQueue& queue) {
    if (steps_) steps_->begin(given.step);
    const StepPlan& plan = ops_->in_slices(given);
    const cudaStream_t stream = stream_->get();
    const cuda::SampleNeeds needs = cuda::sample_needs(plan.sample_rows);
    StepShape shape = shape_of(plan);
    const int32_t max_top = max_top_of(plan);
    const bool is_recordable = samples_all_rows(plan) && !graphs_.empty() && max_top == kMaxTopLogprobs &&
                               plan.num_tokens() <= largest_bucket();
    if (is_recordable)
      shape.num_tokens = shape.num_seqs = shape.num_samples =
          static_cast<int32_t>(graph_bucket(plan.num_tokens(), largest_bucket()));
    if (!is_recordable) ops_->choose_rows(plan, transformer_->narrows(), &shape);
    if (shape.num_kept == 0) shape.second = splits_.border(plan, is_recordable ? shape.num_tokens : 0, graphs_);
    // A prompt that is in both parts is two sequences of attention.
    if (!is_recordable) shape.num_seqs = std::min(shape.num_seqs + shape.is_split(), shape.num_tokens);
    if (!is_recordable && !shape.is_split()) shape.expanded = ops_->stage().expand(plan, shape.own);
    StepFlight& flight = queue.of(queue.num_submitted);
    if (!ranks_) flight.begin.record(stream);
    const StepArrays arrays = ops_->stage().upload(plan, shape, stream);
    const Recording step{shape.num_tokens,  !cuda::SampleNeeds().covers(needs), arrays.kind, plan.num_layers,
                         ops_->adapter_use(plan), splits_.recorded(shape.second)};
    const bool is_tall = arrays.kind.is_tall && !ops_->stage().decode_kind().is_tall;
    const bool is_kept = !is_tall || num_recorded_drafts(options_) > 0;
    const bool is_behind_all = plan.is_mtp || !plan.hidden_rows.empty();
    const bool is_elsewhere = is_behind_all && is_early_stage();
    const bool replay = is_recordable && arrays.parts.empty() && is_kept && !is_elsewhere;
    if (replay && !graphs_.holds(step)) record(step);
    if (CudaAdapters* const adapters = ops_->adapters()) adapters->begin_step(plan, shape, replay);
    ops_->set_step(arrays, needs, max_top);
    ops_->set_drafting(drafts() || is_drafting(plan));
    ops_->copy_blocks(plan);
    ops_->count_unseen_tokens(plan);
    if (ranks_) {
      if (!is_behind_all) ranks_->receive(transformer_->received(), shape.num_own());
      flight.begin.record(stream);
    }
    if (is_elsewhere) {  // the last stage has it
    } else if (!plan.hidden_rows.empty()) transformer_->forward_heads(shape.num_tokens, shape.num_samples);
    else if (replay) graphs_.launch(step, stream);
    else run(shape.num_own(), shape.num_samples, plan.num_layers, plan.is_mtp);
    CudaPooling* const pooling = ops_->pooling();
    if (pooling != nullptr && !is_early_stage()) pooling->download(queue.num_submitted, plan.num_samples());
    else if (!is_early_stage()) download_sampled(*ops_, plan, needs.top_logprobs, flight.host.data<uint8_t>(), stream);
    download_tokens(plan, arrays.tokens, flight.tokens.data<TokenId>(), stream);
    flight.end.record(stream);
    if (ranks_ && !is_behind_all) ranks_->send(transformer_->sent(), shape.num_own());
    flight.sent.record(stream);
    flight.plan = &given;
    flight.work = splits_.submitted(plan, shape.second);
    if (steps_) steps_->add();
    queue.count(given);
  }

  double await(const StepFlight& flight) const {
    check(cudaSetDevice(index_), "cudaSetDevice");  // of this thread, which may be another one
    return flight.await();
  }

  const GivenTokens& read_output(FlightQueue& queue, int64_t step, StepOutput* output) {
    reader_.read(*ops_, step, queue.of(step), &queue.given, output);
    return queue.given;
  }

  const int index_;
  const std::shared_ptr<RankContext> context_;  // null: this one computes all
  const SplitMode split_mode_;
  CudaDevice device_;
  ModelConfig config_, own_;         // of the model, and of what this one computes
  std::optional<ModelShare> share_;  // of a rank
  LoadOptions options_;
  DType dtype_ = DType::kBF16, kv_dtype_ = DType::kBF16;
  StoredQuantization stored_;  // how the checkpoint has what the device multiplies as it is
  BackendInfo info_;
  std::shared_ptr<const cuda::Stream> stream_;  // the target's, where this one drafts for it
  const CudaOps* target_ops_ = nullptr;         // of the one that this one drafts for, on the device
  int32_t num_borrowed_ = 0;                    // blocks, in that one's pool; 0: it has a pool of its own
  bool is_fed_ = false;                         // by another one, or layers or heads of its own
  std::unique_ptr<CudaRanks> ranks_;  // where there are others
  std::optional<CudaOps> ops_;
  std::optional<Transformer> transformer_;
  StepGraphs graphs_;
  StepSplits splits_;
  FlightQueue flights_, own_drafts_;  // of submit() and wait(), and of own_drafts()
  StepReader reader_;
  std::optional<RankSteps> steps_;  // where there are other ranks; last: its thread uses the rest
};

}  // namespace

std::unique_ptr<Backend> make_cuda_backend(int index, std::shared_ptr<RankContext> ranks, SplitMode splits) {
  return std::make_unique<CudaBackend>(index, std::move(ranks), splits);
}

OwnDrafts own_cuda_drafts_of(Backend& model) {
  auto* const own = dynamic_cast<CudaBackend*>(&model);
  return own != nullptr ? own->own_drafts() : OwnDrafts();
}

std::unique_ptr<DraftFeed> share_cuda_queue(Backend& target, Backend& draft) {
  auto *const first = dynamic_cast<CudaBackend*>(&target), *const second = dynamic_cast<CudaBackend*>(&draft);
  return first != nullptr && second != nullptr ? second->draft_for(*first) : nullptr;
}

}  // namespace llmb
