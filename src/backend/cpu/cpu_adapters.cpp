#include "backend/cpu/cpu_adapters.h"

#include <algorithm>
#include <utility>

namespace llmb {

CpuAdapters::CpuAdapters(std::shared_ptr<AdapterLibrary> library, int32_t num_layers, int64_t max_bytes)
    : pool_(std::move(library), std::make_unique<CpuAdapterPacker>(num_layers), max_bytes) {}

void CpuAdapters::begin_step(const StepPlan& plan) {
  ids_.clear();
  adapters_.clear();
  for (const StepEntry& entry : plan.entries)
    if (entry.adapter >= 0) ids_.push_back(entry.adapter);
  if (ids_.empty()) return;
  std::sort(ids_.begin(), ids_.end());
  ids_.erase(std::unique(ids_.begin(), ids_.end()), ids_.end());
  for (const int32_t id : ids_) adapters_.push_back(std::static_pointer_cast<const CpuPackedAdapter>(pool_.take(id)));
  lay_out(plan);
}

void CpuAdapters::lay_out(const StepPlan& plan) {
  index_of_entry_.clear();
  entry_of_token_.resize(plan.num_tokens());
  for (int32_t e = 0; e < plan.num_entries(); ++e) {
    const int32_t id = plan.entries[e].adapter;
    index_of_entry_.push_back(id < 0 ? -1 : static_cast<int32_t>(std::lower_bound(ids_.begin(), ids_.end(), id) - ids_.begin()));
    std::fill(entry_of_token_.begin() + plan.query_start[e], entry_of_token_.begin() + plan.query_start[e + 1], e);
  }
  const auto of_token = [&](int32_t row) { return entry_of_token_[row]; };
  const auto of_sample = [&](int32_t row) { return entry_of_token_[plan.sample_rows[row].token_row]; };
  lay_out(plan.num_tokens(), of_token, &rows_[0]);
  lay_out(plan.num_samples(), of_sample, &rows_[1]);
}

// Sorts the rows by adapter, by counting.
template <typename EntryOfRow>
void CpuAdapters::lay_out(int32_t num_rows, const EntryOfRow& entry_of, RowsByAdapter* rows) const {
  auto& [row_ids, start] = *rows;
  start.assign(ids_.size() + 2, 0);
  for (int32_t row = 0; row < num_rows; ++row)
    if (const int32_t index = index_of_entry_[entry_of(row)]; index >= 0) ++start[index + 2];
  for (size_t i = 2; i < start.size(); ++i) start[i] += start[i - 1];
  row_ids.resize(start.back());
  for (int32_t row = 0; row < num_rows; ++row)
    if (const int32_t index = index_of_entry_[entry_of(row)]; index >= 0) row_ids[start[index + 1]++] = row;
}

const cpu::LoraWork* CpuAdapters::shrink(const AdaptedProduct& product, const float* x, int64_t in_features,
                                         ThreadPool& pool) {
  const RowsByAdapter& rows = rows_[product.kind == RowKind::kTokens ? 0 : 1];
  work_.segments.clear();
  for (size_t i = 0; i < ids_.size(); ++i)
    if (const auto matrices = adapters_[i]->of(product.layer, product.projection); !matrices.empty())
      work_.segments.push_back({matrices, rows.start[i], rows.start[i + 1]});
  if (work_.segments.empty()) return nullptr;
  work_.row_ids = rows.row_ids.data();
  cpu::lora_shrink(x, in_features, &work_, pool);
  return &work_;
}

}  // namespace llmb
