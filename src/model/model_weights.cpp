#include "model/model_weights.h"

#include <array>
#include <string>
#include <utility>

namespace llmb {

namespace {

class Loader {
 public:
  Loader(WeightSource& source, Ops& ops) : source_(source), ops_(ops) {}

  // Matrices `names` of `rows` rows each, stacked.
  void linear(const std::string& prefix, std::vector<std::pair<const char*, int64_t>> parts, int64_t cols,
              bool has_bias, std::unique_ptr<LinearWeight>* out) {
    std::vector<TensorView> weights, biases;
    for (const auto& [name, rows] : parts) {
      add(prefix + name + ".weight", std::array{rows, cols}, &weights);
      if (has_bias) add(prefix + name + ".bias", std::array{rows}, &biases);
    }
    if (status_.ok()) *out = ops_.make_linear(weights, biases);
    source_.release();
  }

  void vector(const std::string& name, int64_t size, std::unique_ptr<DeviceBuffer>* out) {
    std::vector<TensorView> views;
    add(name, std::array{size}, &views);
    if (status_.ok()) *out = ops_.make_vector(views[0]);
    source_.release();
  }

  const Status& status() const { return status_; }

 private:
  void add(const std::string& name, std::span<const int64_t> shape, std::vector<TensorView>* out) {
    if (!status_.ok()) return;
    const Result<TensorView> view = source_.tensor(name, shape);
    if (view.ok()) out->push_back(*view);
    else status_ = view.status();
  }

  WeightSource& source_;
  Ops& ops_;
  Status status_;
};

void load_layer(const ModelConfig& c, int32_t index, Loader& loader, LayerWeights* layer) {
  const std::string prefix = "model.layers." + std::to_string(index) + ".";
  const int64_t hidden = c.hidden_size, intermediate = c.intermediate_size;
  loader.vector(prefix + "input_layernorm.weight", hidden, &layer->input_norm);
  loader.linear(prefix + "self_attn.", {{"q_proj", c.q_size()}, {"k_proj", c.kv_size()}, {"v_proj", c.kv_size()}},
                hidden, c.qkv_bias, &layer->qkv);
  loader.linear(prefix + "self_attn.", {{"o_proj", hidden}}, c.q_size(), c.o_bias, &layer->o);
  loader.vector(prefix + "post_attention_layernorm.weight", hidden, &layer->post_attention_norm);
  loader.linear(prefix + "mlp.", {{"gate_proj", intermediate}, {"up_proj", intermediate}}, hidden, c.mlp_bias,
                &layer->gate_up);
  loader.linear(prefix + "mlp.", {{"down_proj", hidden}}, intermediate, c.mlp_bias, &layer->down);
}

}  // namespace

int64_t ModelWeights::resident_bytes() const {
  int64_t bytes = embed_tokens->resident_bytes() + norm->resident_bytes() + (lm_head ? lm_head->resident_bytes() : 0);
  for (const LayerWeights& l : layers)
    bytes += l.input_norm->resident_bytes() + l.qkv->resident_bytes() + l.o->resident_bytes() +
             l.post_attention_norm->resident_bytes() + l.gate_up->resident_bytes() + l.down->resident_bytes();
  return bytes;
}

Result<ModelWeights> load_model_weights(const ModelConfig& config, WeightSource& source, Ops& ops) {
  ModelWeights weights;
  Loader loader(source, ops);
  loader.linear("model.", {{"embed_tokens", config.vocab_size}}, config.hidden_size, false, &weights.embed_tokens);
  for (int32_t i = 0; i < config.num_hidden_layers && loader.status().ok(); ++i)
    load_layer(config, i, loader, &weights.layers.emplace_back());
  loader.vector("model.norm.weight", config.hidden_size, &weights.norm);
  if (!config.tie_word_embeddings)
    loader.linear("", {{"lm_head", config.vocab_size}}, config.hidden_size, false, &weights.lm_head);
  if (!loader.status().ok()) return loader.status();
  return weights;
}

int64_t stored_weight_bytes(const ModelConfig& config) {
  // num_matmul_params counts the LM head; untied, the embedding comes on top. Norms and biases are noise.
  const int64_t embedding = config.tie_word_embeddings ? 0 : int64_t{config.vocab_size} * config.hidden_size;
  return (config.num_matmul_params() + embedding) * dtype_bytes(config.dtype);
}

}  // namespace llmb
