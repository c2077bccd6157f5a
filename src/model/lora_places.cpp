#include "model/lora_places.h"

#include <algorithm>
#include <array>
#include <charconv>

namespace llmb {

namespace {

// The alternatives of "a|b".
std::vector<std::string_view> alternatives(std::string_view names) {
  std::vector<std::string_view> list;
  for (size_t begin = 0; begin <= names.size();) {
    const size_t end = std::min(names.find('|', begin), names.size());
    list.push_back(names.substr(begin, end - begin));
    begin = end + 1;
  }
  return list;
}

bool is_one_of(std::string_view name, const char* names) {
  if (names == nullptr) return false;
  const auto list = alternatives(names);
  return std::find(list.begin(), list.end(), name) != list.end();
}

}  // namespace

// The layer's index and the module's name in it.
std::optional<std::pair<int32_t, std::string_view>> LoraPlaces::find_layer(std::string_view module) const {
  for (const std::string_view prefix : alternatives(names_.prefix)) {
    const std::string layers = std::string(prefix) + names_.layers + ".";
    if (!module.starts_with(layers)) continue;
    const std::string_view rest = module.substr(layers.size());
    int32_t index = -1;
    const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), index);
    if (error != std::errc() || end == rest.data() + rest.size() || *end != '.') continue;
    if (index >= 0) return std::pair(index, rest.substr(end - rest.data() + 1));
  }
  return std::nullopt;
}

Result<LoraPlace> LoraPlaces::find(std::string_view module) const {
  if (const auto found = find_layer(module)) return find_in_layer(module, found->first, found->second);
  const int64_t hidden = model_.hidden_size, vocabulary = model_.vocab_size;
  for (const std::string_view prefix : alternatives(names_.prefix))
    if (module == std::string(prefix) + names_.embed_tokens) return LoraPlace{true, 0, vocabulary, hidden};
  if (is_one_of(module, names_.lm_head))
    return LoraPlace{false, model_.num_hidden_layers - 1, hidden, vocabulary, {{Projection::kLmHead}}};
  return unsupported("module " + std::string(module) +
                     ": only projections of the model's layers, embed_tokens and lm_head are computed");
}

Result<LoraPlace> LoraPlaces::find_in_layer(std::string_view module, int32_t layer, std::string_view name) const {
  if (layer >= model_.num_hidden_layers)
    return invalid_argument("module " + std::string(module) + ": the model has " +
                            std::to_string(model_.num_hidden_layers) + " layers");
  if (model_.has_latent())
    return unsupported("module " + std::string(module) + ": not of models with latent attention");
  const LayerConfig of_layer = model_.layer(layer);
  Found found;
  if (of_layer.has_mixer) found = of_layer.has_state ? find_state(layer, name) : find_attention(layer, name);
  if (!found && of_layer.has_mlp && (!of_layer.has_experts || model_.experts.beside_dense))
    found = find_mlp(layer, name);
  if (!found && of_layer.has_mlp && of_layer.has_experts && !model_.experts.beside_dense)
    found = find_beside_experts(layer, name);
  if (found) return *found;
  return unsupported("module " + std::string(module) +
                     ": only projections of attention, of recurrent states, of a dense MLP and of the expert that all "
                     "tokens go through, of experts, and routers, are computed");
}

LoraPlaces::Found LoraPlaces::find_attention(int32_t layer, std::string_view name) const {
  const int64_t hidden = model_.hidden_size, q = model_.q_size_of(layer), kv = model_.kv_size_of(layer);
  const auto place = [&](int64_t out, int64_t out_column) {
    return LoraPlace{false, layer, hidden, out,
                     {{Projection::kQkv, out_column, rows_of_heads(layer, out_column, out)}}};
  };
  if (is_one_of(name, names_.o)) return LoraPlace{false, layer, q, hidden, {{Projection::kO}}};
  if (names_.qkv != nullptr) {
    if (is_one_of(name, names_.qkv)) return place(q + 2 * kv, 0);
    return std::nullopt;
  }
  if (is_one_of(name, names_.q)) return model_.attention_gate ? gated_q(layer) : place(q, 0);
  if (kv > 0 && is_one_of(name, names_.k)) return place(kv, q);
  if (kv > 0 && !model_.layer(layer).values_are_keys && is_one_of(name, names_.v)) return place(kv, q + kv);
  return std::nullopt;
}

