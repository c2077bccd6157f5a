#include "model/lora_config.h"

#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/whole_file.h"
#include "model/config_fields.h"
#include "model/lora_adapter.h"

namespace llmb {

Result<LoraConfig> LoraConfig::read(const std::string& dir) {
  const std::string path = dir + "/adapter_config.json";
  LLMB_ASSIGN_OR_RETURN(const std::string text, read_whole_file(path, kMaxTextFileBytes));
  const auto json = parse_config_object(text);
  if (!json.ok()) return json.status().with_context(path);
  LoraConfig config;
  LLMB_RETURN_IF_ERROR(config.parse(*json).with_context(path));
  return config;
}

Status LoraConfig::parse(const nlohmann::json& json) {
  ConfigFields fields(json);
  const std::string type = fields.text("peft_type", "LORA");
  rank_ = fields.integer("r", 8, 1, kMaxLoraRank);
  alpha_ = fields.number("lora_alpha", 8, 0, 1e6);
  is_rank_stabilised_ = fields.boolean("use_rslora", false);
  LLMB_RETURN_IF_ERROR(fields.status());
  if (type != "LORA") return unsupported("peft_type " + type + ": only LORA is computed");
  LLMB_RETURN_IF_ERROR(refuse_others(json));
  LLMB_RETURN_IF_ERROR(read_patterns(json, "rank_pattern", kMaxLoraRank, &ranks_));
  return read_patterns(json, "alpha_pattern", 1e6, &alphas_);
}

// Variants of LoRA that compute something else, by the fields that ask for them.
Status LoraConfig::refuse_others(const nlohmann::json& json) {
  for (const char* name : {"use_dora", "use_qalora", "lora_bias", "layer_replication", "modules_to_save",
                           "trainable_token_indices", "alora_invocation_tokens", "use_bdlora",
                           "arrow_config", "kasa_config", "monteclora_config", "ensure_weight_tying"}) {
    const auto found = json.find(name);
    if (found == json.end() || found->is_null() || *found == false || (found->is_structured() && found->empty()))
      continue;
    return unsupported(std::string(name) + " is " + brief(*found) + ": such adapters are not computed");
  }
  if (const auto bias = json.find("bias"); bias != json.end() && !bias->is_null() && *bias != "none")
    return unsupported("bias is " + brief(*bias) + ": only \"none\" is computed");
  // These change the base model's weights when an adapter is made, and the adapter goes with those.
  if (const auto init = json.find("init_lora_weights"); init != json.end() && init->is_string()) {
    const std::string value = init->get<std::string>();
    for (const char* name : {"pissa", "olora", "corda", "loftq", "lora_ga"})
      if (value.starts_with(name))
        return unsupported("init_lora_weights is \"" + value +
                           "\", which changes the base model: convert the adapter to plain LoRA with PEFT");
  }
  return {};
}

Status LoraConfig::read_patterns(const nlohmann::json& json, const char* field, double max, std::vector<Pattern>* out) {
  const auto found = json.find(field);
  if (found == json.end() || found->is_null()) return {};
  if (!found->is_object())
    return invalid_argument(std::string(field) + " is " + brief(*found) + ", expected an object");
  for (const auto& [key, value] : found->items()) {
    // PEFT takes names as regular expressions; a dot in a module's path matches itself as well.
    const bool is_end = key.starts_with(R"(.*\.)");  // as PEFT itself writes it of experts' parameters
    const std::string name = key.starts_with('^') ? key.substr(1) : is_end ? key.substr(4) : key;
    if (name.empty() || name.find_first_of("*+?[](){}|\\$^") != name.npos)
      return unsupported(std::string(field) + ": \"" + key + "\" is a regular expression: write out the modules' names");
    if (!value.is_number() || !(value.get<double>() >= 0 && value.get<double>() <= max))
      return invalid_argument(std::string(field) + ": \"" + key + "\" is " + brief(value) + ", expected 0 to " +
                              std::to_string(static_cast<int64_t>(max)));
    out->push_back({is_end ? name : key, value.get<double>()});
  }
  return {};
}

// As PEFT: "^path" is the beginning of the module's path; any other name its end, whole parts of it.
const LoraConfig::Pattern* LoraConfig::find_pattern(const std::vector<Pattern>& patterns, std::string_view module) {
  for (const Pattern& pattern : patterns) {
    const std::string_view name = pattern.name;
    if (name[0] == '^' && module.starts_with(name.substr(1))) return &pattern;
    if (!module.ends_with(name)) continue;
    if (module.size() == name.size() || module[module.size() - name.size() - 1] == '.') return &pattern;
  }
  return nullptr;
}

Result<int64_t> LoraConfig::rank_of(std::string_view module) const {
  const Pattern* const own = find_pattern(ranks_, module);
  if (own == nullptr) return rank_;
  if (own->value < 1) return invalid_argument("rank_pattern: \"" + own->name + "\" is 0, expected 1 or more");
  return static_cast<int64_t>(own->value);
}

double LoraConfig::alpha_of(std::string_view module) const {
  const Pattern* const own = find_pattern(alphas_, module);
  return own != nullptr ? own->value : alpha_;
}

float LoraConfig::scale_of(std::string_view module, int64_t rank) const {
  const auto of_rank = static_cast<double>(rank);
  return static_cast<float>(alpha_of(module) / (is_rank_stabilised_ ? std::sqrt(of_rank) : of_rank));
}

}  // namespace llmb
