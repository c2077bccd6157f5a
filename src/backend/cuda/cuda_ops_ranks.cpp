// The ops in which ranks meet (cuda_ranks.h): each has a part of a sum, of the vocabulary or of a norm's columns, or of a
// step's rows (context_rows.h).
#include <algorithm>
#include <utility>

#include "backend/cuda/cuda_ops.h"
#include "backend/cuda/cuda_weights.h"
#include "kernels/cuda/embedding.h"

namespace llmb {

void CudaOps::join_ranks(CudaRanks* ranks) {
  all_ranks_ = ranks;
  ranks_ = ranks->has_parts() ? ranks : nullptr;
  if (options_.num_slices == 1) return;
  GatheredSlices::Limits limits;
  limits.windows = groups_.windows;
  limits.max_num_tokens = options_.limits.max_num_tokens;
  limits.max_step_blocks =
      int64_t{options_.limits.max_num_seqs} * options_.limits.max_blocks_per_seq / options_.num_slices;
  limits.max_plans_in_flight = options_.limits.max_plans_in_flight;
  for (int32_t layer = 0; layer < config_.num_used_layers(); ++layer) {
    if (!config_.has_own_kv(layer)) continue;
    const int64_t scales = has_scaled_kv() ? scales_bytes() : 0;
    limits.slice_bytes = std::max(limits.slice_bytes, (config_.has_latent() ? 1 : 2) * (slice_bytes(layer) + scales));
  }
  const SliceStates::Limits of_states{options_.limits.max_num_seqs, groups_.num_groups(), limits.max_plans_in_flight,
                                      limits.max_step_blocks};
  slices_.emplace(context_rows()->ranks(), std::move(limits), main_stream_);
  if (config_.mtp.is_used)
    hidden_slices_.emplace(context_rows()->ranks(),
                           HiddenSlices::Limits{options_.limits.max_num_tokens, options_.limits.max_num_seqs,
                                                config_.hidden_size, dtype_bytes(kv_layout(0).hidden_dtype())});
  if (options_.deterministic || planes_.block_stride() > 0 || !config_.alibi_slopes.empty()) return;
  slice_states_.emplace(context_rows()->ranks(), attention_.kinds, of_states, main_stream_);
}

const StepPlan& CudaOps::in_slices(const StepPlan& plan) {
  if (!slices_ || !plan.hidden_rows.empty()) return plan;  // heads take no keys and values
  exchanges_states_ = slice_states_ && slice_states_->begin_step(plan);
  return slices_->begin_step(plan);
}

void CudaOps::linear(const LinearWeight& weight, Rows x, int64_t rows, Rows out) {
  multiply(cuda_linear(weight), x, rows, out);
  if (cuda_linear(weight).is_partial_sum()) sum_over_ranks(out, rows);
}

// A rank's part of a sum is added to by adapters before it is summed.
void CudaOps::adapted_linear(const AdaptedProduct& product, const LinearWeight& weight, Rows x, int64_t rows, Rows out) {
  multiply(cuda_linear(weight), x, rows, out);
  lora(product, x, rows, out);
  if (cuda_linear(weight).is_partial_sum()) sum_over_ranks(out, rows);
}

// Each row is one rank's; zeros of the others leave it as it is.
void CudaOps::embedding(const LinearWeight& table, int64_t rows, Rows out) {
  const TokenId* const all = step_.tokens + first_row_;
  const TokenId* const tokens = ranks_ != nullptr ? ranks_->own_tokens(all, rows) : all;
  if (const CudaLinear& linear = cuda_linear(table); linear.is_int8()) {
    const cuda::Int8View int8 = linear.int8_view();
    cuda::embedding_int8(int8.weight, int8.scales, tokens, rows, out.width, data<float>(out), stream_);
  } else {
    with_type(options_.dtype, [&]<typename T>(T) {
      cuda::embedding(static_cast<const T*>(view(table).weight), tokens, rows, out.width, data<float>(out), stream_);
    });
  }
  if (ranks_ == nullptr) return;
  ranks_->clear_other_rows(all, rows, out);
  ranks_->sum(out, rows);
}

void CudaOps::rms_norm_over_ranks(Rows x, int64_t first_column, int64_t num_groups, const DeviceBuffer& weight,
                                  float eps, int64_t rows) {
  if (ranks_ == nullptr || num_groups >= ranks_->size())
    return Ops::rms_norm_over_ranks(x, first_column, num_groups, weight, eps, rows);
  ranks_->rms_norm(x, first_column, num_groups, weight, eps, rows);
}

void CudaOps::choose_rows(const StepPlan& plan, bool narrows, StepShape* shape) {
  if (narrows) shape->num_kept = num_kept(plan);
  shape->own = share_out(plan);
}

Range CudaOps::share_out(const StepPlan& plan) {
  const ContextRows* const context = context_rows();
  if (context == nullptr || exchanges_states_) return {};
  const std::vector<int64_t> bounds = context->divide(plan);
  return bounds.empty() ? Range() : stage_.share_out(plan, bounds, context->rank());
}

// Each rank rotates and stores the keys and values of the others' rows as these do. The layer behind the last one attends
// in steps of its own alone.
void CudaOps::rope_and_kv_write(int32_t layer, int64_t rows, Rows qkv) {
  const bool attends = layer < config_.num_hidden_layers || step_.kind.is_mtp;
  if (slices_ && attends && !exchanges_states(layer)) gather_slices(layer);
  write_kv(layer, first_row_, rows, config_.num_attention_heads, qkv);
  if (!step_.shape.is_shared_out() || !config_.has_own_kv(layer)) return;
  const Range& own = step_.shape.own;
  const Rows all = context_rows()->share_columns(qkv, ContextRows::query_columns(config_, layer), step_.row_bounds);
  write_kv(layer, 0, own.begin, 0, all);
  write_kv(layer, own.end, step_.shape.num_tokens - own.end, 0, all.from(own.end));
}

// Where ranks share out rows each keeps all states, and gets what these take of all rows.
void CudaOps::causal_conv(int32_t layer, Rows x, const DeviceBuffer& weight, const DeviceBuffer* bias, Rows out) {
  if (!step_.shape.is_shared_out())
    return states_->causal_conv(layer, from_step_begin(x), weight, bias, from_step_begin(out), stream_);
  const Rows all = context_rows()->share_columns(x, 0, step_.row_bounds);
  if (config_.state.kind != StateKind::kShortConv) return states_->causal_conv(layer, all, weight, bias, out, stream_);
  const Rows mixed = context_rows()->mixed_rows(out);
  states_->causal_conv(layer, all, weight, bias, mixed, stream_);
  context_rows()->take_own(mixed, step_.row_bounds, out);
}

void CudaOps::update_states(int32_t layer, Rows qkv, Rows gates, const DeviceBuffer& log_a, const DeviceBuffer& dt_bias,
                            const DeviceBuffer* skip, Rows out) {
  if (!step_.shape.is_shared_out())
    return states_->update_states(layer, from_step_begin(qkv), from_step_begin(gates), log_a, dt_bias, skip,
                                  from_step_begin(out), stream_);
  const Rows all = context_rows()->share_columns(gates, 0, step_.row_bounds), mixed = context_rows()->mixed_rows(out);
  states_->update_states(layer, qkv, all, log_a, dt_bias, skip, mixed, stream_);
  context_rows()->take_own(mixed, step_.row_bounds, out);
}

}  // namespace llmb
