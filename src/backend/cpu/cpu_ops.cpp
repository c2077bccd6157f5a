#include "backend/cpu/cpu_ops.h"

#include <cmath>
#include <cstring>
#include <utility>

#include "backend/cpu/mapped_floats.h"
#include "base/check.h"
#include "kernels/cpu/activation.h"
#include "kernels/cpu/gather.h"
#include "kernels/cpu/linear.h"
#include "kernels/cpu/norm.h"
#include "kernels/cpu/paged_attention.h"
#include "kernels/cpu/rope.h"
#include "kernels/cpu/sample.h"

namespace llmb {

namespace {

class CpuLinear final : public LinearWeight {
 public:
  explicit CpuLinear(cpu::PackedLinear packed) : packed_(std::move(packed)) {}
  int64_t resident_bytes() const override { return packed_.resident_bytes(); }
  const cpu::PackedLinear& packed() const { return packed_; }

 private:
  const cpu::PackedLinear packed_;
};

class CpuBuffer final : public DeviceBuffer {
 public:
  CpuBuffer(int64_t rows, int64_t width) : width_(width), memory_(rows * width) {}
  Rows rows() const override { return {memory_.data(), DType::kF32, width_}; }
  int64_t resident_bytes() const override { return memory_.size() * int64_t{sizeof(float)}; }

 private:
  const int64_t width_;
  const MappedFloats memory_;
};

float* floats(Rows rows) { return static_cast<float*>(rows.data); }

// Every weight here came from make_linear.
const cpu::PackedLinear& packed(const LinearWeight& weight) { return static_cast<const CpuLinear&>(weight).packed(); }

template <typename T>
void append(const std::vector<T>& from, std::vector<T>* to) {
  to->insert(to->end(), from.begin(), from.end());
}

void append(const StepOutput& from, StepOutput* to) {
  const auto top_base = static_cast<int32_t>(to->top_tokens.size());
  for (size_t i = 1; i < from.top_start.size(); ++i) to->top_start.push_back(top_base + from.top_start[i]);
  append(from.tokens, &to->tokens);
  append(from.logprobs, &to->logprobs);
  append(from.is_finite, &to->is_finite);
  append(from.top_tokens, &to->top_tokens);
  append(from.top_logprobs, &to->top_logprobs);
}

}  // namespace

CpuOps::CpuOps(const ModelConfig& config, const KvLayout& kv, int32_t max_position, ThreadPool& pool)
    : config_(config), pool_(pool), kv_(kv), rope_(make_rope_table(config, max_position)) {}

std::unique_ptr<LinearWeight> CpuOps::make_linear(std::span<const TensorView> parts,
                                                  std::span<const TensorView> biases) {
  return std::make_unique<CpuLinear>(cpu::PackedLinear::pack(parts, biases, pool_));
}

std::unique_ptr<DeviceBuffer> CpuOps::make_vector(const TensorView& values) {
  auto buffer = std::make_unique<CpuBuffer>(1, values.cols);
  // A table of one row, looked up: the kernels own the conversion from the stored dtype.
  const TensorView row{values.data, values.dtype, 1, values.cols};
  const TokenId first = 0;
  cpu::embedding(cpu::PackedLinear::pack({&row, 1}, {}, pool_), &first, 1, floats(buffer->rows()), pool_);
  return buffer;
}

std::unique_ptr<DeviceBuffer> CpuOps::allocate(int64_t rows, int64_t width, DType dtype) {
  LLMB_CHECK(dtype == DType::kF32);
  return std::make_unique<CpuBuffer>(rows, width);
}

void CpuOps::begin_step(const StepPlan& plan) {
  plan_ = &plan;
  resolve_tokens(plan, sampled_, &tokens_);
  output_.clear();
  sample_rows_.clear();
  for (const SampleRow& row : plan.sample_rows) sample_rows_.push_back(row.token_row);
}

void CpuOps::end_step(StepOutput* output) {
  sampled_ = output_.tokens;
  std::swap(*output, output_);
  plan_ = nullptr;
}

void CpuOps::embedding(const LinearWeight& table, int64_t rows, Rows out) {
  cpu::embedding(packed(table), tokens_.data(), rows, floats(out), pool_);
}

void CpuOps::add_rms_norm(Rows residual, Rows delta, const DeviceBuffer& weight, float eps, int64_t rows, Rows out) {
  cpu::add_rms_norm(floats(residual), floats(delta), floats(weight.rows()), eps, rows, residual.width, floats(out),
                    pool_);
}

void CpuOps::linear(const LinearWeight& weight, Rows x, int64_t rows, Rows out) {
  cpu::linear(packed(weight), floats(x), rows, floats(out), pool_);
}

void CpuOps::rope_and_kv_write(int32_t layer, int64_t rows, Rows qkv) {
  cpu::rope_and_kv_write(floats(qkv), plan_->positions.data(), plan_->slots.data(), rows, config_.num_attention_heads,
                         config_.num_key_value_heads, config_.head_dim, rope_.cos.data(), rope_.sin.data(),
                         kv_.layer(layer), pool_);
}

void CpuOps::paged_attention(int32_t layer, Rows qkv, Rows out) {
  const cpu::AttentionBatch batch{plan_->num_seqs(), plan_->query_start.data(), plan_->context_len.data(),
                                  plan_->block_start.data(), plan_->block_ids.data()};
  const auto scale = static_cast<float>(1 / std::sqrt(static_cast<double>(config_.head_dim)));
  cpu::paged_attention(floats(qkv), qkv.width, floats(out), batch, config_.num_attention_heads, scale,
                       kv_.layer(layer), pool_);
}

void CpuOps::silu_mul(Rows gate_up, int64_t rows, Rows out) {
  cpu::silu_mul(floats(gate_up), rows, config_.intermediate_size, floats(out), pool_);
}

void CpuOps::gather_sample_rows(Rows x, int64_t num_samples, Rows out) {
  cpu::gather_rows(floats(x), sample_rows_.data(), num_samples, x.width, floats(out), pool_);
}

void CpuOps::sample(Rows logits, int64_t first_sample, int64_t rows) {
  if (rows == plan_->num_samples()) return cpu::sample(floats(logits), config_.vocab_size, *plan_, &output_, pool_);
  const auto begin = plan_->sample_rows.begin() + first_sample;
  chunk_plan_.sample_rows.assign(begin, begin + rows);
  chunk_plan_.bias = plan_->bias;
  chunk_plan_.penalty = plan_->penalty;
  cpu::sample(floats(logits), config_.vocab_size, chunk_plan_, &chunk_output_, pool_);
  append(chunk_output_, &output_);
}

}  // namespace llmb
