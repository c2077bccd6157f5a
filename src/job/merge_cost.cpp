#include "job/merge_cost.h"

#include <algorithm>

#include "model/adapted_products.h"

namespace llmb {

namespace {

// Processor times, in multiply-adds of a product that 64 rows share (32 ps). Measured 2026-11-26 on an AMD EPYC 7003
// (AVX2, two threads) by `bench_adapters --shape qwen2.5-0.5b`, --rows 64 and 1, and --merged at ranks 1, 16 and 64.
constexpr double kBesideFactor = 3.5;  // one of an adapter's matrices, beside the products
constexpr double kAddFactor = 20;      // one of B A, added to a weight
constexpr double kPackFactor = 300;    // unpacking, rounding and packing a weight
constexpr double kPassRows = 5;        // reading weights once more in a step costs as much as so many of its rows
// Rows that run at once, as long as there are so many. A constant, as the choice must not depend on --max-num-seqs.
constexpr int64_t kRowsAtOnce = 64;

// f(modules, columns) for each product that can be merged: those of layers. Columns are those of the whole product, which
// is merged even if an adapter has matrices for a part of it only.
template <typename Function>
void for_each_merged(const LoraAdapter& adapter, const ModelConfig& model, const Function& f) {
  for (int32_t layer = 0; layer < model.num_hidden_layers; ++layer) {
    for (int32_t p = 0; p < kNumProjections; ++p) {
      const auto projection = static_cast<Projection>(p);
      const auto modules = adapter.modules(layer, projection);
      if (!modules.empty()) f(modules, product_columns(model, layer, projection));
    }
  }
}

}  // namespace

MergeCost merge_cost(const LoraAdapter& adapter, const ModelConfig& model, const AdapterRowTotals& rows,
                     bool has_others) {
  MergeCost cost;
  // Its rows run one behind the other. At both ends of them, for about as many steps as an answer takes, other rows run
  // beside: the weights are read once more, and its rows are computed twice.
  const double answer = static_cast<double>(rows.num_output_tokens) / std::max<int64_t>(1, rows.num_choices);
  const double num_steps = has_others ? answer : 0;
  const double shared_rows = 2 * num_steps * kPassRows +
                             num_steps * static_cast<double>(std::min(rows.num_choices, kRowsAtOnce));
  for_each_merged(adapter, model, [&](std::span<const LoraModule> modules, int64_t columns) {
    const auto weights = static_cast<double>(modules[0].a.cols) * static_cast<double>(columns);
    cost.merged += (kPackFactor + shared_rows) * weights;
    for (const LoraModule& m : modules) {
      const auto rank = static_cast<double>(m.rank()), in = static_cast<double>(m.a.cols);
      const auto out = static_cast<double>(m.num_columns());
      cost.beside += kBesideFactor * rank * (in + out) * static_cast<double>(rows.num_tokens());
      cost.merged += kAddFactor * rank * in * out;
    }
  });
  return cost;
}

int64_t merged_bytes(const LoraAdapter& adapter, const ModelConfig& model) {
  int64_t bytes = 0;
  for_each_merged(adapter, model, [&](std::span<const LoraModule> modules, int64_t columns) {
    bytes += modules[0].a.cols * columns * dtype_bytes(model.dtype);
  });
  for (const LoraModule& m : adapter.modules(model.num_hidden_layers - 1, Projection::kLmHead))
    bytes += m.rank() * (m.a.cols + m.b.rows) * dtype_bytes(m.a.dtype);
  for (int32_t layer = 0; layer < model.num_hidden_layers && adapter.has_experts(); ++layer)
    for (int32_t expert = 0; expert < model.experts.num_experts; ++expert)
      for (const bool is_down : {false, true})
        for (const LoraModule& m : adapter.expert_modules(layer, expert, is_down))
          bytes += m.rank() * (m.a.cols + m.b.rows) * dtype_bytes(m.a.dtype);
  if (const LoraModule* const m = adapter.embedding())
    bytes += m->rank() * (m->a.cols + m->b.rows) * dtype_bytes(m->a.dtype);
  return bytes;
}

}  // namespace llmb
