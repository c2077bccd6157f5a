#include "model/pooling.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "base/mapped_file.h"
#include "base/whole_file.h"
#include "model/config_fields.h"
#include "model/gguf_model.h"

namespace llmb {

namespace {

constexpr size_t kMaxBytes = 1 << 20;
constexpr size_t kMaxModules = 16;
constexpr int64_t kMaxFeatures = 1 << 18;
constexpr const char* kLeadsOut = "\" leads out of the model's folder";

// As the files name them: an entry of "pooling_mode", or a field that is true.
constexpr std::pair<std::string_view, PoolingKind> kKinds[] = {
    {"lasttoken", PoolingKind::kLast},         {"pooling_mode_lasttoken", PoolingKind::kLast},
    {"cls", PoolingKind::kFirst},              {"pooling_mode_cls_token", PoolingKind::kFirst},
    {"mean", PoolingKind::kMean},              {"pooling_mode_mean_tokens", PoolingKind::kMean},
};

Result<nlohmann::json> read_object(const std::string& path) {
  LLMB_ASSIGN_OR_RETURN(const std::string text, read_whole_file(path, kMaxBytes));
  auto object = parse_config_object(text);
  if (!object.ok()) return object.status().with_context(path);
  return object;
}

Result<PoolingKind> read_kind(const std::string& path, bool* includes_prompt) {
  LLMB_ASSIGN_OR_RETURN(const nlohmann::json object, read_object(path));
  std::optional<PoolingKind> kind;
  for (const auto& [name, value] : object.items()) {
    if (!name.starts_with("pooling_mode") || value == false) continue;
    const nlohmann::json& only = value.is_array() && value.size() == 1 ? value[0] : value;
    const std::string mode = only.is_string() ? only.get<std::string>() : name;
    std::optional<PoolingKind> found;
    for (const auto& [known, known_kind] : kKinds)
      if (mode == known) found = known_kind;
    if (!found)
      return unsupported(path + ": \"" + mode.substr(0, 60) +
                         "\" is not supported; supported: cls, mean, lasttoken (pooling_mode)");
    if (kind && *kind != *found) return unsupported(path + ": names more than one \"pooling_mode\"");
    kind = found;
  }
  if (!kind) return unsupported(path + ": names no \"pooling_mode\"");
  *includes_prompt = object.value("include_prompt", nlohmann::json(true)) != false;
  return *kind;
}

// A class of torch.nn, which is made without arguments; of "torch.nn.modules.activation.Tanh" the last part counts.
void read_function(ConfigFields& f, PoolingLayer* layer) {
  static constexpr std::pair<std::string_view, std::optional<Activation>> kFunctions[] = {
      {"Identity", std::nullopt},       {"Tanh", Activation::kTanh}, {"ReLU", Activation::kRelu},
      {"GELU", Activation::kGelu}, {"SiLU", Activation::kSilu}};
  const std::string path = f.text("activation_function", "torch.nn.modules.activation.Tanh");
  const std::string_view name = std::string_view(path).substr(path.rfind('.') + 1);
  for (const auto& [known, function] : kFunctions)
    if (name == known) {
      layer->activation = function;
      return;
    }
  f.fail(unsupported("\"activation_function\" \"" + path.substr(0, 60) +
                     "\" is not supported; supported: torch.nn's Identity, Tanh, ReLU, GELU and SiLU"));
}

Result<PoolingLayer> read_dense(const std::string& dir, int32_t in_features) {
  const std::string path = dir + "/config.json";
  LLMB_ASSIGN_OR_RETURN(const nlohmann::json object, read_object(path));
  ConfigFields f(object);
  PoolingLayer layer;
  layer.file = dir + "/model.safetensors";
  layer.in_features = static_cast<int32_t>(f.integer("in_features", {}, 1, kMaxFeatures));
  layer.out_features = static_cast<int32_t>(f.integer("out_features", {}, 1, kMaxFeatures));
  layer.has_bias = f.boolean("bias", true);
  read_function(f, &layer);
  if (f.boolean("use_residual", false)) f.fail(unsupported("\"use_residual\" true is not supported"));
  if (f.status().ok() && layer.in_features != in_features)
    f.fail(data_loss("\"in_features\" is " + std::to_string(layer.in_features) + ", what comes before it gives " +
                     std::to_string(in_features)));
  if (f.status().ok() && !file_exists(layer.file) && file_exists(dir + "/pytorch_model.bin"))
    f.fail(unsupported("the module's pytorch_model.bin is pickled; convert it to model.safetensors"));
  LLMB_RETURN_IF_ERROR(f.status().with_context(path));
  return layer;
}

std::string text_of(const nlohmann::json& module, const char* name) {
  const auto at = module.find(name);
  return at != module.end() && at->is_string() ? at->get<std::string>() : std::string();
}

// Whether it names a folder inside the model's.
bool is_inside(const std::string& path) {
  if (path.starts_with("/") || path.find(char{0}) != path.npos) return false;
  for (size_t begin = 0; begin <= path.size();) {
    const size_t end = std::min(path.find('/', begin), path.size());
    if (path.substr(begin, end - begin) == "..") return false;
    begin = end + 1;
  }
  return true;
}

Status add_module(const std::string& model_dir, const nlohmann::json& module, const ModelConfig& config, bool* pools,
                  Pooling* pooling) {
  const std::string type = text_of(module, "type"), path = text_of(module, "path"), dir = model_dir + "/" + path;
  if (!is_inside(path)) return data_loss("\"path\" \"" + path.substr(0, 80) + kLeadsOut);
  if (type.ends_with(".Transformer")) return {};
  if (type.ends_with(".Pooling") && !*pools) {
    LLMB_ASSIGN_OR_RETURN(pooling->kind, read_kind(dir + "/config.json", &pooling->includes_prompt));
    *pools = true;
    return {};
  }
  const bool is_behind = *pools && !pooling->normalizes;
  if (type.ends_with(".Normalize") && *pools) {
    pooling->normalizes = true;
    return {};
  }
  if (!type.ends_with(".Dense") || !is_behind)
    return unsupported("module \"" + type.substr(0, 80) + "\" is not supported" +
                       (type.ends_with(".Dense") ? " in this place" : ""));
  const int32_t width = pooling->layers.empty() ? config.hidden_size : pooling->layers.back().out_features;
  LLMB_ASSIGN_OR_RETURN(pooling->layers.emplace_back(), read_dense(dir, width));
  return {};
}

}  // namespace

Result<TextPrompts> load_text_prompts(const std::string& model_dir) {
  TextPrompts out;
  if (is_gguf_path(model_dir)) return out;
  const std::string path = model_dir + "/config_sentence_transformers.json";
  const auto object = read_object(path);
  if (!object.ok() && object.status().code() == StatusCode::kNotFound) return out;
  LLMB_RETURN_IF_ERROR(object.status());
  ConfigFields f(*object);
  out.default_name = f.text("default_prompt_name", "");
  const nlohmann::json none = nlohmann::json::object();
  const nlohmann::json& prompts = f.has("prompts") ? *f.find("prompts") : none;
  if (!prompts.is_object()) return data_loss(path + ": \"prompts\" is not an object");
  for (const auto& [name, text] : prompts.items()) {
    if (text.is_null()) continue;
    if (!text.is_string()) f.fail(data_loss("\"prompts\" holds " + brief(text) + ", expected a string"));
    else if (!text.get_ref<const std::string&>().empty()) out.texts.emplace(name, text.get<std::string>());
  }
  if (!out.default_name.empty() && !prompts.contains(out.default_name))
    f.fail(data_loss("\"default_prompt_name\" \"" + out.default_name.substr(0, 60) + "\" is none of the \"prompts\""));
  LLMB_RETURN_IF_ERROR(f.status().with_context(path));
  return out;
}

Result<Pooling> load_pooling(const std::string& model_dir, const ModelConfig& config,
                             std::optional<PoolingKind> given) {
  Pooling pooling;
  if (given) {
    pooling.kind = *given;
    return pooling;
  }
  if (is_gguf_path(model_dir)) return load_gguf_pooling(model_dir, config);
  const std::string path = model_dir + "/modules.json";
  const auto text = read_whole_file(path, kMaxBytes);
  if (!text.ok() && text.status().code() == StatusCode::kNotFound)
    return unsupported(model_dir + ": has no modules.json that says how its states become one vector; " +
                       (config.is_encoder ? "to take their mean, or the first token's, give `pooling` mean or cls"
                                          : "to take the last token's, give `pooling` last"));
  LLMB_RETURN_IF_ERROR(text.status());
  const nlohmann::json modules = nlohmann::json::parse(*text, nullptr, /*allow_exceptions=*/false);
  if (!modules.is_array()) return data_loss(path + ": is not a JSON array");
  if (modules.size() > kMaxModules) return unsupported(path + ": has more than 16 modules");
  pooling.normalizes = false;
  bool pools = false;
  for (const nlohmann::json& module : modules) {
    if (!module.is_object()) return data_loss(path + ": holds " + brief(module) + ", expected an object");
    const Status status = add_module(model_dir, module, config, &pools, &pooling);
    if (!status.ok()) return status.with_context(path);
  }
  if (!pools) return unsupported(path + ": has no module that pools");
  if (!pooling.includes_prompt && pooling.kind == PoolingKind::kMean) {
    LLMB_ASSIGN_OR_RETURN(const TextPrompts prompts, load_text_prompts(model_dir));
    if (!prompts.default_name.empty() && prompts.texts.contains(prompts.default_name))
      return unsupported(path + ": a mean that leaves out the prompt (\"include_prompt\": false) is not supported");
  }
  return pooling;
}

Result<std::optional<JudgeTokens>> load_judge_tokens(const std::string& model_dir, const ModelConfig& config) {
  const std::string modules_path = model_dir + "/modules.json";
  const auto text = read_whole_file(modules_path, kMaxBytes);
  if (!text.ok()) return std::optional<JudgeTokens>();
  const nlohmann::json modules = nlohmann::json::parse(*text, nullptr, /*allow_exceptions=*/false);
  if (!modules.is_array() || modules.size() > kMaxModules) return std::optional<JudgeTokens>();
  for (const nlohmann::json& module : modules) {
    if (!module.is_object() || !text_of(module, "type").ends_with(".LogitScore")) continue;
    const std::string folder = text_of(module, "path");
    if (!is_inside(folder)) return data_loss(modules_path + ": \"path\" \"" + folder.substr(0, 80) + kLeadsOut);
    const std::string path = model_dir + "/" + folder + "/config.json";
    LLMB_ASSIGN_OR_RETURN(const nlohmann::json object, read_object(path));
    ConfigFields f(object);
    JudgeTokens tokens;
    tokens.yes = static_cast<int32_t>(f.integer("true_token_id", {}, 0, config.vocab_size - 1));
    if (f.has("false_token_id"))
      tokens.no = static_cast<int32_t>(f.integer("false_token_id", {}, 0, config.vocab_size - 1));
    LLMB_RETURN_IF_ERROR(f.status().with_context(path));
    return std::optional(tokens);
  }
  return std::optional<JudgeTokens>();
}

std::vector<std::string> pooling_layer_folders(const std::string& model_dir) {
  const auto text = read_whole_file(model_dir + "/modules.json", kMaxBytes);
  if (!text.ok()) return {};
  const nlohmann::json modules = nlohmann::json::parse(*text, nullptr, /*allow_exceptions=*/false);
  if (!modules.is_array() || modules.size() > kMaxModules) return {};
  std::vector<std::string> folders;
  for (const nlohmann::json& module : modules) {
    const std::string type = module.is_object() ? text_of(module, "type") : std::string();
    if (!type.ends_with(".Dense") && !type.ends_with(".LogitScore")) continue;
    const std::string path = text_of(module, "path");
    if (!path.empty() && is_inside(path)) folders.push_back(path);
  }
  return folders;
}

Result<std::optional<int32_t>> load_max_seq_length(const std::string& model_dir) {
  if (is_gguf_path(model_dir)) return std::optional<int32_t>();
  const std::string path = model_dir + "/sentence_bert_config.json";
  const auto object = read_object(path);
  if (!object.ok() && object.status().code() == StatusCode::kNotFound) return std::optional<int32_t>();
  LLMB_RETURN_IF_ERROR(object.status());
  ConfigFields f(*object);
  std::optional<int32_t> length;
  if (f.has("max_seq_length")) length = static_cast<int32_t>(f.integer("max_seq_length", {}, 1, INT32_MAX));
  if (f.boolean("do_lower_case", false))
    f.fail(unsupported("\"do_lower_case\" true is not supported: the tokenizer's files must say so"));
  LLMB_RETURN_IF_ERROR(f.status().with_context(path));
  return length;
}

}  // namespace llmb
