#include "backend/cpu/cpu_adapters.h"

#include <algorithm>
#include <utility>

#include "kernels/cpu/gather.h"
#include "kernels/cpu/lora_embedding.h"

namespace llmb {

CpuAdapters::CpuAdapters(std::shared_ptr<AdapterLibrary> library, int32_t num_layers, int32_t num_experts,
                         int64_t max_bytes, std::optional<LoraShare> rank)
    : num_experts_(num_experts),
      pool_(std::move(library), std::make_unique<CpuAdapterPacker>(num_layers, num_experts, base_, std::move(rank)),
            max_bytes) {}

void CpuAdapters::begin_step(const StepPlan& plan) {
  adapters_.clear();
  rows_.lay_out(plan);
  for (const int32_t id : rows_.ids())
    adapters_.push_back(std::static_pointer_cast<const CpuPackedAdapter>(pool_.take(id)));
}

// False: there are no such matrices.
template <typename MatricesOf>
bool CpuAdapters::begin_work(const AdapterRows::OfKind& rows, const MatricesOf& matrices_of) {
  work_.segments.clear();
  for (size_t i = 0; i < adapters_.size(); ++i)
    if (const auto matrices = matrices_of(*adapters_[i]); !matrices.empty())
      work_.segments.push_back({matrices, rows.start[i], rows.start[i + 1]});
  work_.row_ids = rows.row_ids.data();
  return !work_.segments.empty();
}

// Leaves those of the work's rows that are in [begin, end), counted from `begin` on.
void CpuAdapters::keep_rows(int64_t begin, int64_t end) {
  kept_ids_.clear();
  for (cpu::LoraSegment& segment : work_.segments) {
    const auto first = static_cast<int32_t>(kept_ids_.size());
    for (int32_t i = segment.row_begin; i < segment.row_end; ++i)
      if (const int32_t id = work_.row_ids[i]; id >= begin && id < end)
        kept_ids_.push_back(id - static_cast<int32_t>(begin));
    segment.row_begin = first;
    segment.row_end = static_cast<int32_t>(kept_ids_.size());
  }
  work_.row_ids = kept_ids_.data();
}

const cpu::LoraWork* CpuAdapters::shrink(const AdaptedProduct& product, const float* x, int64_t in_features,
                                         int64_t rows, ThreadPool& pool) {
  const auto matrices_of = [&](const CpuPackedAdapter& adapter) {
    return adapter.of(product.layer, product.projection);
  };
  if (!begin_work(rows_.of(product.kind), matrices_of)) return nullptr;
  if (product.projection == Projection::kLmHead) keep_rows(product.first_row, product.first_row + rows);
  cpu::lora_shrink(x, in_features, &work_, pool);
  return &work_;
}

bool CpuAdapters::has_merged() const {
  return std::any_of(adapters_.begin(), adapters_.end(), [](const auto& adapter) { return !adapter->merged.empty(); });
}

const cpu::PackedLinear* CpuAdapters::merged_for_all(const AdaptedProduct& product, int64_t rows) const {
  if (adapters_.size() != 1 || static_cast<int64_t>(rows_.of(product.kind).row_ids.size()) != rows) return nullptr;
  return adapters_[0]->merged_at(product.layer, product.projection);
}

void CpuAdapters::compute_merged_rows(const AdaptedProduct& product, const float* x, float* out, ThreadPool& pool) {
  const AdapterRows::OfKind& rows = rows_.of(product.kind);
  for (size_t i = 0; i < adapters_.size(); ++i) {
    const cpu::PackedLinear* const weight = adapters_[i]->merged_at(product.layer, product.projection);
    const int64_t count = rows.start[i + 1] - rows.start[i];
    if (weight == nullptr || count == 0) continue;
    const int64_t in = weight->in_features(), width = weight->out_features();
    merged_x_.resize(std::max(merged_x_.size(), static_cast<size_t>(count * in)));
    merged_out_.resize(std::max(merged_out_.size(), static_cast<size_t>(count * width)));
    const int32_t* const ids = rows.row_ids.data() + rows.start[i];
    cpu::gather_rows(x, ids, count, in, merged_x_.data(), pool);
    cpu::linear(*weight, merged_x_.data(), count, merged_out_.data(), pool);
    for (int64_t row = 0; row < count; ++row)
      std::copy_n(merged_out_.data() + row * width, width, out + ids[row] * width);
  }
}

const cpu::ExpertAdapters* CpuAdapters::of_experts(const AdaptedProduct& product, int64_t num_rows) {
  const AdapterRows::OfKind& rows = rows_.of(product.kind);
  cpu::ExpertAdapters& out = of_experts_;
  out.adapter_of_row.assign(static_cast<size_t>(num_rows), -1);
  out.gate_up.assign(adapters_.size() * static_cast<size_t>(num_experts_), {});
  out.down.assign(out.gate_up.size(), {});
  bool has_any = false;
  for (size_t i = 0; i < adapters_.size(); ++i) {
    const CpuPackedAdapter& adapter = *adapters_[i];
    if (adapter.num_experts == 0 || rows.start[i] == rows.start[i + 1]) continue;
    has_any = true;
    for (int32_t k = rows.start[i]; k < rows.start[i + 1]; ++k)
      out.adapter_of_row[static_cast<size_t>(rows.row_ids[k])] = static_cast<int32_t>(i);
    for (int32_t e = 0; e < num_experts_; ++e) {
      const size_t at = i * static_cast<size_t>(num_experts_) + static_cast<size_t>(e);
      out.gate_up[at] = adapter.of_expert(product.layer, e, false);
      out.down[at] = adapter.of_expert(product.layer, e, true);
    }
  }
  return has_any ? &out : nullptr;
}

void CpuAdapters::add_embedding(const TokenId* tokens, int64_t rows, float* out, int64_t hidden_size,
                                ThreadPool& pool) {
  const auto matrices_of = [](const CpuPackedAdapter& adapter) { return adapter.embedding(); };
  if (!begin_work(rows_.of(RowKind::kTokens), matrices_of)) return;
  cpu::lora_look_up(tokens, &work_);
  constexpr int64_t kRows = 8;  // of a task
  pool.parallel_for(ceil_div(rows, kRows), [&](int64_t i, int) {
    const int64_t begin = i * kRows, end = std::min(rows, begin + kRows);
    cpu::lora_expand(work_, begin, end, 0, hidden_size, out + begin * hidden_size, hidden_size);
  });
}

}  // namespace llmb
