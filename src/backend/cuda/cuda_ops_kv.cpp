// Keys and values: written for a step's rows, and attended to. Where ranks divide them by position, attention goes over
// what these give each other (gathered_slices.h), into which all new rows are written; a rank's own go to its pool.
#include "backend/cuda/cuda_ops.h"
#include "backend/cuda/cuda_weights.h"
#include "kernels/cuda/rope.h"

namespace llmb {

namespace {

constexpr int32_t kAllPositions = 1 << 30;  // a chunk of attention that holds any

}  // namespace

template <typename Code>
cuda::ScaledKv<Code> CudaOps::scaled_kv(int32_t layer) const {
  const int64_t size = int64_t{num_blocks_} * options_.block_size * config_.num_key_value_heads;
  float* const scales = reinterpret_cast<float*>(kv_pool_.data<uint8_t>() + planes_.bytes(num_blocks_)) +
                        2 * int64_t{groups_.plane(layer)} * size;
  return {kv<Code>(layer, false), kv<Code>(layer, true), scales, scales + size};
}

int32_t CudaOps::num_seen_blocks(int32_t layer) const {
  return slices_ ? static_cast<int32_t>(slices_->num_slices(groups_.group(layer))) : num_blocks_;
}

// Scales lie behind keys and values.
template <typename Code>
cuda::ScaledKv<Code> CudaOps::seen_scaled_kv(int32_t layer) const {
  if (!slices_) return scaled_kv<Code>(layer);
  const int64_t num_slices = num_seen_blocks(layer);
  auto* const scales = reinterpret_cast<float*>(slices_->memory() + 2 * num_slices * slice_bytes(layer));
  return {seen_kv<Code>(layer, false), seen_kv<Code>(layer, true), scales,
          scales + num_slices * options_.block_size * config_.num_key_value_heads};
}

template <typename Write>
void CudaOps::with_pools(int32_t layer, bool is_seen, const Write& write) const {
  with_type(options_.dtype, [&]<typename T>(T) {
    auto* const any = static_cast<T*>(nullptr);  // that names the type
    const auto scaled = [&]<typename Code>(Code) {
      write(any, is_seen ? seen_scaled_kv<Code>(layer) : scaled_kv<Code>(layer));
    };
    if (options_.kv_dtype == DType::kI8) return scaled(int8_t());
    if (options_.kv_dtype == DType::kF8) return scaled(cuda::E4m3());
    const auto pool = [&](bool values) { return is_seen ? seen_kv<T>(layer, values) : kv<T>(layer, values); };
    write(any, pool(false), pool(true));
  });
}

// Without heads: keys and values alone, which begin the rows of qkv.
void CudaOps::write_kv(int32_t layer, int64_t first_row, int64_t rows, int32_t num_heads, Rows qkv) {
  static const DeviceRope kNone;
  const int32_t index = ropes_.empty() ? -1 : config_.layer(layer).rope;
  const DeviceRope& rope = index < 0 ? kNone : ropes_[index];
  cuda::RopeShape shape{num_heads,
                        config_.has_own_kv(layer) ? config_.num_kv_heads_of(layer) : 0,
                        config_.head_dim_of(layer),
                        rope.rotary_dim,
                        options_.block_size,
                        seen_block_stride(),
                        /*has_values=*/!config_.has_latent()};
  const auto write = [&](bool is_seen, const int32_t* slots, int64_t first_column) {
    with_pools(layer, is_seen, [&]<typename T>(T*, const auto&... pools) {
      cuda::rope_and_kv_write(data<T>(qkv) + first_column, step_.positions + first_row, slots + first_row, rows, shape,
                              rope.cos.data<const float>(), rope.sin.data<const float>(), pools..., stream_);
    });
  };
  write(/*is_seen=*/true, slots_of(layer), 0);
  if (!slices_ || shape.num_kv_heads == 0) return;
  shape.row_stride = shape.row_width();
  shape.num_heads = 0;
  shape.block_stride = planes_.block_stride();
  write(/*is_seen=*/false, slices_->own_slots(groups_.group(layer)), int64_t{num_heads} * shape.head_dim);
}

// Layers that attend to an earlier one's find what all ranks have written to their pools by then, new rows, too.
void CudaOps::gather_slices(int32_t layer) {
  if (gathered_layer_ == config_.kv_layer_of(layer)) return;
  gathered_layer_ = config_.kv_layer_of(layer);
  const int64_t bytes = slice_bytes(layer);
  uint8_t *const keys = kv<uint8_t>(layer, false), *const values = kv<uint8_t>(layer, true);
  std::vector<GatheredSlices::Arrays> arrays = {
      {keys, config_.has_latent() ? 1 : 2, values - keys, planes_.block_bytes(), bytes}};
  if (has_scaled_kv()) {
    const auto of_layer = scaled_kv<int8_t>(layer);
    arrays.push_back({reinterpret_cast<uint8_t*>(of_layer.k_scales), 2, num_blocks_ * scales_bytes(), scales_bytes(),
                      scales_bytes()});
  }
  slices_->gather(groups_.group(layer), arrays, !config_.has_own_kv(layer));
}

// By rows that see all positions up to their own.
bool CudaOps::exchanges_states(int32_t layer) const {
  const LayerConfig& of = config_.layer(layer);
  return exchanges_states_ && of.window == 0 && of.reach == 0 && of.first_position == 0 &&
         attention_.of(layer).shape.chunk == 0;
}

void CudaOps::attend_to_slices(int32_t layer, Rows qkv, const cuda::AttentionParams& params, Rows out) {
  const auto kind = static_cast<size_t>(attention_.of_layers[layer]);
  const cuda::AttentionWork work = slice_states_->work(kind, num_blocks_);
  cuda::AttentionParams without_sinks = params;
  without_sinks.sinks = nullptr;
  with_pools(layer, /*is_seen=*/false, [&]<typename T>(T*, const auto&... pools) {
    cuda::paged_attention(data<const T>(qkv), qkv.width, data<T>(out), pools...,
                          slice_states_->block_ids(groups_.group(layer)), work, without_sinks, stream_);
    slice_states_->merge(kind, params.sinks, data<T>(out));
  });
}

void CudaOps::paged_attention(int32_t layer, Rows qkv, const DeviceBuffer* sinks, Rows out) {
  if (step_.shape.expanded.num_heads > 0 && step_.absorbed.empty()) return;
  const AttentionKind& kind = attention_.of(layer);
  const StepArrays::AttentionList& list = step_.lists[part_][attention_.of_layers[layer]];
  qkv = from_step_begin(qkv), out = from_step_begin(out);
  cuda::AttentionWork work{list.num_ctas,
                           list.items,
                           list.cta_start,
                           attention_partials_.data<float>(),
                           attention_partial_stats_.data<float>(),
                           attention_counters_.data<int32_t>(),
                           step_.kind.is_tall,
                           num_seen_blocks(layer),
                           {step_.rows, step_.parent_rows, slots_of(layer)},
                           {},
                           groups_.num_groups()};
  if (step_.kind.shares_in(config_.layer(layer).window)) {
    work.shared = step_.shared[part_];
    work.shared.positions = step_.positions;
    work.shared.values = shared_values_.data<float>();
    work.shared.stats = shared_stats_.data<float>();
  }
  cuda::AttentionParams params{kind.shape, options_.score_scales[static_cast<size_t>(layer)],
                               static_cast<float>(config_.attention_softcap), alibi_slopes_.data<const float>(),
                               sinks != nullptr ? data<const float>(sinks->rows()) : nullptr};
  params.shape.window = config_.layer(layer).window;
  // The list's items begin where the layer's keys do (StepStage::pack_attention), and rows see nothing before that.
  if (config_.layer(layer).first_position > 0) params.shape.chunk = kAllPositions;
  if (const int32_t reach = config_.layer(layer).reach; reach > 0)
    params.shape.later = reach, params.shape.window = 2 * reach + 1;
  if (exchanges_states(layer)) return attend_to_slices(layer, qkv, params, out);
  with_pools(layer, /*is_seen=*/true, [&]<typename T>(T*, const auto&... pools) {
    cuda::paged_attention(data<const T>(qkv), qkv.width, data<T>(out), pools..., step_.block_ids + groups_.group(layer),
                          work, params, stream_);
  });
}

}  // namespace llmb
