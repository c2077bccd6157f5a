#include "backend/cuda/cuda_ops.h"

#include <algorithm>
#include <utility>

#include "backend/cuda/cuda_weights.h"
#include "backend/cuda/memory_plan.h"
#include "kernels/cuda/resolve_step.h"
#include "model/rope_table.h"

namespace llmb {

using cuda::check;

namespace {

// Without a block yet.
KvLayout layout_of(const ModelConfig& config, const CudaOpsOptions& options) {
  return make_kv_layout(config, options.block_size, options.kv_dtype, options.groups);
}

// All that layers have in common.
cuda::AttentionShape attention_shape(const ModelConfig& config, const CudaOpsOptions& options) {
  cuda::AttentionShape shape;
  shape.dtype = options.dtype;
  shape.latent_dim = config.latent.rank;
  shape.block_stride = options.num_slices > 1 ? 0 : KvPlanes(layout_of(config, options)).block_stride();
  shape.block_size = options.block_size;
  shape.deterministic = options.deterministic;
  shape.hopper = options.hopper;
  shape.kv_code = options.kv_dtype == DType::kI8   ? cuda::KvCode::kInt8
                  : options.kv_dtype == DType::kF8 ? cuda::KvCode::kFp8
                                                   : cuda::KvCode::kNone;
  if (config.is_encoder) shape.later = cuda::AttentionShape::kAllLater;
  return shape;
}

AttentionWindows attention_windows(const ModelConfig& config, const LayerGroups& groups) {
  const auto is_wider = [](int32_t a, int32_t b) { return b != 0 && (a == 0 || a > b); };
  AttentionWindows windows;
  for (int32_t layer = 0; layer < config.num_used_layers(); ++layer) {
    if (config.layer(layer).has_state || !config.layer(layer).has_mixer) continue;
    const int32_t window = config.layer(layer).window;
    if (windows.of_layers.empty() || is_wider(window, windows.of_layers[0])) windows.widest_group = groups.group(layer);
    const auto at = std::lower_bound(windows.of_layers.begin(), windows.of_layers.end(), window, is_wider);
    if (at == windows.of_layers.end() || *at != window) windows.of_layers.insert(at, window);
  }
  if (windows.of_layers.empty()) windows.of_layers.push_back(0);
  windows.of_groups = groups.windows;
  return windows;
}

cuda::DeviceMemory experts_workspace(const ModelConfig& config, const CudaOpsOptions& options) {
  if (config.experts.num_experts == 0) return {};
  const int64_t intermediate = config.experts.intermediate_size;
  const cuda::ExpertsShape shape{options.limits.max_num_tokens,
                                 config.hidden_size,
                                 (config.activation.gated ? 2 : 1) * intermediate,
                                 intermediate,
                                 config.experts,
                                 options.quantization == Quantization::kInt8 ||
                                     options.quantization == Quantization::kW4A8};
  return cuda::DeviceMemory(cuda::experts_workspace_bytes(shape, options.dtype));
}

cuda::DeviceMemory zeroed(int64_t bytes, cudaStream_t stream) {
  cuda::DeviceMemory memory(bytes);
  if (bytes > 0) check(cudaMemsetAsync(memory.data(), 0, bytes, stream), "cudaMemsetAsync");
  return memory;
}

}  // namespace

CudaOps::CudaOps(const ModelConfig& config, const CudaDevice& device, const CudaOpsOptions& options,
                 cudaStream_t stream)
    : config_(config),
      options_(options),
      main_stream_(stream),
      stream_(stream),
      groups_(options.groups),
      planes_(layout_of(config, options)),
      attention_(with_expanded_kind(
          attention_kinds(config, attention_shape(config, options), device.num_sms, options.max_position), config,
          device.num_sms)),
      num_sms_(device.num_sms),
      linear_({options.dtype, options.deterministic, options.hopper, device.num_sms}, stream),
      uploader_(std::make_unique<WeightUploader>(stream)),
      stage_(options.limits, attention_.kinds, attention_windows(config, options.groups),
             {config.latent, num_expanded_blocks(config, attention_, options)}) {
  for (const RopeConfig& rope : config.ropes) {
    const RopeTable table = make_rope_table(rope, config.rotary_dim(rope), options.max_position);
    ropes_.push_back({config.rotary_dim(rope), upload_array(table.cos, stream), upload_array(table.sin, stream)});
  }
  alibi_slopes_ = upload_array(config.alibi_slopes, stream);
  allocate_attention();
  allocate_expansion();
  experts_workspace_ = experts_workspace(config, options);
  sample_limits_ = {static_cast<int32_t>(options.max_logit_rows), config.vocab_size, options.limits.max_num_penalties,
                    options.limits.max_num_biases};
  sample_workspace_ = zeroed(cuda::sample_workspace_bytes(sample_limits_), stream);
  lay_out_samples();
}

void CudaOps::allocate_attention() {
  int64_t values = 0, rows = 0, splits = 0;
  for (const auto& [shape, num_ctas] : attention_.kinds) {
    const cuda::AttentionLimits limits =
        cuda::attention_limits(shape, num_ctas, options_.limits.max_num_seqs, options_.limits.max_num_tokens);
    values = std::max(values, limits.max_partial_rows * shape.value_dim());
    rows = std::max(rows, limits.max_partial_rows);
    splits = std::max(splits, limits.max_splits);
  }
  attention_partials_ = cuda::DeviceMemory(values * int64_t{sizeof(float)});
  attention_partial_stats_ = cuda::DeviceMemory(rows * 2 * int64_t{sizeof(float)});
  attention_counters_ = zeroed(splits * int64_t{sizeof(int32_t)}, stream_);
  if (!stage_.may_share()) return;
  const auto& [shape, num_ctas] = attention_.kinds[0];
  const cuda::SharedAttentionLimits shared = cuda::shared_attention_limits(
      shape, num_ctas, options_.limits.max_num_seqs, options_.limits.max_num_shared_tokens());
  shared_values_ = cuda::DeviceMemory(shared.max_states * shape.head_dim * int64_t{sizeof(float)});
  shared_stats_ = cuda::DeviceMemory(shared.max_states * cuda::kStateStats * int64_t{sizeof(float)});
}

void CudaOps::lay_out_samples() {
  const int64_t rows = options_.limits.max_num_samples, top = rows * kMaxBestTokens;
  const int64_t finite_bytes = ceil_div(rows, 4) * 4;
  const int64_t given_size = 3 * rows + num_drafted();  // of int32_t, as TokenId
  given_memory_ = zeroed(2 * given_size * int64_t{sizeof(int32_t)}, stream_);
  const auto given_at = [&](int32_t* at) -> cuda::GivenOnDevice {
    return {at, at + rows, at + 2 * rows};
  };
  given_ = given_at(given_memory_.data<int32_t>());
  given_by_drafts_ = given_at(given_memory_.data<int32_t>() + given_size);
  sampled_bytes_ = rows * 8 + finite_bytes;
  sample_output_ = zeroed(sampled_bytes_ + top * 8, stream_);
  auto* at = sample_output_.data<uint8_t>();
  sampled_.tokens = reinterpret_cast<TokenId*>(at);
  sampled_.logprobs = reinterpret_cast<float*>(at + rows * 4);
  sampled_.is_finite = at + rows * 8;
  sampled_.top_tokens = reinterpret_cast<TokenId*>(at + sampled_bytes_);
  sampled_.top_logprobs = reinterpret_cast<float*>(at + sampled_bytes_ + top * 4);
}

KvLayout CudaOps::kv_layout(int32_t num_blocks) const {
  KvLayout layout = layout_of(config_, options_);
  layout.num_blocks = num_blocks;
  return layout;
}

void CudaOps::set_kv_pool(int32_t num_blocks) {
  if (lending_ != nullptr) {
    LLMB_CHECK(planes_.bytes(num_blocks) <= lending_->planes_.bytes(lending_->num_blocks_));
    num_blocks_ = num_blocks;
    return;
  }
  kv_pool_ = cuda::DeviceMemory();
  int64_t bytes = kv_layout(num_blocks).bytes_per_block() * num_blocks;
  const int64_t first_page = ceil_div(bytes, int64_t{256}) * 256;
  const bool has_pages = adapters_ && num_blocks > 0;
  if (has_pages) bytes = first_page + adapters_->pool_bytes();
  kv_pool_ = cuda::DeviceMemory(bytes);
  if (adapters_) adapters_->set_pool(has_pages ? kv_pool_.data<uint8_t>() + first_page : nullptr);
  num_blocks_ = num_blocks;
  if (slices_) slices_->set_pool(num_blocks);
}

void CudaOps::borrow_from(const CudaOps& lending) {
  LLMB_CHECK(!has_scaled_kv() && !config_.mtp.is_used && !adapters_ && !slices_);
  lending_ = &lending;
}

Status CudaOps::add_states(const LoadOptions& load, BackendInfo* info) {
  if (!config_.has_states()) return {};
  const bool alternates = all_ranks_ != nullptr && all_ranks_->num_stages() > 1;
  LLMB_ASSIGN_OR_RETURN(StateLayout layout, plan_states(config_, load, alternates));
  if (all_ranks_ != nullptr)
    keep_snapshots(all_ranks_->least(layout.num_snapshots), load.max_num_seqs, alternates, &layout);
  states_.emplace(config_, layout, options_.limits.max_num_seqs + options_.limits.max_num_samples, stream_);
  info->num_state_slots = layout.num_slots;
  info->num_snapshots = layout.num_snapshots;
  return {};
}

void CudaOps::add_adapters(std::shared_ptr<AdapterLibrary> library, int64_t max_bytes, std::optional<LoraShare> rank) {
  adapters_.emplace(config_, options_.dtype, std::move(library), max_bytes, options_.limits, stream_, std::move(rank));
}

void CudaOps::resolve_step() {
  cuda::UnresolvedStep step;
  step.num_tokens = step_.shape.num_tokens;
  step.num_samples = step_.shape.num_samples;
  step.num_layer_groups = groups_.num_groups();
  step.block_size = options_.block_size;
  step.rows = step_.rows;
  step.entries = step_.entries;
  step.block_start = step_.block_start;
  step.block_ids = step_.block_ids;
  step.tokens = step_.tokens;
  step.positions = step_.positions;
  step.slots = step_.slots;
  step.samples = step_.samples;
  const auto set_lists = [&](int part) {
    for (size_t i = 0; i < attention_.kinds.size(); ++i) {
      const StepArrays::AttentionList& list = step_.lists[part][i];
      step.lists[i] = {list.items, list.cta_start + list.num_ctas, attention_.kinds[i].shape.group()};
    }
  };
  set_lists(0);
  cuda::resolve_step(step, given(), stream_);
  if (step_.shape.num_lists() > 1) {  // the other list of attention alone
    set_lists(1);
    if (step_.shape.num_kept > 0) step.rows = step_.kept_places;
    step.num_tokens = step.num_samples = 0;
    cuda::resolve_step(step, given(), stream_);
  }
  if (slices_) slices_->place_rows(step_.slots, step_.shape.num_tokens);
  if (states_ && !step_.kind.is_mtp) states_->resolve(step_);
}

void CudaOps::count_unseen_tokens(const StepPlan& plan) {
  const auto counts_unseen = [&](const SampleRow& row) { return counts_unseen_token(row, plan.penalty); };
  if (std::none_of(plan.sample_rows.begin(), plan.sample_rows.end(), counts_unseen)) return;
  if (!step_.parts.empty()) return;  // sample() does it, part by part
  cuda::count_unseen_tokens(step_.samples, step_.shape.num_samples, step_.penalty, given().last, stream_);
}

void CudaOps::give_tokens() {
  if (context_rows() != nullptr && !options_.deterministic && step_.shape.num_samples > 0)
    context_rows()->agree(sampled_.tokens, sampled_bytes_);
  cuda::GroupsToGive step;
  step.num_groups = step_.shape.num_samples;
  step.groups = step_.groups;
  step.samples = step_.samples;
  step.tokens = step_.tokens;
  step.parent_rows = step_.parent_rows;
  step.sampled = sampled_.tokens;
  step.is_finite = sampled_.is_finite;
  step.top_tokens = sampled_.top_tokens;
  step.max_top = sampled_.max_top;
  step.vocab = options_.vocab_size;
  if (is_drafting_) step.entries = step_.entries, step.rows = step_.rows, step.positions = step_.positions;
  cuda::give_tokens(step, given(), stream_);
}

}  // namespace llmb
