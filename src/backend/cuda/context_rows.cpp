#include "backend/cuda/context_rows.h"

#include <algorithm>
#include <utility>

#include "backend/cuda/cuda_weights.h"
#include "base/check.h"
#include "kernels/cuda/gather.h"
#include "kernels/cuda/tuning.h"

namespace llmb {

namespace {

// That ranks give each other at a time: a layer's keys and values, or the hidden states that a layer behind the last one
// takes, or what recurrent states take, or of sampled rows the residual stream, or what attention gives, or inputs of
// layers.
int64_t most_bytes(const ModelConfig& own, const ContextRows::Limits& limits) {
  int64_t widest = own.mtp.is_used ? own.hidden_size : 0;
  for (int32_t layer = 0; layer < own.num_used_layers(); ++layer)
    widest = std::max(widest, own.qkv_size_of(layer) - ContextRows::query_columns(own, layer));
  const int64_t gates = own.has_states() ? own.state.gates_size() * int64_t{sizeof(float)} : 0;
  if (own.has_states()) widest = std::max(widest, own.state.conv_channels());
  const int64_t inputs = int64_t{own.hidden_size_per_layer_input} * own.num_hidden_layers;
  const int64_t numbers = std::max(int64_t{own.hidden_size}, inputs) * int64_t{sizeof(float)};
  const int64_t sampled = std::max(numbers, own.mixed_size() * limits.number_bytes);
  return std::max(limits.max_num_tokens * std::max(widest * limits.number_bytes, gates),
                  limits.max_num_samples * sampled);
}

}  // namespace

ContextRows::ContextRows(std::unique_ptr<DeviceCollectives> ranks, const ModelConfig& whole, const ModelConfig& own,
                         const Limits& limits, cudaStream_t stream)
    : ranks_(std::move(ranks)),
      cost_(row_cost(whole)),
      stream_(stream),
      all_(most_bytes(own, limits)),
      mixed_(own.has_states() ? limits.max_num_tokens * own.state.values_size() * limits.number_bytes : 0) {}

int64_t ContextRows::query_columns(const ModelConfig& own, int32_t layer) {
  return int64_t{own.num_attention_heads} * own.head_dim_of(layer);
}

// Rows behind a token in flight count as if they lay as far on as they may.
std::vector<int64_t> ContextRows::divide(const StepPlan& plan) const {
  const int64_t least = std::max<int64_t>(cuda::tuning::kFewestContextRows, ranks_->size());
  if (plan.num_tokens() < least || !can_share_rows(plan)) return {};
  std::vector<int32_t> positions;
  for (int32_t e = 0; e < plan.num_entries(); ++e)
    for (int32_t i = 0; i < plan.num_rows(e); ++i) positions.push_back(plan.entries[e].max_base() + i);
  return divide_rows(positions, cost_, ranks_->size());
}

Rows ContextRows::share_columns(Rows own_rows, int64_t first_column, std::span<const int64_t> row_bounds) {
  const int64_t number = dtype_bytes(own_rows.dtype), width = own_rows.width - first_column;
  const auto own = static_cast<size_t>(rank());
  const Rows all = {all_.data(), own_rows.dtype, width};
  LLMB_CHECK(row_bounds.back() * width * number <= all_.bytes());
  const auto row_bytes = static_cast<size_t>(width * number);
  cuda::check(cudaMemcpy2DAsync(all.from(row_bounds[own]).data, row_bytes,
                                static_cast<const char*>(own_rows.data) + first_column * number,
                                static_cast<size_t>(own_rows.width * number), row_bytes,
                                static_cast<size_t>(row_bounds[own + 1] - row_bounds[own]), cudaMemcpyDeviceToDevice,
                                stream_),
              "cudaMemcpy2DAsync");
  ranks_->gather_parts(all.data, width * number, row_bounds, stream_);
  return all;
}

void ContextRows::take_own(Rows all_rows, std::span<const int64_t> row_bounds, Rows out) {
  const int64_t begin = row_bounds[static_cast<size_t>(rank())], end = row_bounds[static_cast<size_t>(rank()) + 1];
  const int64_t row_bytes = out.width * dtype_bytes(out.dtype);
  cuda::check(cudaMemcpyAsync(out.data, all_rows.from(begin).data, static_cast<size_t>((end - begin) * row_bytes),
                              cudaMemcpyDeviceToDevice, stream_),
              "cudaMemcpyAsync");
}

void ContextRows::gather_sampled(Rows own_rows, const StepArrays& step, Rows out) {
  const std::span<const int64_t> bounds = step.sample_bounds;
  const auto own = static_cast<size_t>(rank());
  const Rows all = {all_.data(), own_rows.dtype, own_rows.width};
  const int64_t row_bytes = all.width * dtype_bytes(all.dtype);
  LLMB_CHECK(out.dtype == all.dtype && out.width == all.width && bounds.back() * row_bytes <= all_.bytes());
  with_type(all.dtype, [&]<typename T>(T) {
    cuda::gather_rows(data<const T>(own_rows), step.part_samples + bounds[own], bounds[own + 1] - bounds[own],
                      all.width, data<T>(all.from(bounds[own])), stream_);
    ranks_->gather_parts(all.data, row_bytes, bounds, stream_);
    cuda::gather_rows(data<const T>(all), step.sample_places, bounds.back(), all.width, data<T>(out), stream_);
  });
}

}  // namespace llmb
