// The rows of a step that one of several ranks with the same part of the model computes (context parallel). Keys and
// values are all ranks': each gives the others those of its rows, layer by layer, and attends to all from its own. A
// row's result does not depend on the other rows of a call, so no byte depends on how they are divided.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "base/collectives.h"
#include "core/rank_part.h"
#include "core/resolve_step.h"
#include "core/row_parts.h"
#include "core/step_plan.h"
#include "kernels/cpu/paged_attention.h"

namespace llmb {

// One thread drives it. The calls are those of all ranks, in step.
class StepRows {
 public:
  // `whole`: the model that all ranks compute. The channel outlives this.
  StepRows(Collectives& context, const ModelConfig& whole) : context_(context), cost_(row_cost(whole)) {}

  // Few rows are not worth meeting for, and some plans are not to be divided: there each rank computes all of them.
  void begin_step(const StepPlan& plan, const ResolvedStep& step);

  bool are_divided() const { return bounds_.size() > 2; }
  Range own() const { return part(are_divided() ? context_.rank() : 0); }

  // Entries as far as their rows are own ones, which begin with row 0. Valid until the next begin_step().
  cpu::AttentionBatch batch(const StepPlan& plan, int32_t layer_group) const;

  // Gives columns of own rows, and calls use(first_row, num_rows, columns) for those of other ranks, in parts:
  // columns [num_rows, width], valid during the call; first_row counts all rows of the step.
  template <class Use>
  void share_columns(const float* own_rows,  // [own().count(), stride]
                     int64_t stride, int64_t first_column, int64_t width, const Use& use);

  // out[i] = row rows[i] of the step, whoever has it
  void gather(const float* own_rows,  // [own().count(), width]
              int64_t width, std::span<const int32_t> rows, float* out);  // [rows, width]

 private:
  Range part(int rank) const { return {bounds_[static_cast<size_t>(rank)], bounds_[static_cast<size_t>(rank) + 1]}; }
  int64_t rows_a_message(int64_t width) const { return context_.room_bytes() / (width * int64_t{sizeof(float)}); }

  Collectives& context_;
  const RowCost cost_;
  std::vector<int64_t> bounds_ = {0, 0};  // [parts + 1]
  // Entries with own rows:
  std::vector<int32_t> query_start_;  // [entries + 1]
  std::vector<int32_t> context_len_;  // [entries]
  std::vector<std::vector<int32_t>> block_start_;  // [num_layer_groups][entries]
};

template <class Use>
void StepRows::share_columns(const float* own_rows, int64_t stride, int64_t first_column, int64_t width,
                             const Use& use) {
  const int64_t most = rows_a_message(width), num_own = own().count();
  int64_t longest = 0;
  for (int rank = 0; rank < context_.size(); ++rank) longest = std::max(longest, part(rank).count());
  for (int64_t at = 0; at < longest; at += most) {
    const auto count_of = [&](int64_t num_rows) { return std::clamp<int64_t>(num_rows - at, 0, most); };
    const int64_t count = count_of(num_own);
    auto* to = static_cast<float*>(context_.room(count * width * int64_t{sizeof(float)}));
    for (int64_t row = at; row < at + count; ++row, to += width)
      std::memcpy(to, own_rows + row * stride + first_column, static_cast<size_t>(width) * sizeof(float));
    const std::span<const void* const> all = context_.share();
    for (int rank = 0; rank < context_.size(); ++rank) {
      const int64_t num_rows = count_of(part(rank).count());
      if (rank == context_.rank() || num_rows == 0) continue;
      use(part(rank).begin + at, num_rows, static_cast<const float*>(all[static_cast<size_t>(rank)]));
    }
  }
}

}  // namespace llmb
