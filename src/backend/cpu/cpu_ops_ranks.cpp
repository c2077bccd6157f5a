// The ops in which ranks meet.
#include <algorithm>
#include <cmath>

#include "backend/cpu/cpu_ops.h"
#include "backend/cpu/cpu_weights.h"
#include "kernels/cpu/elementwise.h"
#include "kernels/cpu/paged_attention_parts.h"

namespace llmb {

void CpuOps::join_ranks(RankContext& ranks, const ModelConfig& whole, const ModelShare& share) {
  ranks_ = &ranks;
  vocab_ = {share.vocab.begin, share.vocab.count(), whole.vocab_size};
  if (whole.has_latent() || whole.heads_differ()) return;  // whole groups, or equal parts of one
  head_group_ = whole.num_attention_heads / whole.num_key_value_heads;
  first_absent_ = static_cast<int32_t>(share.q_heads.begin - share.kv_heads.begin * head_group_);
}

void CpuOps::end_stage() {
  plan_ = nullptr;
  if (adapters_) adapters_->end_step();
}

void CpuOps::sum_over_ranks(Rows x, int64_t rows) {
  Collectives& ranks = *ranks_->tensor;
  auto* const all = static_cast<float*>(x.data);
  const int64_t size = rows * x.width, most = ranks.room_bytes() / int64_t{sizeof(float)};
  for (int64_t at = 0; at < size; at += most) {
    const int64_t count = std::min(most, size - at);
    std::copy_n(all + at, count, static_cast<float*>(ranks.room(count * int64_t{sizeof(float)})));
    cpu::sum(ranks.share(), count, all + at, pool_);
  }
}

// Ranks that share heads all count them, each as often. How many columns all have together is summed as well.
void CpuOps::rms_norm_over_ranks(Rows x, int64_t first_column, int64_t num_groups, const DeviceBuffer& weight,
                                 float eps, int64_t rows) {
  if (ranks_ == nullptr || num_groups >= ranks_->tensor->size())
    return Ops::rms_norm_over_ranks(x, first_column, num_groups, weight, eps, rows);
  const int64_t width = weight.rows().width;
  const auto* const factors = static_cast<const float*>(weight.rows().data);
  const auto row_at = [&](int64_t row) { return static_cast<float*>(x.data) + row * x.width + first_column; };
  // [num_groups][rows + 1], of others' groups zeros
  square_sums_.assign(static_cast<size_t>(num_groups * (rows + 1)), 0.0f);
  float* const sums = square_sums_.data() + ranks_->tensor->rank() * num_groups / ranks_->tensor->size() * (rows + 1);
  pool_.parallel_for(rows, [&](int64_t row, int) {
    const float* const from = row_at(row);
    double sum = 0;
    for (int64_t i = 0; i < width; ++i) sum += double{from[i]} * from[i];
    sums[row] = static_cast<float>(sum);
  });
  sums[rows] = static_cast<float>(width);
  ranks_->tensor->all_reduce(square_sums_.data(), num_groups * (rows + 1));
  pool_.parallel_for(rows, [&](int64_t row, int) {
    float* const to = row_at(row);
    const float scale = 1 / std::sqrt(sums[row] / sums[rows] + eps);
    for (int64_t i = 0; i < width; ++i) to[i] = to[i] * scale * factors[i];
  });
}

// Each row is one rank's; zeros of the others leave it as it is.
void CpuOps::embed_part(const cpu::PackedLinear& table, int64_t rows, Rows out) {
  float* const to = static_cast<float*>(out.data);
  part_tokens_.clear();
  for (int64_t i = 0; i < rows; ++i) {
    const int64_t token = step_.tokens[static_cast<size_t>(first_row() + i)] - vocab_.begin;
    part_tokens_.push_back(token >= 0 && token < vocab_.count ? static_cast<TokenId>(token) : -1);
  }
  std::vector<TokenId> found = part_tokens_;
  for (TokenId& token : found) token = std::max(token, 0);
  cpu::embedding(table, found.data(), rows, to, pool_);
  for (int64_t i = 0; i < rows; ++i)
    if (part_tokens_[static_cast<size_t>(i)] < 0) std::fill_n(to + i * out.width, out.width, 0.0f);
  sum_over_ranks(out, rows);
}

int64_t CpuOps::query_width(int32_t layer) {
  return int64_t{config_.num_attention_heads} * kv_.layer(config_.kv_layer_of(layer)).head_dim;
}

void CpuOps::rope_and_kv_write(int32_t layer, int64_t rows, Rows qkv) {
  const int32_t kv_layer = config_.kv_layer_of(layer), group = groups_.group(layer);
  const bool has_own = config_.has_own_kv(layer), is_open = open_ && has_own;
  if (is_open) open_->begin_layer(kv_layer, pool_);
  write_kv(layer, first_row(), rows, config_.num_attention_heads, static_cast<float*>(qkv.data));
  if (has_part_of_rows() && has_own) share_kv(layer, rows, qkv);
  if (!is_open) return;
  const int32_t* const slots = slices_ ? slices_->slots(group) : &step_.slots[group * int64_t{plan_->num_tokens()}];
  open_->close(kv_layer, slots, kv_.layer(kv_layer), pool_);
}

// Each rank rotates and stores the keys and values of the others' rows as these do.
void CpuOps::share_kv(int32_t layer, int64_t rows, Rows qkv) {
  LLMB_CHECK(rows == rows_->own().count());
  const int64_t first_column = query_width(layer), width = qkv.width - first_column;
  rows_->share_columns(static_cast<const float*>(qkv.data), qkv.width, first_column, width,
                       [&](int64_t first_row, int64_t num_rows, const float* columns) {
                         foreign_rows_.assign(columns, columns + num_rows * width);
                         write_kv(layer, first_row, num_rows, 0, foreign_rows_.data());
                       });
}

// Valid until the next call.
const float* CpuOps::all_rows(Rows own) {
  foreign_rows_.resize(static_cast<size_t>(plan_->num_tokens() * own.width));
  float* const all = foreign_rows_.data();
  std::copy_n(floats(own), num_rows() * own.width, all + first_row() * own.width);
  rows_->share_columns(floats(own), own.width, 0, own.width, [&](int64_t first, int64_t count, const float* rows) {
    std::copy_n(rows, count * own.width, all + first * own.width);
  });
  return all;
}

// x has all rows of the step: this rank's come to the front.
void CpuOps::move_own_rows(Rows x) {
  float* const to = floats(x);
  std::copy_n(to + first_row() * x.width, num_rows() * x.width, to);
}

// Where ranks have parts of the rows, they give each other the queries, which nothing changes any more.
void CpuOps::attend_to_slices(int32_t layer, Rows qkv, const cpu::AttentionParams& params, Rows out) {
  const int64_t width = query_width(layer);
  const auto* queries = static_cast<const float*>(qkv.data);
  int64_t stride = qkv.width;
  if (has_part_of_rows()) {
    float* const all = slices_->queries(width);
    for (int64_t row = 0; row < num_rows(); ++row)
      std::copy_n(queries + row * stride, width, all + (first_row() + row) * width);
    rows_->share_columns(queries, stride, 0, width, [&](int64_t first, int64_t num_rows, const float* columns) {
      std::copy_n(columns, num_rows * width, all + first * width);
    });
    queries = all, stride = width;
  }
  const int32_t kv_layer = config_.kv_layer_of(layer), group = groups_.group(layer);
  const cpu::KvCacheView kv = kv_.layer(kv_layer), open = open_ ? open_->view(kv_layer) : cpu::KvCacheView();
  const auto attend = [&](cpu::AttentionBatch batch) {
    if (open_) batch.open = &open, batch.open_blocks = open_->blocks(kv_layer);
    cpu::paged_attention_parts(queries, stride, static_cast<float*>(out.data), first_row(), num_rows(), batch, params, kv,
                               slices_->ranks(), pool_);
  };
  if (plan_->parent_rows.empty()) return attend(slices_->batch(group));
  for (const TreeBatch::Part& part : tree_batches_[group].parts()) {
    tree_batches_[group].gather(part, kv, pool_);
    attend(tree_batches_[group].batch(part));
  }
}

}  // namespace llmb
