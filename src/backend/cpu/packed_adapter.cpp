#include "backend/cpu/packed_adapter.h"

#include <algorithm>
#include <bit>
#include <cstring>

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

// An adapter's modules in order, and where each one's a and b lie.
struct Layout {
  std::vector<const LoraModule*> modules;
  std::vector<int32_t> start;  // CpuPackedAdapter
  std::vector<int64_t> at = {0};
};

Layout lay_out(const LoraAdapter& adapter, int32_t num_layers) {
  Layout layout;
  for (int32_t layer = 0; layer < num_layers; ++layer) {
    for (int32_t p = 0; p < kNumProjections; ++p) {
      layout.start.push_back(static_cast<int32_t>(layout.modules.size()));
      for (const LoraModule& module : adapter.modules(layer, static_cast<Projection>(p))) {
        const cpu::LoraMatrices m = describe(module);
        layout.modules.push_back(&module);
        layout.at.push_back(layout.at.back() + whole_lines(m.a_bytes()));
        layout.at.push_back(layout.at.back() + whole_lines(m.b_bytes()));
      }
    }
  }
  layout.start.push_back(static_cast<int32_t>(layout.modules.size()));
  return layout;
}

}  // namespace

int64_t CpuAdapterPacker::num_bytes(const LoraAdapter& adapter) const { return lay_out(adapter, num_layers_).at.back(); }

std::shared_ptr<const PackedAdapter> CpuAdapterPacker::pack(const LoraAdapter& adapter) const {
  Layout layout = lay_out(adapter, num_layers_);
  auto packed = std::make_shared<CpuPackedAdapter>();
  packed->start = std::move(layout.start);
  packed->memory = cpu::AlignedBuffer(layout.at.back());
  for (size_t i = 0; i < layout.modules.size(); ++i) {
    cpu::LoraMatrices& m = packed->matrices.emplace_back(describe(*layout.modules[i]));
    m.a = packed->memory.data() + layout.at[2 * i];
    m.b = packed->memory.data() + layout.at[2 * i + 1];
    llmb::pack(*layout.modules[i], m);
  }
  return packed;
}

}  // namespace llmb
