#include <bit>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string>

#include "model/architecture.h"

namespace llmb {

std::vector<LayerConfig>& layers_of(ModelConfig* config) {
  config->layers.resize(config->num_hidden_layers);
  return config->layers;
}

std::vector<bool> read_sliding_layers(ConfigFields& f, const ModelConfig& config, bool (*slides)(int32_t index)) {
  std::vector<bool> sliding(config.num_hidden_layers);
  const nlohmann::json* types = f.find("layer_types");
  if (types == nullptr) {
    for (int32_t i = 0; i < config.num_hidden_layers; ++i) sliding[i] = slides(i);
    return sliding;
  }
  if (!types->is_array() || types->size() != sliding.size()) {
    f.fail(data_loss("\"layer_types\" is not a list of " + std::to_string(sliding.size()) + " layers' types"));
    return sliding;
  }
  for (size_t i = 0; i < sliding.size(); ++i) {
    const nlohmann::json& type = (*types)[i];
    sliding[i] = type == "sliding_attention";
    if (!sliding[i] && type != "full_attention")
      f.fail(unsupported("\"layer_types\" holds " + brief(type) +
                         "; supported: \"full_attention\", \"sliding_attention\""));
  }
  return sliding;
}

void set_windows(const std::vector<bool>& sliding, int64_t window, ModelConfig* config) {
  if (window == 0 || window >= config->max_position_embeddings) return;
  std::vector<LayerConfig>& layers = layers_of(config);
  for (size_t i = 0; i < layers.size(); ++i)
    if (sliding[i]) layers[i].window = static_cast<int32_t>(window);
}

void set_reach(const std::vector<bool>& sliding, int64_t reach, ModelConfig* config) {
  std::vector<LayerConfig>& layers = layers_of(config);
  for (size_t i = 0; i < layers.size(); ++i) {
    layers[i].rope = sliding[i] ? 1 : 0;
    if (sliding[i] && reach < config->max_position_embeddings) layers[i].reach = static_cast<int32_t>(reach);
  }
}

void read_window_of_all_layers(ConfigFields& f, int64_t fallback, ModelConfig* config) {
  const bool off = f.is_null("sliding_window") || (fallback == 0 && !f.has("sliding_window"));
  if (off) return;
  const int64_t window = f.integer("sliding_window", fallback, 1, INT64_MAX);
  set_windows(std::vector<bool>(config->num_hidden_layers, true), window, config);
}

void read_ropes_by_type(ConfigFields& f, const RopeDefaults& full, const RopeDefaults& local, ModelConfig* config) {
  const nlohmann::json* by_type = f.find("rope_parameters");
  const bool is_nested = by_type != nullptr && by_type->is_object() &&
                         (by_type->contains("full_attention") || by_type->contains("sliding_attention"));
  if (!is_nested) {
    const double theta = f.number(local.theta_name, local.theta, 1, 1e12);
    config->ropes = {read_rope(f, full, config), {.theta = theta}};
    return;
  }
  config->ropes.clear();
  for (const auto& [type, defaults] : {std::pair("full_attention", full), std::pair("sliding_attention", local)}) {
    const auto it = by_type->find(type);
    const nlohmann::json object = it == by_type->end() || it->is_null() ? nlohmann::json::object() : *it;
    if (!object.is_object())
      return f.fail(data_loss(std::string("rope_parameters: \"") + type + "\" is not an object"));
    config->ropes.push_back(read_rope_object(f, object, type, defaults, config));
  }
}

void refuse_if_true(ConfigFields& f, const char* name) {
  if (f.boolean(name, false)) f.fail(unsupported(std::string("\"") + name + "\" true is not supported"));
}

std::vector<float> bloom_alibi_slopes(int32_t num_heads, double scale) {
  const auto whole = static_cast<int32_t>(std::bit_floor(static_cast<uint32_t>(num_heads)));
  std::vector<float> slopes;
  for (int32_t i = 1; i <= num_heads; ++i) {
    // Beyond the power of two, every other slope of what twice as many heads would have.
    const double power = i <= whole ? -8.0 * i / whole : -4.0 * (2 * (i - whole) - 1) / whole;
    slopes.push_back(static_cast<float>(scale * std::exp2(power)));
  }
  return slopes;
}

std::vector<float> mpt_alibi_slopes(int32_t num_heads, double bias_max) {
  const auto whole = static_cast<int32_t>(std::bit_ceil(static_cast<uint32_t>(num_heads)));
  std::vector<float> slopes;
  for (int32_t i = 0; i < num_heads; ++i) {
    // With a power of two: 1, 2, 3, …; else the even ones first, then the odd ones.
    const int32_t step = whole == num_heads ? i + 1 : i < whole / 2 ? 2 * i + 2 : 2 * (i - whole / 2) + 1;
    slopes.push_back(static_cast<float>(std::exp2(-bias_max * step / whole)));
  }
  return slopes;
}

}  // namespace llmb
