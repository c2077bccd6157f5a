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
    if (module == std::string(prefix) + names_.embed_tokens) return LoraPlace{true, 0, {}, vocabulary, hidden, 0};
  if (is_one_of(module, names_.lm_head))
    return LoraPlace{false, model_.num_hidden_layers - 1, Projection::kLmHead, hidden, vocabulary, 0};
  return unsupported("module " + std::string(module) +
                     ": only projections of the model's layers, embed_tokens and lm_head are computed");
}

Result<LoraPlace> LoraPlaces::find_in_layer(std::string_view module, int32_t layer, std::string_view name) const {
  if (layer >= model_.num_hidden_layers)
    return invalid_argument("module " + std::string(module) + ": the model has " +
                            std::to_string(model_.num_hidden_layers) + " layers");
  if (model_.has_halves())
    return unsupported("module " + std::string(module) + ": not of models whose layers are attention or an MLP alone");
  if (model_.has_latent())
    return unsupported("module " + std::string(module) + ": not of models with latent attention");
  const int64_t hidden = model_.hidden_size, q = model_.q_size_of(layer), kv = model_.kv_size_of(layer);
  const int64_t wide = model_.intermediate_size_of(layer);
  const LayerConfig of_layer = model_.layer(layer);
  const bool is_dense = !of_layer.has_experts || model_.experts.beside_dense, is_gated = model_.activation.gated;
  const auto place = [&](Projection projection, int64_t in, int64_t out, int64_t out_column = 0) {
    return LoraPlace{false, layer, projection, in, out, out_column};
  };
  using enum Projection;
  if (!of_layer.has_state) {
    if (names_.qkv != nullptr) {
      if (is_one_of(name, names_.qkv)) return place(kQkv, hidden, q + 2 * kv);
    } else {
      if (is_one_of(name, names_.q) && model_.attention_gate)
        return unsupported("module " + std::string(module) +
                           ": not of attention whose gates come from q_proj, too; other projections are computed");
      if (is_one_of(name, names_.q)) return place(kQkv, hidden, q);
      if (kv > 0 && is_one_of(name, names_.k)) return place(kQkv, hidden, kv, q);
      if (kv > 0 && !of_layer.values_are_keys && is_one_of(name, names_.v)) return place(kQkv, hidden, kv, q + kv);
    }
    if (is_one_of(name, names_.o)) return place(kO, q, hidden);
  }
  if (is_dense) {
    if (is_gated && names_.gate_up != nullptr) {
      if (is_one_of(name, names_.gate_up)) return place(kGateUp, hidden, 2 * wide);
    } else {
      if (is_gated && is_one_of(name, names_.gate)) return place(kGateUp, hidden, wide);
      if (is_one_of(name, names_.up)) return place(kGateUp, hidden, wide, is_gated ? wide : 0);
    }
    if (is_one_of(name, names_.down)) return place(kDown, wide, hidden);
  }
  return unsupported("module " + std::string(module) + ": only attention's and a dense MLP's projections are computed");
}

// As the forward pass wants the rows of q, k and v (model_weights.cpp does the same to the base weights).
std::vector<int32_t> LoraPlaces::rows_of(const LoraPlace& place) const {
  if (place.is_embedding || place.projection != Projection::kQkv) return {};
  if (names_.qkv == nullptr && !names_.is_interleaved && !model_.layer(place.layer).values_are_keys) return {};
  std::vector<int32_t> rows;
  for (const auto& [head, is_turned] : heads_of(place)) {
    const int32_t d = model_.head_dim_of(place.layer);
    const int32_t turned = names_.is_interleaved && is_turned ? model_.rotary_dim(model_.ropes[0]) : 0;
    for (int32_t i = 0; i < turned; i += 2) rows.push_back(head * d + i);
    for (int32_t i = 1; i < turned; i += 2) rows.push_back(head * d + i);
    for (int32_t i = turned; i < d; ++i) rows.push_back(head * d + i);
  }
  return rows;
}

// The heads of the tensor in the order of the fused projection, and whether rope turns them.
std::vector<std::pair<int32_t, bool>> LoraPlaces::heads_of(const LoraPlace& place) const {
  const int32_t heads = model_.num_attention_heads, kv_heads = model_.num_key_value_heads;
  std::vector<std::pair<int32_t, bool>> out;
  if (names_.qkv == nullptr) {
    const int64_t q = model_.q_size_of(place.layer), count = place.out_features / model_.head_dim_of(place.layer);
    const bool is_both = model_.layer(place.layer).values_are_keys && place.out_column == q;  // keys, then values
    for (int32_t i = 0; i < count; ++i) out.emplace_back(i, place.out_column < q + model_.kv_size_of(place.layer));
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

std::vector<std::string> LoraPlaces::tables_of(const LoraPlace& place) const {
  std::vector<std::string> names;
  if (!place.is_embedding)
    for (const std::string_view name : alternatives(names_.lm_head)) names.push_back(std::string(name) + ".weight");
  if (place.is_embedding || model_.tie_word_embeddings)
    for (const std::string_view prefix : alternatives(names_.prefix))
      names.push_back(std::string(prefix) + names_.embed_tokens + ".weight");
  return names;
}

// Every linear product that an adapter of this model may have, by the first of its names.
std::vector<std::string> LoraPlaces::linear_modules() const {
  std::vector<std::string> modules = {std::string(alternatives(names_.lm_head)[0])};
  const std::string layers = std::string(alternatives(names_.prefix)[0]) + names_.layers + ".";
  for (int32_t layer = 0; layer < model_.num_hidden_layers; ++layer)
    for (const char* names :
         {names_.qkv, names_.qkv ? nullptr : names_.q, names_.qkv ? nullptr : names_.k, names_.qkv ? nullptr : names_.v,
          names_.o, names_.gate_up, names_.gate_up ? nullptr : names_.gate, names_.gate_up ? nullptr : names_.up,
          names_.down})
      if (names != nullptr)
        for (const std::string_view name : alternatives(names))
          modules.push_back(layers + std::to_string(layer) + "." + std::string(name));
  return modules;
}

}  // namespace llmb
