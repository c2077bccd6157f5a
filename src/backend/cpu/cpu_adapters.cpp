#include "backend/cpu/cpu_adapters.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <stdexcept>
#include <utility>

#include "base/check.h"

namespace llmb {

namespace {

// bf16 stays, fp16 is widened: exact either way.
cpu::LoraMatrices describe(const LoraModule& module) {
  cpu::LoraMatrices m;
  m.is_bf16 = module.a.dtype == DType::kBF16 && module.b.dtype == DType::kBF16;
  m.rank = module.rank();
  m.in_features = module.a.cols;
  m.out_column = module.out_column;
  m.num_columns = module.b.rows;
  m.scale = module.scale;
  return m;
}

void store(float value, float* to) { *to = value; }
void store(float value, uint16_t* to) { *to = static_cast<uint16_t>(std::bit_cast<uint32_t>(value) >> 16); }

// T: of the elements. a and b are all zeros.
template <typename T>
void pack(const LoraModule& module, const cpu::LoraMatrices& m, T* a, T* b) {
  std::vector<float> row(std::max(m.in_features, m.rank));
  for (int64_t r = 0; r < m.rank; ++r) {
    read_floats(module.a, r, row.data());
    for (int64_t k = 0; k < m.in_features; k += cpu::kLoraPanel) {
      T* const to = a + m.a_index(r, k);
      for (int64_t i = 0; i < std::min(cpu::kLoraPanel, m.in_features - k); ++i) store(row[k + i], to + i);
    }
  }
  for (int64_t column = 0; column < m.num_columns; ++column) {
    read_floats(module.b, module.row_of_column(column), row.data());
    T* const to = b + m.b_index(0, column);
    for (int64_t r = 0; r < m.rank; ++r) store(row[r], to + r * cpu::kLoraPanel);
  }
}

// Into m.a and m.b, which lie in memory that may be written.
void pack(const LoraModule& module, const cpu::LoraMatrices& m) {
  auto* const a = const_cast<uint8_t*>(m.a);
  auto* const b = const_cast<uint8_t*>(m.b);
  std::memset(a, 0, static_cast<size_t>(m.a_bytes()));
  std::memset(b, 0, static_cast<size_t>(m.b_bytes()));
  if (m.is_bf16) pack(module, m, reinterpret_cast<uint16_t*>(a), reinterpret_cast<uint16_t*>(b));
  else pack(module, m, reinterpret_cast<float*>(a), reinterpret_cast<float*>(b));
}

int64_t whole_lines(int64_t bytes) { return ceil_div(bytes, 64) * 64; }

}  // namespace

void CpuAdapters::begin_step(const StepPlan& plan, ThreadPool& pool) {
  ids_.clear();
  for (const StepEntry& entry : plan.entries)
    if (entry.adapter >= 0) ids_.push_back(entry.adapter);
  if (ids_.empty()) return;
  std::sort(ids_.begin(), ids_.end());
  ids_.erase(std::unique(ids_.begin(), ids_.end()), ids_.end());
  adapters_.clear();
  for (const int32_t id : ids_) {
    const Loaded& loaded = load(id, pool);
    uses_.splice(uses_.end(), uses_, loaded.use);
    adapters_.push_back(&loaded);
  }
  make_room();
  lay_out(plan);
}

CpuAdapters::Loaded& CpuAdapters::load(int32_t id, ThreadPool& pool) {
  if (const auto found = loaded_.find(id); found != loaded_.end()) return found->second;
  LLMB_CHECK(library_ != nullptr);
  const std::shared_ptr<const LoraAdapter> adapter = library_->adapter(id);
  Loaded loaded;
  std::vector<const LoraModule*> modules;
  std::vector<int64_t> at = {0};  // of each module's a, and of its b
  for (int32_t layer = 0; layer < num_layers_; ++layer) {
    for (int32_t p = 0; p < kNumProjections; ++p) {
      loaded.start.push_back(static_cast<int32_t>(modules.size()));
      for (const LoraModule& module : adapter->modules(layer, static_cast<Projection>(p))) {
        modules.push_back(&module);
        const cpu::LoraMatrices& m = loaded.matrices.emplace_back(describe(module));
        at.push_back(at.back() + whole_lines(m.a_bytes()));
        at.push_back(at.back() + whole_lines(m.b_bytes()));
      }
    }
  }
  loaded.start.push_back(static_cast<int32_t>(modules.size()));
  loaded.memory = cpu::AlignedBuffer(at.back());
  pool.parallel_for(static_cast<int64_t>(modules.size()), [&](int64_t i, int) {
    cpu::LoraMatrices& m = loaded.matrices[i];
    m.a = loaded.memory.data() + at[2 * i];
    m.b = loaded.memory.data() + at[2 * i + 1];
    pack(*modules[i], m);
  });
  if (const Status status = adapter->still_readable(); !status.ok()) throw std::runtime_error(status.message());
  num_bytes_ += loaded.memory.size_bytes();
  loaded.use = uses_.insert(uses_.end(), id);
  return loaded_.emplace(id, std::move(loaded)).first->second;
}

// Those of the step are the latest used.
void CpuAdapters::make_room() {
  while (num_bytes_ > max_bytes_ && uses_.size() > ids_.size()) {
    const auto oldest = loaded_.find(uses_.front());
    num_bytes_ -= oldest->second.memory.size_bytes();
    uses_.pop_front();
    loaded_.erase(oldest);
  }
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
