#include "backend/cpu/packed_adapter.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <iterator>
#include <utility>

#include "backend/cpu/cpu_ops.h"
#include "base/check.h"
#include "kernels/cpu/lora_embedding.h"

namespace llmb {

namespace {

// bf16 stays, fp16 is widened: exact either way.
cpu::LoraMatrices describe(const LoraModule& module) {
  cpu::LoraMatrices m;
  m.is_bf16 = module.a.dtype == DType::kBF16 && module.b.dtype == DType::kBF16;
  m.rank = module.rank();
  m.in_features = module.in_features();
  m.out_column = module.out_column;
  m.num_columns = module.num_columns();
  m.scale = module.scale;
  return m;
}

void store(float value, float* to) { *to = value; }
void store(float value, uint16_t* to) { *to = static_cast<uint16_t>(std::bit_cast<uint32_t>(value) >> 16); }

// T: of the elements. a and b are all zeros. is_table: of an embedding.
template <typename T>
void pack(const LoraModule& module, bool is_table, const cpu::LoraMatrices& m, T* a, T* b) {
  std::vector<float> row(std::max({module.a.cols, module.b.cols, m.rank}));
  const float* const inputs = row.data() + module.a_columns.begin;
  for (int64_t r = 0; r < m.rank; ++r) {
    read_floats(module.a, r, row.data());
    for (int64_t token = 0; is_table && token < m.in_features; ++token) store(inputs[token], a + token * m.rank + r);
    for (int64_t k = 0; !is_table && k < m.in_features; k += cpu::kLoraPanel) {
      T* const to = a + m.a_index(r, k);
      for (int64_t i = 0; i < std::min(cpu::kLoraPanel, m.in_features - k); ++i) store(inputs[k + i], to + i);
    }
  }
  for (int64_t column = 0; column < m.num_columns; ++column) {
    read_b(module, module.row_of_column(column), row.data());
    T* const to = b + m.b_index(0, column);
    for (int64_t r = 0; r < m.rank; ++r) store(row[r], to + r * cpu::kLoraPanel);
  }
}

int64_t a_bytes(const cpu::LoraMatrices& m, bool is_table) { return is_table ? cpu::lora_table_bytes(m) : m.a_bytes(); }

// Into m.a and m.b, which lie in memory that may be written.
void pack(const LoraModule& module, bool is_table, const cpu::LoraMatrices& m) {
  auto* const a = const_cast<uint8_t*>(m.a);
  auto* const b = const_cast<uint8_t*>(m.b);
  std::memset(a, 0, static_cast<size_t>(a_bytes(m, is_table)));
  std::memset(b, 0, static_cast<size_t>(m.b_bytes()));
  if (m.is_bf16) pack(module, is_table, m, reinterpret_cast<uint16_t*>(a), reinterpret_cast<uint16_t*>(b));
  else pack(module, is_table, m, reinterpret_cast<float*>(a), reinterpret_cast<float*>(b));
}

constexpr int64_t kLine = 64;  // of caches

int64_t whole_lines(int64_t bytes) { return ceil_div(bytes, kLine) * kLine; }

// Adapters of a batch's rows are read side by side, the same part of each in turn. If all began at the beginning of a page,
// these parts would share a few sets of every cache; so each begins somewhere else in a range of this size.
int64_t spread_of(int64_t bytes) { return std::min(1024 * kLine, bytes / 16); }

std::span<const LoraModule> modules_of(const LoraAdapter& adapter, int64_t product) {
  return adapter.modules(product / kNumProjections, static_cast<Projection>(product % kNumProjections));
}

}  // namespace

// An adapter's modules in order, and where each one's a and b lie.
struct CpuAdapterPacker::Layout {
  std::vector<cpu::LoraMatrices> matrices;
  std::vector<LoraModule> modules;
  std::vector<int32_t> start;  // CpuPackedAdapter
  std::vector<int64_t> at = {0};

