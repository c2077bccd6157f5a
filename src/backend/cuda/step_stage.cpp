#include "backend/cuda/step_stage.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"

namespace llmb {

using cuda::check;

namespace {

constexpr int64_t kAlignment = 256;

int64_t aligned(int64_t bytes) { return ceil_div(bytes, kAlignment) * kAlignment; }

// Of the tables: biases first, then penalties.
int64_t penalty_offset(const StepLimits& limits) { return aligned(limits.max_num_biases * int64_t{sizeof(TokenBias)}); }

int64_t table_bytes(const StepLimits& limits) {
  return penalty_offset(limits) + limits.max_num_penalties * int64_t{sizeof(TokenPenalty)};
}

template <typename Values>
void copy(const Values& values, void* out) {
  if (!values.empty()) std::memcpy(out, values.data(), values.size() * sizeof(values[0]));
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
  one_each_.counts.assign(limits.max_num_seqs, 1);
  one_each_.last.assign(limits.max_num_seqs, 0);
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
  arrays.penalty = reinterpret_cast<TokenPenalty*>(device_tables_.data<uint8_t>() + penalty_offset(limits_));
  return arrays;
}

StepArrays StepStage::upload(const StepPlan& plan, const StepShape& shape, cudaStream_t stream) {
  LLMB_CHECK(plan.num_tokens() <= shape.num_tokens && plan.num_entries() <= shape.num_seqs &&
             plan.num_samples() <= shape.num_samples);
  LLMB_CHECK(shape.num_tokens <= limits_.max_num_tokens && shape.num_seqs <= limits_.max_num_seqs &&
             shape.num_samples <= limits_.max_num_seqs);
  turn_ ^= 1;
  const Layout at = layout(shape);
  const int64_t bytes = at.block_ids + static_cast<int64_t>(plan.block_ids.size() * sizeof(BlockId));
  LLMB_CHECK(bytes <= host_[turn_].bytes());
  parts_ = split_samples(plan, limits_.max_num_biases, limits_.max_num_penalties);
  resolve_step(plan, one_each_, &resolved_);
  pack(plan, shape, at, host_[turn_].data<uint8_t>());
  check(cudaMemcpyAsync(device_.data(), host_[turn_].data(), bytes, cudaMemcpyHostToDevice, stream), "cudaMemcpyAsync");
  StepArrays result = arrays(shape);
  if (parts_.size() == 1) upload_tables(staged(parts_[0]), stream);
  else result.parts = parts_;
  return result;
}

void StepStage::pack(const StepPlan& plan, const StepShape& shape, const Layout& at, uint8_t* out) {
  copy_padded(plan.tokens, TokenId{0}, shape.num_tokens, out + at.tokens);
  copy_padded(resolved_.positions, int32_t{0}, shape.num_tokens, out + at.positions);
  copy_padded(resolved_.slots, int32_t{-1}, shape.num_tokens, out + at.slots);
  SampleRow padding;
  padding.token_row = -1;
  copy_padded(plan.sample_rows, padding, shape.num_samples, out + at.samples);
  auto* const samples = reinterpret_cast<SampleRow*>(out + at.samples);
  for (int32_t i = 0; i < plan.num_samples(); ++i) samples[i].position = resolved_.sample_rows[i].position;
  for (const SamplePart& part : parts_) {
    const auto first_bias = static_cast<int32_t>(part.bias.data() - plan.bias.data());
    const auto first_penalty = static_cast<int32_t>(part.penalty.data() - plan.penalty.data());
    for (int32_t i = part.begin; i < part.end; ++i) {
      samples[i].bias_begin -= first_bias, samples[i].bias_end -= first_bias;
      samples[i].penalty_begin -= first_penalty, samples[i].penalty_end -= first_penalty;
    }
  }
  auto* const rows = reinterpret_cast<int32_t*>(out + at.sample_rows);
  for (int32_t i = 0; i < shape.num_samples; ++i) rows[i] = samples[i].token_row;
  cuda::schedule_attention(
      {plan.num_entries(), plan.query_start.data(), resolved_.context_len.data(), plan.block_start.data()}, attention_,
      num_ctas_, &schedule_);
  copy(schedule_.cta_start, out + at.cta_start);
  copy(schedule_.items, out + at.items);
  copy(plan.block_ids, out + at.block_ids);
}

SamplePart StepStage::staged(const SamplePart& part) {
  auto* const bias = host_tables_[turn_].data<TokenBias>();
  auto* const penalty = reinterpret_cast<TokenPenalty*>(host_tables_[turn_].data<uint8_t>() + penalty_offset(limits_));
  copy(part.bias, bias);
  copy(part.penalty, penalty);
  return {part.begin, part.end, {bias, part.bias.size()}, {penalty, part.penalty.size()}};
}

void StepStage::upload_tables(const SamplePart& part, cudaStream_t stream) {
  auto* const device = device_tables_.data<uint8_t>();
  const auto send = [&](const auto& values, int64_t at) {
    if (values.empty()) return;
    check(cudaMemcpyAsync(device + at, values.data(), values.size_bytes(), cudaMemcpyHostToDevice, stream),
          "cudaMemcpyAsync");
  };
  send(part.bias, 0);
  send(part.penalty, penalty_offset(limits_));
}

}  // namespace llmb
