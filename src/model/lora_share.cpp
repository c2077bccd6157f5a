#include "model/lora_share.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "model/adapted_products.h"

namespace llmb {

namespace {

Range mlp_of_rank(const LoraShare& rank, int32_t layer) {
  const bool has_shared = rank.config.layer(layer).has_experts && !rank.config.experts.beside_dense;
  return has_shared ? rank.share.shared_mlp : rank.share.mlp_of(layer);
}

int64_t value_width(const StateConfig& state) { return state.kind == StateKind::kShortConv ? 1 : state.value_dim; }

// The rank's columns in each part of a product's output. layer: the model's.
std::vector<Range> parts_of_rank(const LoraShare& rank, int32_t layer, Projection projection) {
  const ModelConfig& c = rank.config;
  const ModelShare& share = rank.share;
  const bool has_state = c.layer(layer).has_state;
  const auto times = [](const Range& of, int64_t width) { return Range{of.begin * width, of.end * width}; };
  const Range values = times(share.state_values, value_width(c.state));
  switch (projection) {
    case Projection::kQkv: {
      if (has_state) {
        const Range keys = times(share.state_keys, c.state.key_dim);
        return {keys, keys, values};
      }
      const int64_t d = c.head_dim_of(layer);
      const Range sets = times(share.kv_heads_of(layer), d);
      return {times(share.q_heads, d), sets, sets};
    }
    case Projection::kMixedGate:
      return {has_state ? values : times(share.q_heads, c.head_dim_of(layer))};
    case Projection::kStateGates:
      return {share.state_values, share.state_values};
    case Projection::kGateUp:
      return {mlp_of_rank(rank, layer), mlp_of_rank(rank, layer)};
    case Projection::kLmHead:
      return {share.vocab};
    default:  // sums over ranks, and what is every rank's
      return {{0, product_columns(c, layer, projection)}};
  }
}

// The whole product's output columns that the rank computes, in the order of its own.
std::vector<Range> output_columns(const LoraShare& rank, int32_t layer, Projection projection) {
  std::vector<Range> columns = parts_of_rank(rank, layer, projection);
  const std::vector<int64_t> sizes = product_parts(rank.config, layer, projection);
  LLMB_CHECK(sizes.size() <= columns.size());
  columns.resize(sizes.size());
  int64_t first = 0;
  for (size_t i = 0; i < sizes.size(); first += sizes[i++]) {
    columns[i].begin += first;
    columns[i].end += first;
  }
  return columns;
}

// The part of a module in some of the output's columns, which the rank has from column `to` on.
LoraModule part_of(const LoraModule& module, const Range& columns, int64_t to) {
  LoraModule part = module;
  part.out_column = to;
  part.b_rows.clear();
  for (int64_t column = columns.begin; column < columns.end; ++column)
    part.b_rows.push_back(static_cast<int32_t>(module.row_of_column(column - module.out_column)));
  return part;
}

}  // namespace

std::vector<LoraModule> modules_of_rank(const LoraAdapter& adapter, const LoraShare& rank, int64_t layer,
                                        Projection projection) {
  std::vector<LoraModule> parts;
  const auto of_model = static_cast<int32_t>(layer + rank.share.layers.begin);
  for (const LoraModule& module : adapter.modules(of_model, projection)) {
    int64_t first = 0;  // of the rank's columns
    for (const Range& columns : output_columns(rank, of_model, projection)) {
      const Range common = {std::max(columns.begin, module.out_column),
                            std::min(columns.end, module.out_column + module.num_columns())};
      if (common.begin < common.end) parts.push_back(part_of(module, common, first + common.begin - columns.begin));
      first += columns.count();
    }
  }
  for (LoraModule& part : parts) {
    if (projection == Projection::kO) part.a_columns = parts_of_rank(rank, of_model, Projection::kMixedGate)[0];
    if (projection == Projection::kDown) part.a_columns = mlp_of_rank(rank, of_model);
  }
  return parts;
}

std::span<const LoraModule> expert_modules_of_rank(const LoraAdapter& adapter, const LoraShare& rank, int64_t layer,
                                                   int64_t expert, bool is_down) {
  if (!rank.share.experts.holds(expert)) return {};
  return adapter.expert_modules(layer + rank.share.layers.begin, expert, is_down);
}

}  // namespace llmb