  void begin_product() { start.push_back(static_cast<int32_t>(modules.size())); }
  void add(LoraModule module, bool is_table = false) {
    const cpu::LoraMatrices& m = matrices.emplace_back(describe(module));
    modules.push_back(std::move(module));
    at.push_back(at.back() + whole_lines(a_bytes(m, is_table)));
    at.push_back(at.back() + whole_lines(m.b_bytes()));
  }
};

// This rank's part of them.
std::vector<LoraModule> CpuAdapterPacker::modules_of_product(const LoraAdapter& adapter, int64_t product) const {
  const bool is_head = product == int64_t{num_layers_} * kNumProjections;
  if (rank_ && is_head && !rank_->share.draws) return {};
  if (rank_)
    return modules_of_rank(adapter, *rank_, is_head ? num_layers_ - 1 : product / kNumProjections,
                           is_head ? Projection::kLmHead : static_cast<Projection>(product % kNumProjections));
  const std::span<const LoraModule> modules = modules_of(adapter, product);
  return {modules.begin(), modules.end()};
}

// A merged product has weights of its own in place of matrices.
std::vector<LoraModule> CpuAdapterPacker::modules_at(const LoraAdapter& adapter, int64_t product) const {
  return merges(adapter, product) ? std::vector<LoraModule>() : modules_of_product(adapter, product);
}

std::span<const LoraModule> CpuAdapterPacker::expert_modules(const LoraAdapter& adapter, int64_t layer, int32_t expert,
                                                             bool is_down) const {
  if (rank_) return expert_modules_of_rank(adapter, *rank_, layer, expert, is_down);
  return adapter.expert_modules(layer, expert, is_down);
}

CpuAdapterPacker::Layout CpuAdapterPacker::lay_out(const LoraAdapter& adapter) const {
  Layout layout;
  for (int64_t i = 0; i < num_adapted_products(num_layers_); ++i) {
    layout.begin_product();
    for (LoraModule& module : modules_at(adapter, i)) layout.add(std::move(module));
  }
  layout.begin_product();
  if (const LoraModule* const embedding = embedding_of(adapter)) layout.add(*embedding, /*is_table=*/true);
  for (int32_t layer = 0; layer < num_layers_ && adapter.has_experts(); ++layer)
    for (int32_t expert = 0; expert < num_experts_; ++expert)
      for (const bool is_down : {false, true}) {
        layout.begin_product();
        for (const LoraModule& module : expert_modules(adapter, layer, expert, is_down)) layout.add(module);
      }
  layout.begin_product();
  return layout;
}

// Each rank adds the whole of it, behind the sum over ranks.
const LoraModule* CpuAdapterPacker::embedding_of(const LoraAdapter& adapter) const {
  return rank_ && !rank_->share.embeds ? nullptr : adapter.embedding();
}

const cpu::PackedLinear& CpuAdapterPacker::base_weight(int64_t product) const {
  LLMB_CHECK(base_.weights != nullptr);
  const LayerWeights& layer = base_.weights->layers[static_cast<size_t>(product / kNumProjections)];
  const LinearWeight* const gates = layer.conv_gate ? layer.conv_gate.get() : layer.state_gates.get();
  const LinearWeight* const weights[] = {layer.qkv.get(),    layer.o.get(),          layer.gate_up.get(),
                                         layer.down.get(),   layer.mixed_gate.get(), gates,
                                         layer.router.get(), layer.shared_gate.get()};
  static_assert(std::size(weights) == kNumProjections);
  return CpuOps::packed_linear(*weights[product % kNumProjections]);
}

// As CpuOps packed the base's.
DType CpuAdapterPacker::activations_of(int64_t product) const {
  const LayerWeights& layer = base_.weights->layers[static_cast<size_t>(product / kNumProjections)];
  switch (static_cast<Projection>(product % kNumProjections)) {
    case Projection::kRouter:
    case Projection::kSharedGate:
      return DType::kF32;
    case Projection::kStateGates:
      return layer.conv_gate ? base_.activations : DType::kF32;
    default:
      return base_.activations;
  }
}

// The LM head's matrices stay beside its weights.
bool CpuAdapterPacker::merges(const LoraAdapter& adapter, int64_t product) const {
  return adapter.is_merged() && product < int64_t{num_layers_} * kNumProjections &&
         !modules_of_product(adapter, product).empty() && can_merge(base_weight(product));
}

int64_t CpuAdapterPacker::num_bytes(const LoraAdapter& adapter) const {
  int64_t bytes = lay_out(adapter).at.back();
  bytes += spread_of(bytes);
  for (int64_t i = 0; i < num_adapted_products(num_layers_); ++i)
    if (merges(adapter, i)) bytes += base_weight(i).resident_bytes();
  return bytes;
}

// Any number of adapters in a row lie evenly: each begins the golden section of the range behind the one before.
int64_t CpuAdapterPacker::next_begin(int64_t bytes) const {
  const int64_t place = int64_t{num_packed_.fetch_add(1, std::memory_order_relaxed)} * 633 % 1024;
  return spread_of(bytes) * place / 1024 / kLine * kLine;
}

std::shared_ptr<const PackedAdapter> CpuAdapterPacker::pack(const LoraAdapter& adapter) const {
  auto layout = lay_out(adapter);
  auto packed = std::make_shared<CpuPackedAdapter>();
  packed->start = std::move(layout.start);
  packed->embedding_product = num_adapted_products(num_layers_);
  packed->num_experts = adapter.has_experts() ? num_experts_ : 0;
  const int64_t begin = next_begin(layout.at.back());
  packed->memory = cpu::AlignedBuffer(begin + layout.at.back());
  packed->matrices = std::move(layout.matrices);
  const int32_t* const of_table = packed->start.data() + packed->embedding_product;
  for (size_t i = 0; i < layout.modules.size(); ++i) {
    cpu::LoraMatrices& m = packed->matrices[i];
    m.a = packed->memory.data() + begin + layout.at[2 * i];
    m.b = packed->memory.data() + begin + layout.at[2 * i + 1];
    llmb::pack(layout.modules[i], std::cmp_greater_equal(i, of_table[0]) && std::cmp_less(i, of_table[1]), m);
  }
  if (!adapter.is_merged()) return packed;
  ThreadPool alone(1);  // the steps have the other threads
  packed->merged.resize(static_cast<size_t>(num_adapted_products(num_layers_)));
  for (int64_t i = 0; i < num_adapted_products(num_layers_); ++i)
    if (merges(adapter, i))
      packed->merged[static_cast<size_t>(i)] =
          merged_weight(base_weight(i), modules_of_product(adapter, i), activations_of(i), alone);
  return packed;
}

}  // namespace llmb
