// Encoders as a GGUF file describes them: sizes, and how their states become one vector or scores of labels.
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>

#include "base/utf8.h"
#include "model/config_fields.h"
#include "model/gguf_config_json.h"
#include "model/pooling.h"

namespace llmb {

namespace {

using nlohmann::json;

constexpr uint64_t kMaxHeadLabels = 1 << 16;

// ggml's numbers of ways to pool.
std::optional<PoolingKind> pooling_kind(int64_t number) {
  constexpr PoolingKind kKinds[] = {PoolingKind::kMean, PoolingKind::kFirst, PoolingKind::kLast};
  if (number < 1 || number > std::ssize(kKinds)) return std::nullopt;
  return kKinds[number - 1];
}

std::string key_of(const GgufFile& file, const char* key) {
  return std::string(file.text("general.architecture").value_or("")) + "." + key;
}

// The rows of a matrix, or the one of a vector; 0 where there is none.
int64_t rows_of(const GgufFile& file, const char* name) {
  const GgufTensor* tensor = file.tensor(name);
  return tensor == nullptr ? 0 : tensor->shape.size() == 1 ? 1 : tensor->shape[0];
}

int64_t cols_of(const GgufFile& file, const char* name) {
  const GgufTensor* tensor = file.tensor(name);
  return tensor == nullptr || tensor->shape.empty() ? 0 : tensor->cols();
}

// A matrix behind the pooling, with as many rows and columns as the file's. They are compared when it is loaded.
Status add_layer(const GgufFile& file, const std::string& name, int32_t in_features, Pooling* pooling) {
  constexpr int64_t kMaxFeatures = 1 << 18;
  const std::string weight = name + ".weight";
  const int64_t rows = rows_of(file, weight.c_str());
  if (rows < 1 || rows > kMaxFeatures || cols_of(file, weight.c_str()) != in_features)
    return data_loss("tensor \"" + weight + "\" is no matrix of " + std::to_string(in_features) + " columns");
  PoolingLayer& layer = pooling->layers.emplace_back();
  layer.name = name;
  layer.in_features = in_features;
  layer.out_features = static_cast<int32_t>(rows);
  layer.has_bias = file.tensor(name + ".bias") != nullptr;
  return {};
}

// A name for each row of the head; without any, numbers.
Result<std::vector<std::string>> read_labels(const GgufFile& file, int64_t count) {
  std::vector<std::string> labels;
  const std::string key = key_of(file, "classifier.output_labels");
  if (const GgufValue* names = file.find(key); names != nullptr) {
    if (!names->is_array || names->type != GgufValueType::kString || names->count > kMaxHeadLabels ||
        static_cast<int64_t>(names->count) != count)
      return data_loss("\"" + key + "\" does not name " + std::to_string(count) + " labels");
    GgufStrings strings(*names);
    for (std::string_view text; strings.next(&text);) {
      if (!is_valid_utf8(text)) return data_loss("\"" + key + "\" is not UTF-8");
      labels.emplace_back(text);
    }
  }
  for (auto i = static_cast<int64_t>(labels.size()); i < count; ++i) labels.push_back("LABEL_" + std::to_string(i));
  return labels;
}

Result<Pooling> read_pooling(const GgufFile& file, const ModelConfig& config) {
  const std::string key = key_of(file, "pooling_type");
  const auto number = file.integer(key);
  const auto kind = number ? pooling_kind(*number) : std::nullopt;
  const std::string way = config.is_encoder ? "to take their mean, or the first token's, give `pooling` mean or cls"
                                            : "to take the last token's, give `pooling` last";
  if (!number) return unsupported("has no \"" + key + "\" that says how its states become one vector; " + way);
  if (!kind) return unsupported("\"" + key + "\" " + std::to_string(*number) + " gives no vector of a text; " + way);
  Pooling pooling;
  pooling.kind = *kind;
  int32_t width = config.hidden_size;
  // EmbeddingGemma's, with a bias where the file has one. GGUF knows no functions of them.
  for (const char* name : {"dense_2", "dense_3"}) {
    if (file.tensor(std::string(name) + ".weight") == nullptr) continue;
    LLMB_RETURN_IF_ERROR(add_layer(file, name, width, &pooling));
    width = pooling.layers.back().out_features;
  }
  return pooling;
}

Result<Pooling> read_classifier(const GgufFile& file, const ModelConfig& config) {
  const int64_t count = rows_of(file, "cls.output.weight");
  if (count == 0 || !config.is_encoder)
    return unsupported("has no classification head (tensor \"cls.output.weight\" of an encoder)");
  if (count > static_cast<int64_t>(kMaxHeadLabels))
    return data_loss("tensor \"cls.output.weight\" has too many labels");
  const bool is_modern = config.model_type == "modernbert";
  if (rows_of(file, "cls.weight") == 0)
    return unsupported(
        "its classification head is without the layer in front of it (tensor \"cls.weight\"), as converters leave out "
        "BERT's pooler: its scores would not be the model's; take the original model");
  Pooling pooling;
  pooling.kind = PoolingKind::kFirst;
  if (is_modern) {
    const auto kind = pooling_kind(file.integer(key_of(file, "classifier.pooling_type")).value_or(1));
    if (!kind) return unsupported("\"" + key_of(file, "classifier.pooling_type") + "\" is not supported");
    pooling.kind = *kind;
  }
  LLMB_RETURN_IF_ERROR(add_layer(file, "cls", config.hidden_size, &pooling));
  pooling.layers.back().activation = is_modern ? Activation::kGelu : Activation::kTanh;
  if (is_modern) pooling.layers.back().norm = "cls.norm";
  pooling.layers.back().norm_has_bias = is_modern && file.tensor("cls.norm.bias") != nullptr;
  LLMB_RETURN_IF_ERROR(add_layer(file, "cls.output", pooling.layers.back().out_features, &pooling));
  LLMB_ASSIGN_OR_RETURN(pooling.labels, read_labels(file, count));
  pooling.normalizes = false;
  pooling.scores = count == 1 ? Scores::kLogistic : Scores::kSoftmax;
  return pooling;
}

Result<Pooling> from_file(const std::string& path, const ModelConfig& config,
                          Result<Pooling> (*read)(const GgufFile&, const ModelConfig&)) {
  LLMB_ASSIGN_OR_RETURN(const GgufFile file, GgufFile::open(path));
  Result<Pooling> pooling = read(file, config);
  LLMB_RETURN_IF_ERROR(file.still_readable());
  if (!pooling.ok()) return pooling.status().with_context(path);
  return pooling;
}

}  // namespace

void read_encoder_particulars(GgufConfigJson& c) {
  json& out = c.out;
  const std::string type = out["model_type"];
  if (type == "gemma3_text" && c.file().text("general.architecture") == "gemma-embedding")
    out["use_bidirectional_attention"] = true;
  if (type != "bert" && type != "nomic_bert" && type != "modernbert") return;
  if (type == "modernbert") c.number("norm_eps", "attention.layer_norm_rms_epsilon");  // as some converters call it
  c.number(type == "modernbert" ? "norm_eps" : "layer_norm_eps", "attention.layer_norm_epsilon");
  if (type != "modernbert") out["type_vocab_size"] = rows_of(c.file(), "token_types.weight");
  if (type == "bert") out["hidden_act"] = "gelu";
  if (type == "nomic_bert") c.number("rotary_emb_base", "rope.freq_base");
  if (type == "nomic_bert" && c.integer_of("moe_every_n_layers").value_or(0) > 0)
    return c.fail(unsupported("experts in every second layer (\"moe_every_n_layers\") are not supported"));
  if (type != "modernbert") return;
  out["norm_bias"] = c.has("output_norm.bias");
  out["attention_bias"] = c.has("blk.0.attn_qkv.bias");
  out["mlp_bias"] = c.has("blk.0.ffn_up.bias");
  if (const std::string act = c.text("hidden_activation"); !act.empty()) out["hidden_activation"] = act;
  c.integer("local_attention", "attention.sliding_window");
  out["global_attn_every_n_layers"] = c.integer_of("attention.sliding_window_pattern").value_or(3);
  c.number("global_rope_theta", "rope.freq_base");
  c.number("local_rope_theta", "rope.freq_base_swa");
}

Result<Pooling> load_gguf_pooling(const std::string& path, const ModelConfig& config) {
  return from_file(path, config, read_pooling);
}

Result<Pooling> load_gguf_classifier(const std::string& path, const ModelConfig& config) {
  return from_file(path, config, read_classifier);
}

}  // namespace llmb
