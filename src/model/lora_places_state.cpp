// Modules of layers with a recurrent state: rows of their matrices go where weight_loader_state.cpp puts the base's.
#include <numeric>

#include "model/lora_places.h"

namespace llmb {

namespace {

void add_rows(int64_t first, int64_t count, std::vector<int32_t>* rows) {
  const auto begin = rows->size();
  rows->resize(begin + static_cast<size_t>(count));
  std::iota(rows->begin() + static_cast<std::ptrdiff_t>(begin), rows->end(), static_cast<int32_t>(first));
}

std::vector<int32_t> rows(int64_t first, int64_t count) {
  std::vector<int32_t> list;
  add_rows(first, count, &list);
  return list;
}

}  // namespace

LoraPlaces::Found LoraPlaces::find_state(int32_t layer, std::string_view name) const {
  const StateConfig& s = model_.state;
  const int64_t hidden = model_.hidden_size, values = s.values_size();
  const std::string_view folder = s.kind == StateKind::kGatedDelta ? "linear_attn."
                                  : s.kind == StateKind::kMamba2   ? names_.mamba2
                                                                   : "conv.";
  if (!name.starts_with(folder)) return std::nullopt;
  name.remove_prefix(folder.size());
  if (name == "out_proj") return LoraPlace{false, layer, values, hidden, {{Projection::kO}}};
  if (s.kind == StateKind::kGatedDelta) return find_delta(layer, name);
  if (name != "in_proj") return std::nullopt;
  if (s.kind == StateKind::kMamba2) return mamba2_inputs(layer);
  // The gates of the convolution's input and of its output, and the input.
  return LoraPlace{false, layer, hidden, 3 * hidden,
                   {{Projection::kStateGates, 0, rows(0, hidden)},
                    {Projection::kMixedGate, 0, rows(hidden, hidden)},
                    {Projection::kQkv, 0, rows(2 * hidden, hidden)}}};
}

LoraPlaces::Found LoraPlaces::find_delta(int32_t layer, std::string_view name) const {
  const StateConfig& s = model_.state;
  const int64_t hidden = model_.hidden_size, heads = s.num_value_heads;
  const auto place = [&](int64_t out, Projection projection, int64_t out_column = 0) {
    return LoraPlace{false, layer, hidden, out, {{projection, out_column}}};
  };
  if (names_.joins_delta_inputs) {
    if (name == "in_proj_qkvz" || name == "in_proj_ba") return delta_joined(layer, name == "in_proj_ba");
    return std::nullopt;
  }
  if (name == "in_proj_qkv") return place(s.conv_channels(), Projection::kQkv);
  if (name == "in_proj_z") return place(s.values_size(), Projection::kMixedGate);
  if (name == "in_proj_b") return place(heads, Projection::kStateGates);
  if (name == "in_proj_a") return place(heads, Projection::kStateGates, heads);
  return std::nullopt;
}

// A key head's rows of q, k, v and gate lie together, or those of rates and decays.
LoraPlaces::Found LoraPlaces::delta_joined(int32_t layer, bool is_of_gates) const {
  const StateConfig& s = model_.state;
  const int64_t hidden = model_.hidden_size, group = s.num_value_heads / s.num_key_heads;
  const auto each_group = [&](int64_t stride, int64_t first, int64_t count, std::vector<int32_t>* to) {
    for (int64_t g = 0; g < s.num_key_heads; ++g) add_rows(g * stride + first, count, to);
  };
  if (is_of_gates) {
    std::vector<int32_t> gates;
    each_group(2 * group, 0, group, &gates);
    each_group(2 * group, group, group, &gates);
    return LoraPlace{false, layer, hidden, 2 * s.num_value_heads, {{Projection::kStateGates, 0, gates}}};
  }
  const int64_t values = group * s.value_dim, stride = 2 * s.key_dim + 2 * values;
  std::vector<int32_t> qkv, gate;
  each_group(stride, 0, s.key_dim, &qkv);
  each_group(stride, s.key_dim, s.key_dim, &qkv);
  each_group(stride, 2 * s.key_dim, values, &qkv);
  each_group(stride, 2 * s.key_dim + values, values, &gate);
  return LoraPlace{false, layer, hidden, s.num_key_heads * stride,
                   {{Projection::kQkv, 0, qkv}, {Projection::kMixedGate, 0, gate}}};
}

// Gate, then the convolution's inputs as v, k and q, then steps.
LoraPlaces::Found LoraPlaces::mamba2_inputs(int32_t layer) const {
  const StateConfig& s = model_.state;
  const int64_t values = s.values_size(), keys = s.keys_size(), channels = s.conv_channels();
  std::vector<int32_t> qkv = rows(2 * values + keys, keys);
  add_rows(2 * values, keys, &qkv);
  add_rows(values, values, &qkv);
  return LoraPlace{false, layer, model_.hidden_size, values + channels + s.num_value_heads,
                   {{Projection::kMixedGate, 0, rows(0, values)},
                    {Projection::kQkv, 0, qkv},
                    {Projection::kStateGates, 0, rows(values + channels, s.num_value_heads)}}};
}

std::vector<std::string> LoraPlaces::state_names() const {
  switch (model_.state.kind) {
    case StateKind::kNone: break;
    case StateKind::kMamba2:
      return {names_.mamba2 + std::string("in_proj"), names_.mamba2 + std::string("out_proj")};
    case StateKind::kShortConv: return {"conv.in_proj", "conv.out_proj"};
    case StateKind::kGatedDelta:
      if (names_.joins_delta_inputs)
        return {"linear_attn.in_proj_qkvz", "linear_attn.in_proj_ba", "linear_attn.out_proj"};
      return {"linear_attn.in_proj_qkv", "linear_attn.in_proj_z", "linear_attn.in_proj_b", "linear_attn.in_proj_a",
              "linear_attn.out_proj"};
  }
  return {};
}

}  // namespace llmb
