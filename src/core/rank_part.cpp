#include "core/rank_part.h"

#include <algorithm>
#include <string>
#include <vector>

#include "core/types.h"

namespace llmb {

namespace {

// Longer rows of tables stay as they are (kMaxInt8Features of kernels/cpu and kernels/cuda).
constexpr int64_t kMaxRoundedRow = 65536;

// Part `rank` of `size` parts of whole units, as even as may be.
Range even_part(int64_t total, int64_t unit, int32_t rank, int32_t size) {
  const int64_t units = ceil_div(total, unit);
  return {std::min(total, rank * units / size * unit), std::min(total, (rank + 1) * units / size * unit)};
}

// Boundaries of the vocabulary are those of words of masks, and for large ones those of blocks of sums.
int64_t vocab_unit(int64_t vocab_size, int32_t size) {
  for (const int64_t unit : {1024, 64})
    if (vocab_size >= 8 * unit * size) return unit;
  return 32;
}

// Columns of an MLP that stay together: panels of products, blocks of few bits, or what there is.
int64_t mlp_unit(const ModelConfig& config, int64_t columns, int32_t size) {
  int64_t unit = config.is_dequantised ? 256 : 64;
  while (unit > 1 && (columns % unit != 0 || columns / unit < 2 * size)) unit /= 2;
  return unit;
}

// Groups of heads that have one head in common: whole ones, or where there are fewer than ranks, parts of one.
void divide_groups(int64_t num_groups, int64_t group, int32_t rank, int32_t size, Range* common, Range* heads) {
  if (num_groups >= size) {
    *common = even_part(num_groups, 1, rank, size);
    *heads = {common->begin * group, common->end * group};
    return;
  }
  const auto sharers = static_cast<int32_t>(size / num_groups);
  const int64_t one = rank / sharers;
  const Range of_group = even_part(group, 1, rank % sharers, sharers);
  *common = {one, one + 1};
  *heads = {one * group + of_group.begin, one * group + of_group.end};
}

bool can_divide_groups(int64_t num_groups, int64_t group, int32_t size) {
  return num_groups >= size || (size % num_groups == 0 && group >= size / num_groups);
}

// Query heads as even as may be, where no rank needs more sets of keys and values for it than with whole groups.
void divide_heads(const ModelConfig& config, int32_t rank, int32_t size, ModelShare* share) {
  const int64_t num_kv = config.num_key_value_heads, heads = config.num_attention_heads, group = heads / num_kv;
  divide_groups(num_kv, group, rank, size, &share->kv_heads, &share->q_heads);
  // The mean over all heads of k counts each one equally often.
  if (num_kv % size == 0 || num_kv < size || config.qk_norm == QkNorm::kAllHeads) return;
  const auto sets_of = [&](int32_t r) {
    const Range part = even_part(heads, 1, r, size);
    return Range{part.begin / group, ceil_div(part.end, group)};
  };
  for (int32_t r = 0; r < size; ++r)
    if (sets_of(r).count() > ceil_div(num_kv, size)) return;
  share->q_heads = even_part(heads, 1, rank, size);
  share->kv_heads = sets_of(rank);
}

bool has_mlps_of_several_sizes(const ModelConfig& config) {
  const auto has_own_size = [](const LayerConfig& layer) { return layer.intermediate_size > 0; };
  return (config.mtp.is_used && has_own_size(config.mtp.layer)) ||
         std::any_of(config.layers.begin(), config.layers.end(), has_own_size);
}

bool layers_differ(const ModelConfig& config) { return config.heads_differ() || has_mlps_of_several_sizes(config); }

Range even_mlp(const ModelConfig& config, int64_t columns, int32_t rank, int32_t size) {
  return even_part(columns, mlp_unit(config, columns, size), rank, size);
}

// Where layers differ in their sets of keys and values, all have the same query heads on a rank, equally many on each,
// and of each layer the sets that these need.
void divide_layers(const ModelConfig& config, int32_t rank, int32_t size, ModelShare* share) {
  const int64_t heads = config.num_attention_heads;
  if (config.heads_differ()) share->q_heads = even_part(heads, 1, rank, size);
  const auto sets = [&](int64_t num_kv) {
    const int64_t group = heads / num_kv;
    return Range{share->q_heads.begin / group, ceil_div(share->q_heads.end, group)};
  };
  if (config.heads_differ()) share->kv_heads = sets(config.num_key_value_heads);
  for (int32_t i = 0; i < config.num_used_layers(); ++i)
    share->of_layers.push_back({config.heads_differ() ? sets(config.num_kv_heads_of(i)) : share->kv_heads,
                                even_mlp(config, config.intermediate_size_of(i), rank, size)});
}

// Where stages may begin, 0 among them: from there on no layer attends to the keys and values of one before.
std::vector<int64_t> stage_begins(const ModelConfig& config) {
  std::vector<int64_t> begins;
  int64_t first_read = config.num_hidden_layers;  // of those from i on
  for (int32_t i = config.num_hidden_layers - 1; i >= 0; --i) {
    first_read = std::min<int64_t>(first_read, config.kv_layer_of(i));
    if (first_read >= i) begins.push_back(i);
  }
  std::reverse(begins.begin(), begins.end());
  return begins;
}

// Behind the last layer with keys and values of its own a stage of one rank goes on with rows that are sampled
// (Ops::narrow_step): of prompts with hardly any.
void leave_out_readers(const ModelConfig& config, std::vector<int64_t>* prompts) {
  for (int32_t i = config.num_hidden_layers - 1; i >= 0; --i) {
    if (config.has_own_kv(i) || config.layer(i).has_state) return;
    (*prompts)[static_cast<size_t>(i)] = 0;
  }
}

// The costs of layers, those between two begins of stages together.
std::vector<int64_t> joined(const std::vector<int64_t>& costs, const std::vector<int64_t>& begins) {
  std::vector<int64_t> sums(begins.size());
  for (size_t layer = 0, part = 0; layer < costs.size(); ++layer) {
    if (part + 1 < begins.size() && begins[part + 1] == static_cast<int64_t>(layer)) ++part;
    sums[part] += costs[layer];
  }
  return sums;
}

// Those of its stage, balanced by what was measured, or by what is counted where nothing was.
Range layers_of(const ModelConfig& config, const RankPart& part) {
  const int64_t layers = config.num_hidden_layers;
  if (part.num_stages == 1) return {0, layers};
  const bool is_measured = static_cast<int64_t>(part.rows.costs.answers.size()) == layers;
  StageCosts costs = is_measured ? part.rows.costs : counted_costs(config, part.rows.mean_position);
  if (part.tensor_size == 1 && !part.divides_kv) leave_out_readers(config, &costs.prompts);
  std::vector<int64_t> begins = stage_begins(config);
  costs.prompts = joined(costs.prompts, begins), costs.answers = joined(costs.answers, begins);
  const std::vector<int64_t> bounds = cut_layers(costs, part.rows.prompt_permille, part.num_stages);
  begins.push_back(layers);
  const auto stage = static_cast<size_t>(part.stage());
  return {begins[static_cast<size_t>(bounds[stage])], begins[static_cast<size_t>(bounds[stage + 1])]};
}

// Key heads with their value heads, or channels where a convolution is all there is.
void divide_states(const ModelConfig& config, int32_t rank, int32_t size, ModelShare* share) {
  const StateConfig& s = config.state;
  if (s.kind == StateKind::kShortConv)
    share->state_values = even_part(s.value_dim, mlp_unit(config, s.value_dim, size), rank, size);
  else
    divide_groups(s.num_key_heads, s.num_value_heads / s.num_key_heads, rank, size, &share->state_keys,
                  &share->state_values);
}

Status cannot_divide(const std::string& what, int64_t count, int32_t size) {
  return unsupported(what + " " + std::to_string(count) + " cannot be divided among " + std::to_string(size) +
                     " ranks");
}

Status check_states(const StateConfig& state, int32_t size) {
  if (state.kind == StateKind::kNone) return {};
  if (state.kind == StateKind::kShortConv)
    return state.value_dim < size ? cannot_divide("hidden_size", state.value_dim, size) : Status();
  if (!can_divide_groups(state.num_key_heads, state.num_value_heads / state.num_key_heads, size))
    return cannot_divide("value heads of states", state.num_value_heads, size);
  return {};
}

Status check_layers(const ModelConfig& config, int32_t size) {
  if (config.heads_differ() && config.num_attention_heads % size != 0)
    return cannot_divide("num_attention_heads", config.num_attention_heads, size);
  for (int32_t i = 0; i < config.num_used_layers(); ++i) {
    const std::string of_layer = " of layer " + std::to_string(i) + ":";
    const int32_t kv = config.num_kv_heads_of(i), mlp = config.intermediate_size_of(i);
    if (config.heads_differ() && kv % size != 0 && size % kv != 0)
      return cannot_divide("num_key_value_heads" + of_layer, kv, size);
    if (mlp > 0 && mlp < size) return cannot_divide("intermediate_size" + of_layer, mlp, size);
  }
  return {};
}

Status check_stages(const ModelConfig& config, int32_t num_stages, Quantization quantization) {
  if (num_stages == 1) return {};
  if (config.num_hidden_layers < num_stages)
    return cannot_divide("num_hidden_layers", config.num_hidden_layers, num_stages);
  const int64_t inputs = int64_t{config.hidden_size_per_layer_input} * config.num_hidden_layers;
  if (quantization != Quantization::kNone && inputs > kMaxRoundedRow)
    return unsupported(std::string("quantization ") + quantization_name(quantization) + ": inputs of layers lie in rows of " +
                       std::to_string(inputs) + " numbers, too long to be rounded, and stages would round parts of them; "
                       "leave one of the two out");
  const std::vector<int64_t> begins = stage_begins(config);
  if (static_cast<int64_t>(begins.size()) >= num_stages) return {};
  return unsupported("model_type \"" + config.model_type + "\" cannot be cut into more than " +
                     std::to_string(begins.size()) + " stages: its layers from " + std::to_string(begins.back()) +
                     " on attend to each other's keys and values; use --tensor-parallel-size");
}

}  // namespace

Status check_ranks(const ModelConfig& config, int32_t tensor_size, int32_t num_stages, int32_t context_size,
                   Quantization quantization) {
  if (tensor_size * num_stages * context_size == 1) return {};
  LLMB_RETURN_IF_ERROR(check_stages(config, num_stages, quantization));
  if (tensor_size == 1) return {};
  LLMB_RETURN_IF_ERROR(check_states(config.state, tensor_size));
  if (layers_differ(config)) LLMB_RETURN_IF_ERROR(check_layers(config, tensor_size));
  const int64_t kv = config.num_key_value_heads;
  if (!can_divide_groups(kv, config.num_attention_heads / kv, tensor_size))
    return unsupported("num_attention_heads " + std::to_string(config.num_attention_heads) + " over " +
                       std::to_string(kv) + " sets of keys and values cannot be divided among " +
                       std::to_string(tensor_size) + " ranks");
  if (config.intermediate_size > 0 && config.intermediate_size < tensor_size)
    return cannot_divide("intermediate_size", config.intermediate_size, tensor_size);
  const int64_t shared = config.experts.shared_intermediate_size, experts = config.experts.num_experts;
  if (shared > 0 && shared < tensor_size) return cannot_divide("shared_intermediate_size", shared, tensor_size);
  if (experts > 0 && experts < tensor_size) return cannot_divide("num_experts", experts, tensor_size);
  if (config.vocab_size <= 32 * (tensor_size - 1)) return cannot_divide("vocab_size", config.vocab_size, tensor_size);
  return {};
}

ModelShare share_of(const ModelConfig& config, const RankPart& part) {
  const int32_t size = part.tensor_size, rank = part.tensor_rank();
  const int64_t shared = config.experts.shared_intermediate_size;
  const bool has_channels = config.state.kind == StateKind::kShortConv;
  ModelShare share = {{0, config.num_attention_heads},
                      {0, config.num_key_value_heads},
                      {0, config.intermediate_size},
                      {0, shared},
                      {0, config.experts.num_experts},
                      {0, config.vocab_size},
                      layers_of(config, part),
                      {0, config.state.num_key_heads},
                      {0, has_channels ? config.state.value_dim : config.state.num_value_heads},
                      rank == 0,
                      part.is_first_stage(),
                      part.is_last_stage()};
  if (size == 1) {
    if (layers_differ(config)) divide_layers(config, rank, size, &share);
    return share;
  }
  divide_heads(config, rank, size, &share);
  if (config.has_states()) divide_states(config, rank, size, &share);
  share.mlp = even_mlp(config, config.intermediate_size, rank, size);
  share.shared_mlp = even_mlp(config, shared, rank, size);
  if (layers_differ(config)) divide_layers(config, rank, size, &share);
  share.experts = even_part(config.experts.num_experts, 1, rank, size);
  share.vocab = even_part(config.vocab_size, vocab_unit(config.vocab_size, size), rank, size);
  return share;
}

ModelConfig config_of(const ModelConfig& config, const ModelShare& share) {
  ModelConfig own = config;
  own.num_attention_heads = static_cast<int32_t>(share.q_heads.count());
  own.num_key_value_heads = static_cast<int32_t>(share.kv_heads.count());
  own.intermediate_size = static_cast<int32_t>(share.mlp.count());
  own.experts.shared_intermediate_size = static_cast<int32_t>(share.shared_mlp.count());
  own.vocab_size = static_cast<int32_t>(share.vocab.count());
  const bool has_channels = config.state.kind == StateKind::kShortConv;
  own.state.num_key_heads = static_cast<int32_t>(share.state_keys.count());
  (has_channels ? own.state.value_dim : own.state.num_value_heads) = static_cast<int32_t>(share.state_values.count());
  own.num_hidden_layers = static_cast<int32_t>(share.layers.count());
  if (!config.layers.empty())
    own.layers.assign(config.layers.begin() + share.layers.begin, config.layers.begin() + share.layers.end);
  for (LayerConfig& layer : own.layers)
    if (layer.kv_layer >= 0) layer.kv_layer -= static_cast<int32_t>(share.layers.begin);
  const auto take = [](const ModelShare::OfLayer& part, LayerConfig* layer) {
    if (layer->num_key_value_heads > 0) layer->num_key_value_heads = static_cast<int32_t>(part.kv_heads.count());
    if (layer->intermediate_size > 0) layer->intermediate_size = static_cast<int32_t>(part.mlp.count());
  };
  if (!share.of_layers.empty()) {
    for (size_t i = 0; i < own.layers.size(); ++i)
      take(share.of_layers[static_cast<size_t>(share.layers.begin) + i], &own.layers[i]);
    if (config.mtp.is_used) take(share.of_layers.back(), &own.mtp.layer);
  }
  own.mtp.is_used = config.mtp.is_used && share.draws;  // it lies behind the last layer
  for (int32_t& layer : own.mtp.state_layers) layer -= static_cast<int32_t>(share.layers.begin);
  if (!config.alibi_slopes.empty())
    own.alibi_slopes.assign(config.alibi_slopes.begin() + share.q_heads.begin,
                            config.alibi_slopes.begin() + share.q_heads.end);
  return own;
}

}  // namespace llmb
