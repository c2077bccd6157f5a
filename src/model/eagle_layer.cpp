#include "model/eagle_layer.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "base/check.h"
#include "base/whole_file.h"
#include "formats/safetensors.h"
#include "model/architecture.h"
#include "model/config_fields.h"
#include "model/config_loader.h"
#include "model/no_weights.h"
#include "model/weight_loader.h"

namespace llmb {

namespace {

constexpr const char* kPickled = "pytorch_model.bin";

bool sees_windows(const LayerConfig& layer) { return layer.window > 0 || layer.chunk > 0 || layer.reach > 0; }

// Whether a layer of Llama's, behind the model's last one, needs nothing that this model's own layers lack.
bool is_built_as_llama(const ModelConfig& c) {
  const bool has_plain_norms = c.norm == NormKind::kRms && c.norm_weight_offset == 0 && c.pre_norm && !c.post_norm &&
                               !c.embedding_norm && c.residual == ResidualKind::kSequential &&
                               (c.qk_norm == QkNorm::kNone || c.qk_norm == QkNorm::kPerHead);
  const bool has_plain_attention = !c.learned_positions && c.alibi_slopes.empty() && c.attention_scale == 0 &&
                                   !c.scale_by_inverse_layer && c.attention_softcap == 0 && !c.attention_sinks &&
                                   c.qkv_clip == 0 && c.query_growth.scale == 0 && !c.attention_gate && !c.value_norm;
  const bool has_plain_layers = !c.is_encoder && !c.has_states() && !c.has_latent() && !c.heads_differ() &&
                                std::none_of(c.layers.begin(), c.layers.end(), sees_windows);
  return has_plain_norms && has_plain_attention && has_plain_layers && c.activation.gated &&
         c.hidden_size_per_layer_input == 0 && c.embedding_multiplier == 1 && c.residual_multiplier == 1 &&
         !c.layer_scalars;
}

Status check_sizes(const ModelConfig& own, const ModelConfig& model) {
  const auto differ = [](const char* of, int64_t has, int64_t wanted) {
    return invalid_argument(std::string("its layer has ") + of + " " + std::to_string(has) + ", the model " +
                            std::to_string(wanted));
  };
  if (own.num_hidden_layers != 1)
    return invalid_argument("has " + std::to_string(own.num_hidden_layers) + " layers; EAGLE's has one");
  if (own.hidden_size != model.hidden_size) return differ("hidden_size", own.hidden_size, model.hidden_size);
  if (own.num_attention_heads != model.num_attention_heads)
    return differ("num_attention_heads", own.num_attention_heads, model.num_attention_heads);
  if (own.num_key_value_heads != model.num_key_value_heads)
    return differ("num_key_value_heads", own.num_key_value_heads, model.num_key_value_heads);
  if (own.head_dim != model.head_dim) return differ("head_dim", own.head_dim, model.head_dim);
  if (own.vocab_size != model.vocab_size) return differ("vocab_size", own.vocab_size, model.vocab_size);
  if (own.activation.kind != model.activation.kind)
    return invalid_argument("its layer's activation is another than the model's");
  if (own.has_quantization) return unsupported("its layer is quantised; take one in float32, float16 or bfloat16");
  return {};
}

// The layers whose inputs the first ones of EAGLE-3's authors take.
std::array<int32_t, 3> usual_state_layers(int32_t num_layers) { return {2, num_layers / 2, num_layers - 3}; }

// The tokens of the head's rows. d2t: int64 [count], unaligned.
Status read_head_tokens(const StoredTensor& d2t, int64_t vocab_size, std::vector<TokenId>* tokens) {
  if (d2t.dtype != "I64") return data_loss(d2t.where + ": expected I64, found " + std::string(d2t.dtype));
  for (int64_t i = 0; i < d2t.shape[0]; ++i) {
    int64_t offset = 0;
    std::memcpy(&offset, d2t.data + i * int64_t{sizeof offset}, sizeof offset);
    if (offset < -i || offset >= vocab_size - i)
      return data_loss(d2t.where + ": row " + std::to_string(i) + " is of no token of the model");
    tokens->push_back(static_cast<TokenId>(i + offset));
  }
  return {};
}

}  // namespace

Result<EagleFiles> EagleFiles::open(const std::string& dir, const ModelConfig& model) {
  if (!is_built_as_llama(model))
    return unsupported(dir + ": EAGLE's layers draft for models that are built as Llama is, not for \"" +
                       model.model_type + "\"");
  LLMB_ASSIGN_OR_RETURN(ModelConfig config, load_model_config(dir));
  config.first_norm = false;
  config.mtp.kind = DraftLayerKind::kEagle;
  Status status = is_built_as_llama(config) ? check_sizes(config, model)
                                            : unsupported("a layer of model_type \"" + config.model_type + "\"");
  if (!status.ok()) return status.with_context(dir);
  Result<WeightFiles> files = WeightFiles::open_part(dir, config);
  if (!files.ok() && file_exists(dir + "/" + kPickled))
    return unsupported(dir + "/" + kPickled +
                       " is pickled: convert it there with python3 -c 'import torch, safetensors.torch as s; "
                       "s.save_file(torch.load(\"" + kPickled + "\", \"cpu\"), \"model.safetensors\")'");
  if (!files.ok()) return files.status();
  EagleFiles eagle(std::move(config), std::move(*files));
  ThreadPool pool(1);
  NoWeights maker;
  ModelWeights nothing;
  const auto shapes = eagle.files_.make_source(pool, WeightAccess::kShapes);
  if (shapes->has("midlayer.hidden_norm.weight") || shapes->has("layers.0.hidden_norm.weight"))
    status = eagle.read_eagle3(dir, model);
  // Published configs name biases otherwise than Llama's do, or not at all.
  for (const char* const layer : {"layers.0.", "midlayer."}) {
    const std::string attention = std::string(layer) + "self_attn.";
    eagle.config_.qkv_bias = eagle.config_.qkv_bias || shapes->has(attention + "q_proj.bias");
    eagle.config_.o_bias = eagle.config_.o_bias || shapes->has(attention + "o_proj.bias");
  }
  if (status.ok()) status = eagle.load_layer(nullptr, *shapes, maker, &nothing);
  if (!status.ok()) return status.with_context(dir);
  return eagle;
}

Status EagleFiles::read_eagle3(const std::string& dir, const ModelConfig& model) {
  config_.mtp.kind = DraftLayerKind::kEagle3;
  const std::string path = dir + "/config.json";
  LLMB_ASSIGN_OR_RETURN(const std::string text, read_whole_file(path, kMaxTextFileBytes));
  const Result<nlohmann::json> json = parse_config_object(text);
  if (!json.ok()) return json.status();
  ConfigFields fields(*json);
  num_head_tokens_ = static_cast<int32_t>(fields.integer("draft_vocab_size", model.vocab_size, 1, model.vocab_size));
  const int32_t num_layers = model.num_hidden_layers;
  config_.mtp.state_layers = usual_state_layers(num_layers);
  const nlohmann::json* const eagle = fields.find("eagle_config");
  if (fields.boolean("norm_before_residual", false))
    return unsupported("\"norm_before_residual\": the layer adds to its norm, not to the state");
  const nlohmann::json& place = eagle != nullptr && eagle->is_object() ? *eagle : *json;
  if (ConfigFields named(place); named.has("eagle_aux_hidden_state_layer_ids")) {
    const std::vector<double> ids = named.numbers("eagle_aux_hidden_state_layer_ids", 3, 0, num_layers - 1);
    LLMB_RETURN_IF_ERROR(named.status());
    std::transform(ids.begin(), ids.end(), config_.mtp.state_layers.begin(),
                   [](double id) { return static_cast<int32_t>(id); });
  } else if (num_layers < 7) {
    return invalid_argument("\"eagle_aux_hidden_state_layer_ids\" is missing, and the model has " +
                            std::to_string(num_layers) + " layers, too few to guess them");
  }
  LLMB_RETURN_IF_ERROR(fields.status());
  LLMB_ASSIGN_OR_RETURN(const Checkpoint checkpoint, Checkpoint::open(dir));
  const std::optional<StoredTensor> d2t = checkpoint.find("d2t");
  if (!d2t && num_head_tokens_ == model.vocab_size) return {};
  if (!d2t) return data_loss("has no tensor \"d2t\", which says the tokens of the head's rows");
  LLMB_RETURN_IF_ERROR(check_shape(*d2t, std::vector<int64_t>{num_head_tokens_}));
  return read_head_tokens(*d2t, model.vocab_size, &head_tokens_);
}

Status EagleFiles::load_layer(const ModelShare* share, WeightSource& source, WeightMaker& maker,
                              ModelWeights* weights) const {
  const Architecture* const architecture = find_architecture(config_.model_type);
  ModelShare own;
  if (share != nullptr) {  // the layer is the last of those that the model's ranks divide
    const bool has_all = share->q_heads.count() == config_.num_attention_heads;
    LLMB_CHECK_MSG(has_all || !share->of_layers.empty(), "the model's config does not tell of the layer");
    own = *share;
    own.mlp = has_all ? Range{0, config_.intermediate_size} : share->of_layers.back().mlp;
    own.of_layers.clear();
  }
  Loader loader(config_, architecture->weights, source, maker, share != nullptr ? &own : nullptr);
  if (config_.mtp.kind == DraftLayerKind::kEagle) return loader.load_eagle(weights);
  return loader.load_eagle3(num_head_tokens_, head_tokens_, weights);
}

void EagleFiles::describe(ModelConfig* model) const {
  model->mtp.is_used = true;
  model->mtp.kind = config_.mtp.kind;
  model->mtp.state_layers = config_.mtp.state_layers;
  model->mtp.layer = {.first_position = 1};
  model->mtp.layer.intermediate_size = config_.intermediate_size;
  model->mtp.layer.rope = static_cast<int32_t>(model->ropes.size());
  model->ropes.push_back(config_.ropes[0]);
}

Status EagleFiles::load(const ModelShare* share, ThreadPool& pool, WeightMaker& maker, ModelWeights* weights) const {
  LLMB_RETURN_IF_ERROR(load_layer(share, *files_.make_source(pool), maker, weights));
  return files_.still_readable();
}

}  // namespace llmb
