#include "backend/cpu/step_rows.h"

namespace llmb {

namespace {

// For each rank. With fewer, waiting for each other takes longer than the rows.
constexpr int32_t kMinRows = 8;

}  // namespace

void StepRows::begin_step(const StepPlan& plan, const ResolvedStep& step) {
  bounds_ = {0, plan.num_tokens()};
  if (plan.num_tokens() < kMinRows * context_.size() || !can_share_rows(plan)) return;
  bounds_ = divide_rows(step.positions, cost_, context_.size());
  query_start_ = {0};
  context_len_.clear();
  block_start_.assign(static_cast<size_t>(plan.num_layer_groups), {});
  for (int32_t e = 0; e < plan.num_entries(); ++e) {
    const int32_t begin = plan.query_start[e], end = plan.query_start[e + 1];
    const auto first = static_cast<int32_t>(std::max<int64_t>(begin, own().begin));
    const auto last = static_cast<int32_t>(std::min<int64_t>(end, own().end));
    if (first >= last) continue;
    query_start_.push_back(query_start_.back() + last - first);
    context_len_.push_back(step.context_len[e] - (end - last));
    for (int32_t group = 0; group < plan.num_layer_groups; ++group)
      block_start_[static_cast<size_t>(group)].push_back(plan.block_start[e * plan.num_layer_groups + group]);
  }
}

cpu::AttentionBatch StepRows::batch(const StepPlan& plan, int32_t layer_group) const {
  return {static_cast<int32_t>(context_len_.size()),
          query_start_.data(),
          context_len_.data(),
          block_start_[static_cast<size_t>(layer_group)].data(),
          plan.block_ids.data(),
          {},
          nullptr};
}

void StepRows::gather(const float* own_rows, int64_t width, std::span<const int32_t> rows, float* out) {
  const int64_t most = rows_a_message(width);
  const auto bytes = static_cast<size_t>(width) * sizeof(float);
  const Range mine = own();
  std::vector<const float*> next(static_cast<size_t>(context_.size()));
  for (size_t at = 0; at < rows.size(); at += static_cast<size_t>(most)) {
    const std::span<const int32_t> now = rows.subspan(at, std::min(rows.size() - at, static_cast<size_t>(most)));
    const auto num_own = std::count_if(now.begin(), now.end(), [&](int32_t row) { return mine.holds(row); });
    auto* to = static_cast<float*>(context_.room(num_own * static_cast<int64_t>(bytes)));
    for (const int32_t row : now)
      if (mine.holds(row)) std::memcpy(to, own_rows + (row - mine.begin) * width, bytes), to += width;
    const std::span<const void* const> all = context_.share();
    for (size_t rank = 0; rank < next.size(); ++rank) next[rank] = static_cast<const float*>(all[rank]);
    for (const int32_t row : now) {
      const auto after = std::upper_bound(bounds_.begin() + 1, bounds_.end() - 1, row);
      const float*& from = next[static_cast<size_t>(after - bounds_.begin()) - 1];
      std::memcpy(out, from, bytes);
      out += width, from += width;
    }
  }
}

}  // namespace llmb
