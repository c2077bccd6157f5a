// Rows of a step that are left behind the last layer with keys and values of its own, and attention's lists of them.
#include <cstring>

#include "backend/cuda/step_layout.h"
#include "backend/cuda/step_stage.h"
#include "base/check.h"

namespace llmb {

// Entries are attention's sequences. Those of the kept rows end where the entries do.
void StepStage::pack_kept(const StepPlan& plan, const StepShape& shape, const Layout& at, uint8_t* out) {
  LLMB_CHECK(static_cast<int32_t>(kept_.rows.size()) == shape.num_kept && !has_tree_ && !shape.is_split());
  std::memcpy(out + at.kept_rows, kept_.rows.data(), kept_.rows.size() * sizeof(int32_t));
  auto* const places = reinterpret_cast<cuda::StepRow*>(out + at.kept_places);
  for (size_t i = 0; i < kept_.rows.size(); ++i) places[i] = rows_[static_cast<size_t>(kept_.rows[i])];
  auto* const sample_rows = reinterpret_cast<int32_t*>(out + at.kept_sample_rows);
  for (int32_t i = 0; i < plan.num_samples(); ++i) {
    const SampleRow& row = plan.sample_rows[i];
    sample_rows[i] = kept_.place_of(plan.groups[row.group].entry, row.token_row);
  }
  const cuda::AttentionBatch batch{plan.num_entries(), kept_.start.data(), context_len_.data(), block_start_.data()};
  for (size_t i = 0; i < kinds_.size(); ++i) {
    cuda::AttentionSchedule& schedule = schedules_[1][i];
    cuda::schedule_attention(batch, kinds_[i].shape, kinds_[i].num_ctas, &schedule);
    std::memcpy(out + at.cta_start[1][i], schedule.cta_start.data(), schedule.cta_start.size() * sizeof(int32_t));
    std::memcpy(out + at.items[1][i], schedule.items.data(), schedule.items.size() * sizeof(cuda::AttentionItem));
  }
}

}  // namespace llmb
