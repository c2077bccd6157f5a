#include "model/eagle_layer.h"

#include <algorithm>
#include <utility>

#include "base/whole_file.h"
#include "model/architecture.h"
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

Status load_layer(const ModelConfig& config, WeightSource& source, WeightMaker& maker, ModelWeights* weights) {
  const Architecture* const architecture = find_architecture(config.model_type);
  return Loader(config, architecture->weights, source, maker, nullptr).load_eagle(weights);
}

}  // namespace

Result<EagleFiles> EagleFiles::open(const std::string& dir, const ModelConfig& model) {
  if (!is_built_as_llama(model))
    return unsupported(dir + ": EAGLE's layers draft for models that are built as Llama is, not for \"" +
                       model.model_type + "\"");
  LLMB_ASSIGN_OR_RETURN(ModelConfig config, load_model_config(dir));
  config.first_norm = false;
  config.mtp.is_apart = true;
  Status status = is_built_as_llama(config) ? check_sizes(config, model)
                                            : unsupported("a layer of model_type \"" + config.model_type + "\"");
  if (!status.ok()) return status.with_context(dir);
  Result<WeightFiles> files = WeightFiles::open_part(dir, config);
  if (!files.ok() && file_exists(dir + "/" + kPickled))
    return unsupported(dir + "/" + kPickled +
                       " is pickled: convert it there with python3 -c 'import torch, safetensors.torch as s; "
                       "s.save_file(torch.load(\"" + kPickled + "\", \"cpu\"), \"model.safetensors\")'");
  if (!files.ok()) return files.status();
  ThreadPool pool(1);
  NoWeights maker;
  ModelWeights nothing;
  const auto shapes = files->make_source(pool, WeightAccess::kShapes);
  if (shapes->has("midlayer.hidden_norm.weight") || shapes->has("d2t"))
    return unsupported(dir + ": is of EAGLE-3, whose layer takes the states of three of the model's; take one of EAGLE");
  status = load_layer(config, *shapes, maker, &nothing);
  if (!status.ok()) return status.with_context(dir);
  return EagleFiles(std::move(config), std::move(*files));
}

void EagleFiles::describe(ModelConfig* model) const {
  model->mtp.is_used = model->mtp.is_apart = true;
  model->mtp.layer = {.first_position = 1};
  model->mtp.layer.intermediate_size = config_.intermediate_size;
  model->mtp.layer.rope = static_cast<int32_t>(model->ropes.size());
  model->ropes.push_back(config_.ropes[0]);
}

Status EagleFiles::load(ThreadPool& pool, WeightMaker& maker, ModelWeights* weights) const {
  LLMB_RETURN_IF_ERROR(load_layer(config_, *files_.make_source(pool), maker, weights));
  return files_.still_readable();
}

}  // namespace llmb
