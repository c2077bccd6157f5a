#include "model/classifier.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "base/whole_file.h"
#include "model/config_fields.h"
#include "model/gguf_model.h"

namespace llmb {

namespace {

constexpr int64_t kMaxLabels = 1 << 16;

// "id2label": {"0": "negative", "1": "positive"}, or a number of labels without names.
std::vector<std::string> read_labels(ConfigFields& f) {
  std::vector<std::string> labels;
  const nlohmann::json* const names = f.find("id2label");
  if (names == nullptr) {
    labels.resize(static_cast<size_t>(f.integer("num_labels", 2, 1, kMaxLabels)));
    for (size_t i = 0; i < labels.size(); ++i) labels[i] = "LABEL_" + std::to_string(i);
    return labels;
  }
  const bool is_right = names->is_object() && !names->empty() && names->size() <= kMaxLabels;
  for (size_t i = 0; is_right && i < names->size(); ++i) {
    const auto name = names->find(std::to_string(i));
    if (name == names->end() || !name->is_string()) break;
    labels.push_back(name->get<std::string>());
  }
  if (!is_right || labels.size() != names->size())
    f.fail(data_loss("\"id2label\" does not give names to the numbers from 0 on"));
  return labels;
}

// newer: the function that a file beside config.json names; "": none.
Scores read_scores(ConfigFields& f, const nlohmann::json& object, const std::string& newer, size_t num_labels) {
  std::string name = f.text("sbert_ce_default_activation_function", "");
  if (const auto own = object.find("sentence_transformers"); own != object.end() && own->is_object())
    if (const auto function = own->find("activation_fn"); function != own->end() && function->is_string())
      name = function->get<std::string>();
  if (!newer.empty()) name = newer;
  if (name.ends_with(".Identity")) return Scores::kAsIs;
  if (name.ends_with(".Sigmoid")) return Scores::kLogistic;
  if (!name.empty())
    f.fail(unsupported("activation function \"" + name.substr(0, 80) +
                       "\" of scores is not supported; supported: torch.nn's Identity and Sigmoid"));
  const bool are_apart = num_labels == 1 || f.text("problem_type", "") == "multi_label_classification";
  return are_apart ? Scores::kLogistic : Scores::kSoftmax;
}

void add_layers(ConfigFields& f, const ModelConfig& c, int32_t num_labels, Pooling* pooling) {
  const int32_t hidden = c.hidden_size;
  const auto add = [&](const char* name, int32_t out_features, bool has_bias, std::optional<Activation> activation) {
    return &pooling->layers.emplace_back(PoolingLayer{"", name, hidden, out_features, has_bias, activation, "", false});
  };
  if (c.model_type == "bert" || c.model_type == "nomic_bert") {
    pooling->kind = PoolingKind::kFirst;
    add("bert.pooler.dense|nomic_bert.pooler.dense", hidden, true, Activation::kTanh);
    add("classifier", num_labels, true, {});
  } else if (c.model_type == "modernbert") {
    const std::string kind = f.text("classifier_pooling", "cls");
    if (kind != "cls" && kind != "mean")
      f.fail(unsupported("\"classifier_pooling\" other than \"cls\" and \"mean\" is not supported"));
    if (f.text("classifier_activation", "gelu") != "gelu")
      f.fail(unsupported("\"classifier_activation\" other than \"gelu\" is not supported"));
    pooling->kind = kind == "cls" ? PoolingKind::kFirst : PoolingKind::kMean;
    PoolingLayer* const dense = add("head.dense", hidden, f.boolean("classifier_bias", false), Activation::kGelu);
    dense->norm = "head.norm";
    dense->norm_has_bias = c.norm_bias;
    add("classifier", num_labels, true, {});
  } else if (c.is_encoder && c.learned_positions) {
    pooling->kind = PoolingKind::kFirst;
    add("classifier.dense", hidden, true, Activation::kTanh);
    add("classifier.out_proj", num_labels, true, {});
  } else {
    pooling->kind = PoolingKind::kLast;
    add("score", num_labels, false, {});
  }
}

}  // namespace

Result<std::string> score_activation(const std::string& model_dir) {
  const std::string path = model_dir + "/config_sentence_transformers.json";
  const auto text = read_whole_file(path, kMaxTextFileBytes);
  if (!text.ok() && text.status().code() == StatusCode::kNotFound) return std::string();
  LLMB_RETURN_IF_ERROR(text.status());
  const auto object = parse_config_object(*text);
  if (!object.ok()) return object.status().with_context(path);
  ConfigFields f(*object);
  const std::string name = f.text("activation_fn", "");
  LLMB_RETURN_IF_ERROR(f.status().with_context(path));
  return name;
}

Result<Pooling> parse_classifier(std::string_view json, const ModelConfig& config, const std::string& activation) {
  LLMB_ASSIGN_OR_RETURN(const nlohmann::json object, parse_config_object(json));
  const auto classes = object.find("architectures");
  const bool is_named = classes != object.end() && classes->is_array() && !classes->empty() && (*classes)[0].is_string();
  const std::string name = is_named ? (*classes)[0].get<std::string>() : "";
  if (!name.ends_with("ForSequenceClassification"))
    return unsupported("\"architectures\" names no class ...ForSequenceClassification but \"" + name.substr(0, 80) +
                       "\": the model has no labels; of one that judges pairs by a word, name the words: "
                       "`classifier_from_token` no,yes");
  ConfigFields f(object);
  Pooling pooling;
  pooling.normalizes = false;
  pooling.labels = read_labels(f);
  pooling.scores = read_scores(f, object, activation, pooling.labels.size());
  add_layers(f, config, static_cast<int32_t>(pooling.labels.size()), &pooling);
  LLMB_RETURN_IF_ERROR(f.status());
  return pooling;
}

Result<Pooling> load_classifier(const std::string& model_dir, const ModelConfig& config) {
  if (is_gguf_path(model_dir)) return load_gguf_classifier(model_dir, config);
  const std::string path = model_dir + "/config.json";
  LLMB_ASSIGN_OR_RETURN(const std::string text, read_whole_file(path, kMaxTextFileBytes));
  LLMB_ASSIGN_OR_RETURN(const std::string activation, score_activation(model_dir));
  Result<Pooling> pooling = parse_classifier(text, config, activation);
  if (!pooling.ok()) return pooling.status().with_context(path);
  return pooling;
}

Result<std::vector<std::string>> load_judge_words(const std::string& model_dir) {
  std::vector<std::string> words;
  if (is_gguf_path(model_dir)) return words;
  const std::string path = model_dir + "/config.json";
  LLMB_ASSIGN_OR_RETURN(const std::string text, read_whole_file(path, kMaxTextFileBytes));
  LLMB_ASSIGN_OR_RETURN(const nlohmann::json object, parse_config_object(text));
  const auto names = object.find("classifier_from_token");
  if (names == object.end() || names->is_null()) return words;
  const bool are_two = names->is_array() && names->size() == 2 && (*names)[0].is_string() && (*names)[1].is_string();
  if (!are_two) return data_loss(path + ": \"classifier_from_token\" is no array of two words");
  return std::vector<std::string>{(*names)[0].get<std::string>(), (*names)[1].get<std::string>()};
}

Result<Pooling> load_judge(const std::string& model_dir, const ModelConfig& config, const JudgeTokens& tokens) {
  if (is_gguf_path(model_dir)) return unsupported(model_dir + ": GGUF files do not judge pairs by a word");
  if (config.is_encoder) return unsupported(model_dir + ": an encoder has no words to judge by");
  if (config.logit_softcap != 0 || config.logit_multiplier != 1)
    return unsupported(model_dir + ": pairs are not judged by logits that are scaled or capped");
  const std::string path = model_dir + "/config.json";
  LLMB_ASSIGN_OR_RETURN(const std::string text, read_whole_file(path, kMaxTextFileBytes));
  LLMB_ASSIGN_OR_RETURN(const nlohmann::json object, parse_config_object(text));
  LLMB_ASSIGN_OR_RETURN(const std::string activation, score_activation(model_dir));
  ConfigFields f(object);
  const Scores scores = read_scores(f, object, activation, /*num_labels=*/1);
  LLMB_RETURN_IF_ERROR(f.status().with_context(path));
  constexpr const char* kTable =
      "model.embed_tokens|model.language_model.embed_tokens|language_model.model.embed_tokens";
  constexpr const char* kHead = "lm_head|language_model.lm_head|model.lm_head";
  PoolingLayer head;
  head.name = config.tied_unless_stored    ? std::string(kHead) + "|" + kTable
              : config.tie_word_embeddings ? kTable
                                           : kHead;
  head.in_features = config.hidden_size;
  head.out_features = config.vocab_size;
  head.has_bias = false;
  head.rows = {tokens.yes};
  if (tokens.no) head.rows.push_back(*tokens.no);
  Pooling pooling;
  pooling.normalizes = false;
  pooling.layers = {std::move(head)};
  pooling.labels = {"yes"};
  pooling.judges_pairs = true;
  pooling.scores = !tokens.no                  ? scores
                   : scores == Scores::kAsIs ? Scores::kDifference
                                               : Scores::kLogisticDifference;
  return pooling;
}

}  // namespace llmb
