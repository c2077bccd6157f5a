#include "backend/cpu/cpu_adapters.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "base/check.h"

namespace llmb {

namespace {

cpu::LoraMatrices pack_lora(const LoraModule& module) {
  cpu::LoraMatrices m;
  m.rank = module.rank();
  m.out_column = module.out_column;
  m.num_columns = module.b.rows;
  m.scale = module.scale;
  m.a.resize(module.a.rows * module.a.cols);
  for (int64_t r = 0; r < m.rank; ++r) read_floats(module.a, r, m.a.data() + r * module.a.cols);
  m.b.resize(ceil_div(m.num_columns, cpu::kLoraPanel) * m.rank * cpu::kLoraPanel);
  std::vector<float> row(m.rank);
  for (int64_t column = 0; column < m.num_columns; ++column) {
    read_floats(module.b, module.row_of_column(column), row.data());
    float* const panel = m.b.data() + column / cpu::kLoraPanel * m.rank * cpu::kLoraPanel + column % cpu::kLoraPanel;
    for (int64_t r = 0; r < m.rank; ++r) panel[r * cpu::kLoraPanel] = row[r];
  }
  return m;
}

}  // namespace

void CpuAdapters::begin_step(const StepPlan& plan, ThreadPool& pool) {
  segments_.clear();
  ids_.clear();
  for (const StepEntry& entry : plan.entries)
    if (entry.adapter >= 0) ids_.push_back(entry.adapter);
  if (ids_.empty()) return;
  std::sort(ids_.begin(), ids_.end());
  ids_.erase(std::unique(ids_.begin(), ids_.end()), ids_.end());
  for (const int32_t id : ids_) {
    Loaded& loaded = load(id, pool);
    uses_.splice(uses_.end(), uses_, loaded.use);
  }
  make_room();
  lay_out(plan);
}

CpuAdapters::Loaded& CpuAdapters::load(int32_t id, ThreadPool& pool) {
  if (const auto found = loaded_.find(id); found != loaded_.end()) return found->second;
  LLMB_CHECK(library_ != nullptr);
  const std::shared_ptr<const LoraAdapter> adapter = library_->adapter(id);
  Loaded loaded;
  loaded.matrices.resize(int64_t{num_layers_} * kNumProjections);
  pool.parallel_for(num_layers_, [&](int64_t layer, int) {
    for (int32_t p = 0; p < kNumProjections; ++p) {
      auto& list = loaded.matrices[layer * kNumProjections + p];
      for (const LoraModule& module : adapter->modules(static_cast<int32_t>(layer), static_cast<Projection>(p)))
        list.push_back(pack_lora(module));
    }
  });
  if (const Status status = adapter->still_readable(); !status.ok()) throw std::runtime_error(status.message());
  for (const auto& list : loaded.matrices)
    for (const auto& m : list) loaded.bytes += static_cast<int64_t>((m.a.size() + m.b.size()) * sizeof(float));
  num_bytes_ += loaded.bytes;
  loaded.use = uses_.insert(uses_.end(), id);
  return loaded_.emplace(id, std::move(loaded)).first->second;
}

// Those of the step are the latest used.
void CpuAdapters::make_room() {
  while (num_bytes_ > max_bytes_ && uses_.size() > ids_.size()) {
    const auto oldest = loaded_.find(uses_.front());
    num_bytes_ -= oldest->second.bytes;
    uses_.pop_front();
    loaded_.erase(oldest);
  }
}

void CpuAdapters::lay_out(const StepPlan& plan) {
  for (auto& rows : row_ids_) rows.clear();
  std::vector<int32_t> entry_of_row(plan.num_tokens());
  for (int32_t e = 0; e < plan.num_entries(); ++e)
    std::fill(entry_of_row.begin() + plan.query_start[e], entry_of_row.begin() + plan.query_start[e + 1], e);
  for (const int32_t id : ids_) {
    AdapterRows rows;
    rows.adapter = &loaded_.at(id);
    for (const int kind : {0, 1}) rows.begin[kind] = static_cast<int32_t>(row_ids_[kind].size());
    for (int32_t row = 0; row < plan.num_tokens(); ++row)
      if (plan.entries[entry_of_row[row]].adapter == id) row_ids_[0].push_back(row);
    for (int32_t row = 0; row < plan.num_samples(); ++row)
      if (plan.entries[entry_of_row[plan.sample_rows[row].token_row]].adapter == id) row_ids_[1].push_back(row);
    for (const int kind : {0, 1}) rows.end[kind] = static_cast<int32_t>(row_ids_[kind].size());
    segments_.push_back(rows);
  }
}

void CpuAdapters::add(int32_t layer, Projection projection, RowKind kind, const float* x, int64_t in_features,
                      float* out, int64_t out_features, ThreadPool& pool) {
  const int of_kind = kind == RowKind::kTokens ? 0 : 1;
  scratch_.clear();
  for (const AdapterRows& rows : segments_)
    scratch_.push_back({rows.adapter->matrices[layer * int64_t{kNumProjections} + static_cast<int64_t>(projection)],
                        rows.begin[of_kind], rows.end[of_kind]});
  cpu::lora(x, in_features, scratch_, row_ids_[of_kind].data(), out, out_features, pool);
}

}  // namespace llmb
