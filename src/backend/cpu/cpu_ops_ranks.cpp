// The ops in which ranks meet.
#include <algorithm>
#include <cmath>

#include "backend/cpu/cpu_ops.h"

namespace llmb {

void CpuOps::join_ranks(RankContext& ranks, int32_t vocab_size, const Range& vocab) {
  ranks_ = &ranks;
  vocab_ = {vocab.begin, vocab.count(), vocab_size};
}

void CpuOps::end_stage() {
  plan_ = nullptr;
  if (adapters_) adapters_->end_step();
}

void CpuOps::sum_over_ranks(Rows x, int64_t rows) {
  if (ranks_ != nullptr) ranks_->tensor->all_reduce(static_cast<float*>(x.data), rows * x.width);
}

// Ranks that share heads all count them, each as often. How many columns all have together is summed as well.
void CpuOps::rms_norm_over_ranks(Rows x, int64_t first_column, const DeviceBuffer& weight, float eps, int64_t rows) {
  if (ranks_ == nullptr) return Ops::rms_norm_over_ranks(x, first_column, weight, eps, rows);
  const int64_t width = weight.rows().width;
  const auto* const factors = static_cast<const float*>(weight.rows().data);
  const auto row_at = [&](int64_t row) { return static_cast<float*>(x.data) + row * x.width + first_column; };
  square_sums_.resize(static_cast<size_t>(rows) + 1);
  pool_.parallel_for(rows, [&](int64_t row, int) {
    const float* const from = row_at(row);
    double sum = 0;
    for (int64_t i = 0; i < width; ++i) sum += double{from[i]} * from[i];
    square_sums_[static_cast<size_t>(row)] = static_cast<float>(sum);
  });
  square_sums_.back() = static_cast<float>(width);
  ranks_->tensor->all_reduce(square_sums_.data(), rows + 1);
  pool_.parallel_for(rows, [&](int64_t row, int) {
    float* const to = row_at(row);
    const float scale = 1 / std::sqrt(square_sums_[static_cast<size_t>(row)] / square_sums_.back() + eps);
    for (int64_t i = 0; i < width; ++i) to[i] = to[i] * scale * factors[i];
  });
}

// Each row is one rank's; zeros of the others leave it as it is.
void CpuOps::embed_part(const cpu::PackedLinear& table, int64_t rows, Rows out) {
  float* const to = static_cast<float*>(out.data);
  part_tokens_.clear();
  for (int64_t i = 0; i < rows; ++i) {
    const int64_t token = step_.tokens[static_cast<size_t>(i)] - vocab_.begin;
    part_tokens_.push_back(token >= 0 && token < vocab_.count ? static_cast<TokenId>(token) : -1);
  }
  std::vector<TokenId> found = part_tokens_;
  for (TokenId& token : found) token = std::max(token, 0);
  cpu::embedding(table, found.data(), rows, to, pool_);
  for (int64_t i = 0; i < rows; ++i)
    if (part_tokens_[static_cast<size_t>(i)] < 0) std::fill_n(to + i * out.width, out.width, 0.0f);
  sum_over_ranks(out, rows);
}

}  // namespace llmb
