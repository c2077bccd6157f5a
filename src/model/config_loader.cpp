#include "model/config_loader.h"

#include <limits>

#include "base/mapped_file.h"
#include "model/config_fields.h"
#include "model/quantization_config.h"

namespace llmb {

namespace {

constexpr int64_t kMaxVocab = 1 << 24;
constexpr int64_t kMaxHidden = 1 << 18;
constexpr int64_t kMaxIntermediate = 1 << 20;
constexpr int64_t kMaxLayers = 1024;
constexpr int64_t kMaxHeads = 4096;
constexpr int64_t kMaxHeadDim = 1024;
constexpr int64_t kMaxPositions = 1 << 27;
constexpr double kMaxNumber = 1e12;

Result<DType> parse_dtype(const std::string& name) {
  if (name == "float32") return DType::kF32;
  if (name == "float16") return DType::kF16;
  if (name == "bfloat16") return DType::kBF16;
  return unsupported("dtype \"" + name + "\" is not supported; supported: float32, float16, bfloat16");
}

void read_sizes(ConfigFields& f, ModelConfig* c) {
  c->vocab_size = f.integer("vocab_size", {}, 1, kMaxVocab);
  c->hidden_size = f.integer("hidden_size", {}, 1, kMaxHidden);
  c->intermediate_size = f.integer("intermediate_size", {}, 1, kMaxIntermediate);
  c->num_hidden_layers = f.integer("num_hidden_layers", {}, 1, kMaxLayers);
  c->num_attention_heads = f.integer("num_attention_heads", {}, 1, kMaxHeads);
  c->num_key_value_heads = f.integer("num_key_value_heads", c->num_attention_heads, 1, kMaxHeads);
  c->max_position_embeddings = f.integer("max_position_embeddings", {}, 1, kMaxPositions);
  c->rms_norm_eps = f.number("rms_norm_eps", 1e-6, 0, 1);
  if (!f.status().ok()) return;

  if (c->num_attention_heads % c->num_key_value_heads != 0)
    f.fail(data_loss("\"num_attention_heads\" " + std::to_string(c->num_attention_heads) +
                     " is not a multiple of \"num_key_value_heads\" " + std::to_string(c->num_key_value_heads)));
  if (!f.has("head_dim") && c->hidden_size % c->num_attention_heads != 0)
    f.fail(data_loss("\"hidden_size\" " + std::to_string(c->hidden_size) +
                     " is not a multiple of \"num_attention_heads\" " + std::to_string(c->num_attention_heads)));
  const int64_t default_head_dim = c->hidden_size / c->num_attention_heads;
  c->head_dim = f.integer("head_dim", default_head_dim, 1, kMaxHeadDim);
  if (f.status().ok() && (c->head_dim < 2 || c->head_dim % 2 != 0 || c->head_dim > kMaxHeadDim))
    f.fail(data_loss("head_dim " + std::to_string(c->head_dim) + " is not an even number from 2 to " +
                     std::to_string(kMaxHeadDim)));
}

// The fields of rope_scaling or, in newer files, of rope_parameters.
void read_rope_scaling(ConfigFields& f, RopeScaling* scaling) {
  const std::string kind = f.text("rope_type", f.text("type", "default"));
  if (kind == "default") return;
  if (kind != "linear" && kind != "llama3")
    return f.fail(unsupported("rope scaling \"" + kind + "\" is not supported; supported: linear, llama3"));
  if (!f.has("factor")) return f.fail(data_loss("rope scaling \"" + kind + "\" needs \"factor\""));
  scaling->factor = f.number("factor", 1, 1e-3, kMaxNumber);
  scaling->kind = RopeScalingKind::kLinear;
  if (kind == "linear") return;
  scaling->kind = RopeScalingKind::kLlama3;
  scaling->low_freq_factor = f.number("low_freq_factor", 1, 1e-6, kMaxNumber);
  scaling->high_freq_factor = f.number("high_freq_factor", 4, 1e-6, kMaxNumber);
  scaling->original_max_position_embeddings = f.integer("original_max_position_embeddings", {}, 1, kMaxPositions);
  if (!(scaling->high_freq_factor > scaling->low_freq_factor))
    f.fail(data_loss("\"high_freq_factor\" must be greater than \"low_freq_factor\""));
}

void read_rope(ConfigFields& f, ModelConfig* c) {
  c->rope_theta = f.number("rope_theta", 10000, 1, kMaxNumber);
  if (f.number("partial_rotary_factor", 1, 0, 1) != 1)
    f.fail(unsupported("\"partial_rotary_factor\" other than 1 is not supported"));
  for (const char* name : {"rope_scaling", "rope_parameters"}) {
    const nlohmann::json* object = f.find(name);
    if (object == nullptr) continue;
    if (!object->is_object()) return f.fail(data_loss(std::string("\"") + name + "\" is not an object"));
    for (const auto& [key, value] : object->items())
      if (value.is_object())
        return f.fail(unsupported("rope parameters by layer type (\"" + key + "\") are not supported"));
    ConfigFields rope(*object);
    c->rope_theta = rope.number("rope_theta", c->rope_theta, 1, kMaxNumber);
    read_rope_scaling(rope, &c->rope_scaling);
    f.fail(rope.status().with_context(name));
  }
}

// Attention over a window is not built; a window that no sequence can outgrow changes nothing.
void refuse_sliding_window(ConfigFields& f, const ModelConfig& c) {
  const bool in_use = c.model_type == "mistral" || (c.model_type == "qwen2" && f.boolean("use_sliding_window", false));
  if (!in_use || !f.has("sliding_window")) return;
  const int64_t window = f.integer("sliding_window", {}, 1, INT64_MAX);
  if (window < c.max_position_embeddings)
    f.fail(unsupported("\"sliding_window\" " + std::to_string(window) +
                       " is smaller than \"max_position_embeddings\" " + std::to_string(c.max_position_embeddings) +
                       "; attention over a window is not supported"));
}

void read_architecture(ConfigFields& f, ModelConfig* c) {
  c->model_type = f.text("model_type", "");
  if (c->model_type != "llama" && c->model_type != "qwen2" && c->model_type != "mistral")
    return f.fail(unsupported("model_type \"" + c->model_type.substr(0, 60) +
                              "\" is not supported; supported: llama, mistral, qwen2"));
  read_quantization(f, c);
  const std::string act = f.text("hidden_act", "silu");
  if (act != "silu")
    f.fail(unsupported("\"hidden_act\" \"" + act.substr(0, 60) + "\" is not supported; supported: silu"));
  if (c->model_type == "llama") {
    c->qkv_bias = c->o_bias = f.boolean("attention_bias", false);
    c->mlp_bias = f.boolean("mlp_bias", false);
  }
  if (c->model_type == "qwen2") c->qkv_bias = true;
  c->tie_word_embeddings = f.boolean("tie_word_embeddings", false);
  const Result<DType> dtype = parse_dtype(f.text("dtype", f.text("torch_dtype", "float32")));
  if (dtype.ok()) c->dtype = *dtype;
  f.fail(dtype.status());
}

template <typename T>
Result<T> load_json(const std::string& path, Result<T> (*parse)(std::string_view)) {
  const Result<MappedFile> file = MappedFile::open(path);
  if (!file.ok()) return file.status();
  Result<T> result = parse({reinterpret_cast<const char*>(file->data()), file->size()});
  if (!result.ok()) return result.status().with_context(path);
  return result;
}

}  // namespace

Result<ModelConfig> parse_model_config(std::string_view json) {
  const Result<nlohmann::json> object = parse_config_object(json);
  if (!object.ok()) return object.status();
  ConfigFields fields(*object);
  ModelConfig config;
  read_architecture(fields, &config);
  if (fields.status().ok()) read_sizes(fields, &config);
  if (fields.status().ok()) read_rope(fields, &config);
  if (fields.status().ok()) refuse_sliding_window(fields, config);
  config.eos_token_ids = fields.token_ids("eos_token_id");
  config.bos_token_ids = fields.token_ids("bos_token_id");
  if (!fields.status().ok()) return fields.status();
  return config;
}

Result<ModelConfig> load_model_config(const std::string& model_dir) {
  return load_json(model_dir + "/config.json", parse_model_config);
}

Result<GenerationConfig> parse_generation_config(std::string_view json) {
  const Result<nlohmann::json> object = parse_config_object(json);
  if (!object.ok()) return object.status();
  ConfigFields f(*object);
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
  if (!f.status().ok()) return f.status();
  return c;
}

Result<GenerationConfig> load_generation_config(const std::string& model_dir) {
  Result<GenerationConfig> config = load_json(model_dir + "/generation_config.json", parse_generation_config);
  if (!config.ok() && config.status().code() == StatusCode::kNotFound) return GenerationConfig{};
  return config;
}

std::vector<TokenId> merge_eos_token_ids(const ModelConfig& model, const GenerationConfig& generation) {
  return generation.eos_token_ids.empty() ? model.eos_token_ids : generation.eos_token_ids;
}

}  // namespace llmb
