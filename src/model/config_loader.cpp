#include "model/config_loader.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "base/whole_file.h"
#include "model/architecture.h"
#include "model/config_fields.h"
#include "model/gguf_model.h"
#include "model/quantization_config.h"

namespace llmb {

namespace {

constexpr int64_t kMaxVocab = 1 << 24;
constexpr int64_t kMaxHidden = 1 << 18;
constexpr int64_t kMaxLayers = 1024;
constexpr int64_t kMaxParams = int64_t{1} << 52;

Result<DType> parse_dtype(const std::string& name) {
  if (name == "float32") return DType::kF32;
  if (name == "float16") return DType::kF16;
  if (name == "bfloat16") return DType::kBF16;
  return unsupported("dtype \"" + name + "\" is not supported; supported: float32, float16, bfloat16");
}

constexpr std::pair<const char*, Activation> kActivations[] = {
    {"silu", Activation::kSilu},         {"swish", Activation::kSilu},
    {"gelu", Activation::kGelu},         {"gelu_python", Activation::kGelu},
    {"gelu_new", Activation::kGeluTanh}, {"gelu_fast", Activation::kGeluTanh},
    {"relu", Activation::kRelu},         {"gelu_pytorch_tanh", Activation::kGeluTanh},
    {"relu2", Activation::kRelu2}};

std::optional<Activation> find_activation(const std::string& name) {
  for (const auto& [known, kind] : kActivations)
    if (name == known) return kind;
  return {};
}

// An integer field whose names are listed in `names`, "a|b"; nullptr: no such field.
int32_t read_size(ConfigFields& f, const char* names, std::optional<int64_t> fallback, int64_t max) {
  if (names == nullptr) return static_cast<int32_t>(*fallback);
  return static_cast<int32_t>(f.integer(f.pick(names).c_str(), fallback, 1, max));
}

void read_heads(ConfigFields& f, const Architecture& a, ModelConfig* c) {
  // null is not the same as absent: it means one KV head for each head.
  const char* kv_name = a.names.num_key_value_heads;
  const bool as_heads = a.defaults.num_key_value_heads == 0 || kv_name == nullptr || f.is_null(kv_name);
  c->num_key_value_heads =
      read_size(f, kv_name, as_heads ? c->num_attention_heads : a.defaults.num_key_value_heads, kMaxHeads);
  if (!f.status().ok()) return;
  if (c->num_attention_heads % c->num_key_value_heads != 0)
    f.fail(data_loss("\"num_attention_heads\" " + std::to_string(c->num_attention_heads) +
                     " is not a multiple of \"num_key_value_heads\" " + std::to_string(c->num_key_value_heads)));
  const bool has_head_dim = a.defaults.head_dim >= 0 && f.has("head_dim");
  const bool is_derived = !has_head_dim && (a.defaults.head_dim <= 0 || f.is_null("head_dim"));
  if (is_derived && c->hidden_size % c->num_attention_heads != 0)
    f.fail(data_loss("\"hidden_size\" " + std::to_string(c->hidden_size) +
                     " is not a multiple of \"num_attention_heads\" " + std::to_string(c->num_attention_heads)));
  c->head_dim = is_derived ? c->hidden_size / c->num_attention_heads : a.defaults.head_dim;
  if (has_head_dim) c->head_dim = static_cast<int32_t>(f.integer("head_dim", {}, 1, kMaxHeadDim));
  if (f.status().ok() && (c->head_dim < 2 || c->head_dim % 2 != 0 || c->head_dim > kMaxHeadDim))
    f.fail(data_loss("head_dim " + std::to_string(c->head_dim) + " is not an even number from 2 to " +
                     std::to_string(kMaxHeadDim)));
}

void read_sizes(ConfigFields& f, const Architecture& a, ModelConfig* c) {
  const auto given = [](int32_t value) { return value > 0 ? std::optional<int64_t>(value) : std::nullopt; };
  c->vocab_size = read_size(f, "vocab_size", given(a.defaults.vocab_size), kMaxVocab);
  c->hidden_size = read_size(f, a.names.hidden_size, {}, kMaxHidden);
  std::optional<int64_t> intermediate;
  if (a.defaults.intermediate_factor > 0) intermediate = int64_t{a.defaults.intermediate_factor} * c->hidden_size;
  c->intermediate_size = read_size(f, a.names.intermediate_size, intermediate, kMaxIntermediate);
  c->num_hidden_layers = read_size(f, a.names.num_hidden_layers, given(a.defaults.num_hidden_layers), kMaxLayers);
  c->num_attention_heads = read_size(f, a.names.num_attention_heads, given(a.defaults.num_attention_heads), kMaxHeads);
  c->max_position_embeddings =
      read_size(f, a.names.max_position_embeddings, a.defaults.max_position_embeddings, kMaxPositions);
  c->norm_eps = a.defaults.norm_eps;
  if (a.names.norm_eps != nullptr) c->norm_eps = f.number(f.pick(a.names.norm_eps).c_str(), c->norm_eps, 0, 1);
  if (f.status().ok()) read_heads(f, a, c);
}

void read_activation(ConfigFields& f, const Architecture& a, ModelConfig* c) {
  const char* field = a.names.activation;
  const std::string name = field == nullptr ? a.defaults.activation : f.text(field, a.defaults.activation);
  const std::optional<Activation> kind = find_activation(name);
  if (kind) {
    c->activation = {*kind, a.defaults.is_gated};
    return;
  }
  std::string names;
  for (const auto& [known, unused] : kActivations) names += (names.empty() ? "" : ", ") + std::string(known);
  f.fail(unsupported("\"" + std::string(field) + "\" \"" + name.substr(0, 60) +
                     "\" is not supported; supported: " + names));
}

// The text model inside a model of more, with what the file says of both.
nlohmann::json text_part(const nlohmann::json& object) {
  const auto type = object.find("model_type"), text = object.find("text_config");
  const auto wrappers = wrappers_of_text_models();
  const bool is_wrapper = type != object.end() && std::find(wrappers.begin(), wrappers.end(), *type) != wrappers.end();
  if (!is_wrapper || text == object.end() || !text->is_object()) return object;
  nlohmann::json part = *text;
  for (const char* name :
       {"dtype", "torch_dtype", "eos_token_id", "bos_token_id", "tie_word_embeddings", "quantization_config"})
    if (const auto outer = object.find(name); outer != object.end() && !part.contains(name)) part[name] = *outer;
  return part;
}

// transformers ties what the outer model says is tied, whatever its text part says, but for a checkpoint with a head.
void read_outer_tie(const nlohmann::json& object, ModelConfig* c) {
  const auto outer = object.find("tie_word_embeddings");
  if (outer == object.end() || *outer != true || c->tie_word_embeddings) return;
  c->tie_word_embeddings = c->tied_unless_stored = true;
}

const Architecture* read_model_type(ConfigFields& f, ModelConfig* c) {
  c->model_type = f.text("model_type", "");
  const Architecture* found = find_architecture(c->model_type);
  if (found != nullptr) return found;
  if (c->model_type.empty()) return f.fail(data_loss("\"model_type\" is missing")), nullptr;
  if (f.has("index_topk") || c->model_type == "deepseek_v32" || c->model_type == "glm_moe_dsa")
    return f.fail(unsupported("model_type \"" + c->model_type.substr(0, 60) +
                              "\" attends to what an indexer picks, which is not supported")),
           nullptr;
  std::set<std::string_view> all(wrappers_of_text_models().begin(), wrappers_of_text_models().end());
  for (const Architecture& a : architectures()) all.insert(a.model_type);
  std::string names;
  for (const std::string_view name : all) names += (names.empty() ? "" : ", ") + std::string(name);
  f.fail(unsupported("model_type \"" + c->model_type.substr(0, 60) + "\" is not supported; supported: " + names));
  return nullptr;
}

void read_model(ConfigFields& f, ModelConfig* c) {
  const Architecture* a = read_model_type(f, c);
  if (a == nullptr) return;
  read_quantization(f, c);
  read_activation(f, *a, c);
  c->tie_word_embeddings = f.boolean("tie_word_embeddings", a->defaults.tie_word_embeddings);
  const Result<DType> dtype = parse_dtype(f.text("dtype", f.text("torch_dtype", "float32")));
  if (dtype.ok()) c->dtype = *dtype;
  f.fail(dtype.status());
  if (f.status().ok()) read_sizes(f, *a, c);
  if (f.status().ok()) a->read(f, c);
  // Each size may be in range and their product still be nonsense, whose bytes no integer holds.
  if (f.status().ok() && c->num_stored_matmul_params() > kMaxParams)
    f.fail(data_loss("the sizes make a model of " + std::to_string(c->num_stored_matmul_params() / 1'000'000'000) +
                     " billion parameters"));
  c->eos_token_ids = f.token_ids("eos_token_id");
  c->bos_token_ids = f.token_ids("bos_token_id");
}

template <typename T>
Result<T> load_json(const std::string& path, Result<T> (*parse)(std::string_view)) {
  LLMB_ASSIGN_OR_RETURN(const std::string text, read_whole_file(path, kMaxTextFileBytes));
  Result<T> result = parse(text);
  if (!result.ok()) return result.status().with_context(path);
  return result;
}

}  // namespace

Result<ModelConfig> parse_model_config(std::string_view json) {
  LLMB_ASSIGN_OR_RETURN(const nlohmann::json object, parse_config_object(json));
  const nlohmann::json text = text_part(object);
  ConfigFields fields(text);
  ModelConfig config;
  read_model(fields, &config);
  LLMB_RETURN_IF_ERROR(fields.status());
  read_outer_tie(object, &config);
  return config;
}

Result<ModelConfig> load_model_config(const std::string& model_dir) {
  if (is_gguf_path(model_dir)) return load_gguf_config(model_dir);
  Result<ModelConfig> config = load_json(model_dir + "/config.json", parse_model_config);
  if (!config.ok() && config.status().code() == StatusCode::kNotFound)
    return not_found(model_dir +
                     ": has no config.json; a model is a directory in Hugging Face layout, a GGUF file, or a name in "
                     "the Hugging Face cache");
  return config;
}

Result<GenerationConfig> parse_generation_config(std::string_view json) {
  LLMB_ASSIGN_OR_RETURN(const nlohmann::json object, parse_config_object(json));
  ConfigFields f(object);
  GenerationConfig c;
  c.eos_token_ids = f.token_ids("eos_token_id");
  if (f.has("do_sample")) c.do_sample = f.boolean("do_sample", false);
  if (f.has("temperature")) c.temperature = static_cast<float>(f.number("temperature", 1, 0, 100));
  if (f.has("top_p")) c.top_p = static_cast<float>(f.number("top_p", 1, std::numeric_limits<float>::min(), 1));
  if (f.has("top_k")) c.top_k = static_cast<int32_t>(f.integer("top_k", 0, 0, INT32_MAX));
  if (f.has("min_p")) c.min_p = static_cast<float>(f.number("min_p", 0, 0, 1));
  if (f.has("repetition_penalty"))
    c.repetition_penalty = static_cast<float>(f.number("repetition_penalty", 1, 1e-6, 1e6));
  if (f.has("max_new_tokens")) c.max_new_tokens = static_cast<int32_t>(f.integer("max_new_tokens", 1, 1, INT32_MAX));
  LLMB_RETURN_IF_ERROR(f.status());
  return c;
}

Result<GenerationConfig> load_generation_config(const std::string& model_dir) {
  if (is_gguf_path(model_dir)) return load_gguf_generation_config(model_dir);
  Result<GenerationConfig> config = load_json(model_dir + "/generation_config.json", parse_generation_config);
  if (!config.ok() && config.status().code() == StatusCode::kNotFound) return GenerationConfig{};
  return config;
}

std::vector<TokenId> merge_eos_token_ids(const ModelConfig& model, const GenerationConfig& generation) {
  std::vector<TokenId> ids = generation.eos_token_ids.empty() ? model.eos_token_ids : generation.eos_token_ids;
  std::erase_if(ids, [&](TokenId id) { return id >= model.vocab_size; });
  return ids;
}

}  // namespace llmb