// The rows of a head's q, then those of its gate (weight_loader_state.cpp).
LoraPlaces::Found LoraPlaces::gated_q(int32_t layer) const {
  const int64_t q = model_.q_size_of(layer), d = model_.head_dim_of(layer);
  std::vector<int32_t> queries, gates;
  for (int64_t row = 0; row < 2 * q; ++row) (row / d % 2 == 0 ? queries : gates).push_back(static_cast<int32_t>(row));
  return LoraPlace{false, layer, model_.hidden_size, 2 * q,
                   {{Projection::kQkv, 0, queries}, {Projection::kMixedGate, 0, gates}}};
}

LoraPlaces::Found LoraPlaces::find_mlp(int32_t layer, std::string_view name) const {
  const int64_t hidden = model_.hidden_size, wide = model_.intermediate_size_of(layer);
  const bool is_gated = model_.activation.gated;
  const auto place = [&](int64_t out, int64_t out_column = 0) {
    return LoraPlace{false, layer, hidden, out, {{Projection::kGateUp, out_column}}};
  };
  if (is_one_of(name, names_.down)) return LoraPlace{false, layer, wide, hidden, {{Projection::kDown}}};
  if (is_gated && names_.gate_up != nullptr) {
    if (is_one_of(name, names_.gate_up)) return place(2 * wide);
    return std::nullopt;
  }
  if (is_gated && is_one_of(name, names_.gate)) return place(wide);
  if (is_one_of(name, names_.up)) return place(wide, is_gated ? wide : 0);
  return std::nullopt;
}

LoraPlaces::Found LoraPlaces::find_beside_experts(int32_t layer, std::string_view name) const {
  const int64_t hidden = model_.hidden_size, wide = model_.experts.shared_intermediate_size;
  const bool is_gated = model_.activation.gated;
  const auto place = [&](Projection projection, int64_t in, int64_t out, int64_t out_column = 0) {
    return LoraPlace{false, layer, in, out, {{projection, out_column}}};
  };
  if (is_one_of(name, names_.router)) return place(Projection::kRouter, hidden, model_.experts.num_experts);
  if (model_.experts.shared_gate && is_one_of(name, names_.shared_gate)) return place(Projection::kSharedGate, hidden, 1);
  const std::string folder = std::string(names_.shared_expert) + ".";
  if (wide == 0 || !name.starts_with(folder)) return find_expert(layer, name);
  name.remove_prefix(folder.size());
  if (is_one_of(name, names_.shared_down)) return place(Projection::kDown, wide, hidden);
  if (is_gated && names_.shared_gate_up != nullptr) {
    if (is_one_of(name, names_.shared_gate_up)) return place(Projection::kGateUp, hidden, 2 * wide);
    return std::nullopt;
  }
  if (is_gated && is_one_of(name, names_.shared_gate_proj)) return place(Projection::kGateUp, hidden, wide);
  if (is_one_of(name, names_.shared_up)) return place(Projection::kGateUp, hidden, wide, is_gated ? wide : 0);
  return std::nullopt;
}

