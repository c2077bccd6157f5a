#include "model/lora_share.h"

#include <algorithm>
#include <utility>

namespace llmb {

namespace {

// The whole product's output columns that the rank computes, in the order of its own.
std::vector<Range> output_columns(const LoraShare& rank, Projection projection) {
  const ModelConfig& c = rank.config;
  const ModelShare& share = rank.share;
  const auto heads = [&](int64_t first, const Range& of) {
    return Range{first + of.begin * c.head_dim, first + of.end * c.head_dim};
  };
  switch (projection) {
    case Projection::kQkv:
      return {heads(0, share.q_heads), heads(c.q_size(), share.kv_heads),
              heads(c.q_size() + c.kv_size(), share.kv_heads)};
    case Projection::kGateUp:
      if (!c.activation.gated) return {share.mlp};
      return {share.mlp, {c.intermediate_size + share.mlp.begin, c.intermediate_size + share.mlp.end}};
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
  for (const LoraModule& module : adapter.modules(layer + rank.share.layers.begin, projection)) {
    int64_t first = 0;  // of the rank's columns
    for (const Range& columns : output_columns(rank, projection)) {
      const Range common = {std::max(columns.begin, module.out_column),
                            std::min(columns.end, module.out_column + module.num_columns())};
      if (common.begin < common.end) parts.push_back(part_of(module, common, first + common.begin - columns.begin));
      first += columns.count();
    }
  }
  for (LoraModule& part : parts) {
    const int64_t d = rank.config.head_dim;
    if (projection == Projection::kO) part.a_columns = {rank.share.q_heads.begin * d, rank.share.q_heads.end * d};
    if (projection == Projection::kDown) part.a_columns = rank.share.mlp;
  }
  return parts;
}

}  // namespace llmb
