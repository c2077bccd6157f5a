#include "backend/cuda/step_stage.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"

namespace llmb {

using cuda::check;

namespace {

constexpr int64_t kAlignment = 256;

int64_t aligned(int64_t bytes) { return ceil_div(bytes, kAlignment) * kAlignment; }

int64_t table_bytes(const StepLimits& limits) {
  return aligned(limits.max_num_biases * int64_t{sizeof(TokenBias)}) +
         limits.max_num_penalties * int64_t{sizeof(TokenPenalty)};
}

template <typename T>
void copy(const std::vector<T>& values, void* out) {
  if (!values.empty()) std::memcpy(out, values.data(), values.size() * sizeof(T));
}

// The values, then `pad` up to `size`.
template <typename T>
void copy_padded(const std::vector<T>& values, T pad, int64_t size, uint8_t* out) {
  copy(values, out);
  std::fill(reinterpret_cast<T*>(out) + values.size(), reinterpret_cast<T*>(out) + size, pad);
}

}  // namespace

struct StepStage::Layout {
  int64_t tokens, positions, slots, sample_rows, samples, cta_start, items, block_ids;
};

StepStage::Layout StepStage::layout(const StepShape& shape) const {
  int64_t end = 0;
  const auto place = [&](int64_t count, size_t size) {
    const int64_t at = end;
    end = at + aligned(count * static_cast<int64_t>(size));
    return at;
  };
  Layout at;
  at.tokens = place(shape.num_tokens, sizeof(TokenId));
  at.positions = place(shape.num_tokens, sizeof(int32_t));
  at.slots = place(shape.num_tokens, sizeof(int32_t));
  at.sample_rows = place(shape.num_samples, sizeof(int32_t));
  at.samples = place(shape.num_samples, sizeof(SampleRow));
  at.cta_start = place(num_ctas_ + 1, sizeof(int32_t));
  at.items = place(cuda::attention_limits(attention_, num_ctas_, shape.num_seqs, shape.num_tokens).max_items,
                   sizeof(cuda::AttentionItem));
  at.block_ids = end;  // the last, as its length varies most
  return at;
}

StepStage::StepStage(const StepLimits& limits, const cuda::AttentionShape& attention, int32_t num_ctas)
    : limits_(limits), attention_(attention), num_ctas_(num_ctas) {
  const StepShape largest{limits.max_num_tokens, limits.max_num_seqs, limits.max_num_seqs};
  const int64_t num_blocks = int64_t{limits.max_num_seqs} * limits.max_blocks_per_seq;
  const int64_t bytes = layout(largest).block_ids + num_blocks * int64_t{sizeof(BlockId)};
  device_ = cuda::DeviceMemory(bytes);
  device_tables_ = cuda::DeviceMemory(table_bytes(limits));
  for (int i = 0; i < 2; ++i) {
    host_[i] = cuda::PinnedMemory(bytes);
    host_tables_[i] = cuda::PinnedMemory(table_bytes(limits));
  }
}

StepArrays StepStage::arrays(const StepShape& shape) const {
  const Layout at = layout(shape);
  auto* base = device_.data<uint8_t>();
  StepArrays arrays;
  // Sequences have a token at least, so that one of them has so many at most. In decode it is one.
  const int64_t most_tokens = int64_t{shape.num_tokens} - shape.num_seqs + 1;
  arrays.has_wgmma_items = most_tokens * attention_.group() > cuda::AttentionTiling::kTileRows;
  arrays.tokens = reinterpret_cast<const TokenId*>(base + at.tokens);
  arrays.positions = reinterpret_cast<const int32_t*>(base + at.positions);
  arrays.slots = reinterpret_cast<const int32_t*>(base + at.slots);
  arrays.sample_rows = reinterpret_cast<const int32_t*>(base + at.sample_rows);
  arrays.samples = reinterpret_cast<SampleRow*>(base + at.samples);
  arrays.cta_start = reinterpret_cast<const int32_t*>(base + at.cta_start);
  arrays.items = reinterpret_cast<const cuda::AttentionItem*>(base + at.items);
  arrays.block_ids = reinterpret_cast<const BlockId*>(base + at.block_ids);
  arrays.bias = device_tables_.data<const TokenBias>();
  arrays.penalty = reinterpret_cast<TokenPenalty*>(device_tables_.data<uint8_t>() +
                                                   aligned(limits_.max_num_biases * int64_t{sizeof(TokenBias)}));
  return arrays;
}

StepArrays StepStage::upload(const StepPlan& plan, const StepShape& shape, cudaStream_t stream) {
  LLMB_CHECK(plan.num_tokens() <= shape.num_tokens && plan.num_seqs() <= shape.num_seqs &&
             plan.num_samples() <= shape.num_samples);
  LLMB_CHECK(shape.num_tokens <= limits_.max_num_tokens && shape.num_seqs <= limits_.max_num_seqs &&
             shape.num_samples <= limits_.max_num_seqs);
  turn_ ^= 1;
  const Layout at = layout(shape);
  const int64_t bytes = at.block_ids + static_cast<int64_t>(plan.block_ids.size() * sizeof(BlockId));
  LLMB_CHECK(bytes <= host_[turn_].bytes());
  pack(plan, shape, at, host_[turn_].data<uint8_t>());
  check(cudaMemcpyAsync(device_.data(), host_[turn_].data(), bytes, cudaMemcpyHostToDevice, stream), "cudaMemcpyAsync");
  StepArrays result = arrays(shape);
  upload_tables(plan, &result, stream);
  return result;
}

void StepStage::pack(const StepPlan& plan, const StepShape& shape, const Layout& at, uint8_t* out) {
  copy_padded(plan.tokens, TokenId{0}, shape.num_tokens, out + at.tokens);
  copy_padded(plan.positions, int32_t{0}, shape.num_tokens, out + at.positions);
  copy_padded(plan.slots, int32_t{-1}, shape.num_tokens, out + at.slots);
  SampleRow padding;
  padding.token_row = -1;
  copy_padded(plan.sample_rows, padding, shape.num_samples, out + at.samples);
  const auto* const samples = reinterpret_cast<const SampleRow*>(out + at.samples);
  auto* const rows = reinterpret_cast<int32_t*>(out + at.sample_rows);
  for (int32_t i = 0; i < shape.num_samples; ++i) rows[i] = samples[i].token_row;
  cuda::schedule_attention({plan.num_seqs(), plan.query_start.data(), plan.context_len.data(), plan.block_start.data()},
                           attention_, num_ctas_, &schedule_);
  copy(schedule_.cta_start, out + at.cta_start);
  copy(schedule_.items, out + at.items);
  copy(plan.block_ids, out + at.block_ids);
}

void StepStage::upload_tables(const StepPlan& plan, StepArrays* arrays, cudaStream_t stream) {
  const auto num_biases = static_cast<int64_t>(plan.bias.size());
  const auto num_penalties = static_cast<int64_t>(plan.penalty.size());
  if (num_biases == 0 && num_penalties == 0) return;
  if (num_biases > limits_.max_num_biases || num_penalties > limits_.max_num_penalties) {
    const int64_t bias_bytes = aligned(num_biases * int64_t{sizeof(TokenBias)});
    const int64_t bytes = bias_bytes + num_penalties * int64_t{sizeof(TokenPenalty)};
    if (overflow_.bytes() < bytes) overflow_ = cuda::DeviceMemory(2 * bytes);
    // From pageable memory: the copy has left it when the call returns.
    check(cudaMemcpyAsync(overflow_.data(), plan.bias.data(), num_biases * sizeof(TokenBias), cudaMemcpyHostToDevice,
                          stream),
          "cudaMemcpyAsync");
    check(cudaMemcpyAsync(overflow_.data<uint8_t>() + bias_bytes, plan.penalty.data(),
                          num_penalties * sizeof(TokenPenalty), cudaMemcpyHostToDevice, stream),
          "cudaMemcpyAsync");
    arrays->bias = overflow_.data<const TokenBias>();
    arrays->penalty = reinterpret_cast<TokenPenalty*>(overflow_.data<uint8_t>() + bias_bytes);
    arrays->num_biases = num_biases;
    arrays->num_penalties = num_penalties;
    arrays->can_replay = false;
    return;
  }
  auto* const host = host_tables_[turn_].data<uint8_t>();
  auto* const device = device_tables_.data<uint8_t>();
  const auto send = [&](const auto& values, int64_t at) {
    if (values.empty()) return;
    copy(values, host + at);
    check(cudaMemcpyAsync(device + at, host + at, values.size() * sizeof(values[0]), cudaMemcpyHostToDevice, stream),
          "cudaMemcpyAsync");
  };
  send(plan.bias, 0);
  send(plan.penalty, aligned(limits_.max_num_biases * int64_t{sizeof(TokenBias)}));
}

}  // namespace llmb