// <experts>.<index>.<projection>; or as PEFT names matrices of stacked experts: <experts> or <experts>.base_layer, for the
// parameter that it wrapped last, and first.
LoraPlaces::Found LoraPlaces::find_expert(int32_t layer, std::string_view name) const {
  const int64_t hidden = model_.hidden_size, wide = model_.experts.intermediate_size;
  for (const std::string_view folder : alternatives(names_.experts)) {
    if (!name.starts_with(folder)) continue;
    std::string_view rest = name.substr(folder.size());
    LoraPlace place{false, layer};
    place.is_stack = rest.empty() || rest == ".base_layer";
    if (place.is_stack) return place;
    if (rest[0] != '.') continue;
    rest.remove_prefix(1);
    const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), place.expert);
    if (error != std::errc() || place.expert < 0 || place.expert >= model_.experts.num_experts) continue;
    rest.remove_prefix(static_cast<size_t>(end - rest.data()));
    const bool is_gated = model_.activation.gated;
    const auto is = [&](const char* projection) { return rest == "." + std::string(projection); };
    place.in_features = hidden, place.out_features = wide;
    if (is_gated && is(names_.expert_gate)) place.targets = {{Projection::kGateUp}};
    else if (is(names_.expert_up)) place.targets = {{Projection::kGateUp, is_gated ? wide : 0}};
    else if (is(names_.expert_down)) place = {false, layer, wide, hidden, {{Projection::kDown}}, place.expert};
    else continue;
    return place;
  }
  return std::nullopt;
}

std::optional<LoraPlace> LoraPlaces::stacked_experts(int32_t layer, int64_t in_features, int64_t out_features) const {
  const int64_t hidden = model_.hidden_size, deep = model_.experts.intermediate_size;
  const int64_t wide = model_.activation.gated ? 2 * deep : deep;
  if (in_features == deep && out_features == hidden && !(deep == hidden && wide == hidden))
    return LoraPlace{false, layer, deep, hidden, {{Projection::kDown}}};
  if (in_features != hidden || out_features != wide) return std::nullopt;
  LoraTarget target{Projection::kGateUp};
  const bool takes_turns = model_.activation.gated && names_.experts_layout == ExpertsLayout::kInterleaved;
  for (const int64_t first : {0, 1})
    for (int64_t row = first; takes_turns && row < wide; row += 2) target.rows.push_back(static_cast<int32_t>(row));
  return LoraPlace{false, layer, hidden, wide, {target}};
}

// As the forward pass wants the rows of q, k and v (model_weights.cpp does the same to the base weights); empty: as they
// are.
std::vector<int32_t> LoraPlaces::rows_of_heads(int32_t layer, int64_t out_column, int64_t out_features) const {
  if (names_.qkv == nullptr && !names_.is_interleaved && !model_.layer(layer).values_are_keys) return {};
  std::vector<int32_t> rows;
  for (const auto& [head, is_turned] : heads_of(layer, out_column, out_features)) {
    const int32_t d = model_.head_dim_of(layer);
    const int32_t turned = names_.is_interleaved && is_turned ? model_.rotary_dim(model_.ropes[0]) : 0;
    for (int32_t i = 0; i < turned; i += 2) rows.push_back(head * d + i);
    for (int32_t i = 1; i < turned; i += 2) rows.push_back(head * d + i);
    for (int32_t i = turned; i < d; ++i) rows.push_back(head * d + i);
  }
  return rows;
}

