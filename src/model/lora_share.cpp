#include "model/lora_share.h"

#include <algorithm>
#include <utility>

namespace llmb {

namespace {

// The whole product's output columns that the rank computes, in the order of its own. layer: the model's.
std::vector<Range> output_columns(const LoraShare& rank, int32_t layer, Projection projection) {
  const ModelConfig& c = rank.config;
  const ModelShare& share = rank.share;
  const int64_t d = c.head_dim_of(layer), q = c.q_size_of(layer), kv = c.kv_size_of(layer);
  const Range &sets = share.kv_heads_of(layer), &mlp = share.mlp_of(layer);
  const auto heads = [&](int64_t first, const Range& of) { return Range{first + of.begin * d, first + of.end * d}; };
  switch (projection) {
    case Projection::kQkv:
      if (kv == 0) return {heads(0, share.q_heads)};
      return {heads(0, share.q_heads), heads(q, sets), heads(q + kv, sets)};
    case Projection::kGateUp: {
      const int64_t wide = c.intermediate_size_of(layer);
      if (!c.activation.gated) return {mlp};
      return {mlp, {wide + mlp.begin, wide + mlp.end}};
    }
    case Projection::kLmHead:
      return {share.vocab};
    default:  // sums over ranks
      return {{0, c.hidden_size}};
  }
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
    const int64_t d = rank.config.head_dim_of(of_model);
    if (projection == Projection::kO) part.a_columns = {rank.share.q_heads.begin * d, rank.share.q_heads.end * d};
    if (projection == Projection::kDown) part.a_columns = rank.share.mlp_of(of_model);
  }
  return parts;
}

}  // namespace llmb