// The heads of the tensor in the order of the fused projection, and whether rope turns them.
std::vector<std::pair<int32_t, bool>> LoraPlaces::heads_of(int32_t layer, int64_t out_column,
                                                           int64_t out_features) const {
  const int32_t heads = model_.num_attention_heads, kv_heads = model_.num_key_value_heads;
  std::vector<std::pair<int32_t, bool>> out;
  if (names_.qkv == nullptr) {
    const int64_t q = model_.q_size_of(layer), count = out_features / model_.head_dim_of(layer);
    const bool is_both = model_.layer(layer).values_are_keys && out_column == q;  // keys, then values
    for (int32_t i = 0; i < count; ++i) out.emplace_back(i, out_column < q + model_.kv_size_of(layer));
    for (int32_t i = 0; is_both && i < count; ++i) out.emplace_back(i, false);
    return out;
  }
  std::array<std::vector<int32_t>, 3> parts;  // q, k, v
  const auto add = [](std::vector<int32_t>* to, int32_t first, int32_t count) {
    for (int32_t i = 0; i < count; ++i) to->push_back(first + i);
  };
  switch (names_.qkv_order) {
    case QkvOrder::kStacked:
      add(&parts[0], 0, heads);
      add(&parts[1], heads, kv_heads);
      add(&parts[2], heads + kv_heads, kv_heads);
      break;
    case QkvOrder::kGrouped:
      for (int32_t g = 0, group = heads / kv_heads; g < kv_heads; ++g) {
        add(&parts[0], g * (group + 2), group);
        add(&parts[1], g * (group + 2) + group, 1);
        add(&parts[2], g * (group + 2) + group + 1, 1);
      }
      break;
    case QkvOrder::kQuarters:
      for (int32_t i = 0, quarter = heads / 4; i < 4; ++i) {
        add(&parts[0], 3 * i * quarter, quarter);
        add(&parts[2], (3 * i + 1) * quarter, quarter);
        add(&parts[1], (3 * i + 2) * quarter, quarter);
      }
      break;
  }
  for (const int part : {0, 1, 2})
    for (const int32_t head : parts[part]) out.emplace_back(head, part < 2);
  return out;
}

bool LoraPlaces::is_common(const LoraPlace& place) const {
  if (place.is_embedding || place.is_lm_head()) return true;
  const LayerConfig layer = model_.layer(place.layer);
  const Projection projection = place.targets[0].projection;
  if (projection == Projection::kQkv || projection == Projection::kO) return !layer.has_state;
  const bool is_mlp = projection == Projection::kGateUp || projection == Projection::kDown;
  return is_mlp && (!layer.has_experts || model_.experts.beside_dense);
}

std::vector<std::string> LoraPlaces::tables_of(const LoraPlace& place) const {
  std::vector<std::string> names;
  if (!place.is_embedding)
    for (const std::string_view name : alternatives(names_.lm_head)) names.push_back(std::string(name) + ".weight");
  if (place.is_embedding || model_.tie_word_embeddings)
    for (const std::string_view prefix : alternatives(names_.prefix))
      names.push_back(std::string(prefix) + names_.embed_tokens + ".weight");
  return names;
}

std::vector<std::string> LoraPlaces::linear_modules() const {
  std::vector<std::string> in_layer = state_names();
  const auto add = [&](const char* names, const std::string& folder = "") {
    if (names == nullptr) return;
    for (const std::string_view name : alternatives(names)) {
      const std::string full = folder + std::string(name);  // some models have one name for the dense MLP's and the expert's
      if (std::find(in_layer.begin(), in_layer.end(), full) == in_layer.end()) in_layer.push_back(full);
    }
  };
  if (names_.qkv != nullptr) add(names_.qkv);
  else add(names_.q), add(names_.k), add(names_.v);
  add(names_.o);
  if (names_.gate_up != nullptr) add(names_.gate_up);
  else add(names_.gate), add(names_.up);
  add(names_.down);
  if (model_.experts.num_experts > 0) {
    const std::string folder = names_.shared_expert + std::string(".");
    add(names_.router);
    add(names_.shared_gate);
    if (names_.shared_gate_up != nullptr) add(names_.shared_gate_up, folder);
    else add(names_.shared_gate_proj, folder), add(names_.shared_up, folder);
    add(names_.shared_down, folder);
  }
  std::vector<std::string> modules = {std::string(alternatives(names_.lm_head)[0])};
  const std::string layers = std::string(alternatives(names_.prefix)[0]) + names_.layers + ".";
  for (int32_t layer = 0; layer < model_.num_hidden_layers; ++layer)
    for (const std::string& name : in_layer) modules.push_back(layers + std::to_string(layer) + "." + name);
  return modules;
}

}  // namespace llmb
