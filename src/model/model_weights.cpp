#include "model/model_weights.h"

#include <string>
#include <utility>

#include "base/check.h"
#include "model/no_weights.h"
#include "model/weight_loader.h"

namespace llmb {

std::unique_ptr<LinearWeight> Loader::make(const Parts& parts, WeightRole role) {
  std::unique_ptr<LinearWeight> weight;
  if (reader_.status().ok()) weight = maker_.make_linear(parts.weights, parts.biases, role);
  reader_.release();
  return weight;
}

std::unique_ptr<DeviceBuffer> Loader::vector(const std::string& name, int64_t size, double offset) {
  return make_vector(reader_.plus(reader_.tensor(name, {size}), offset));
}

std::unique_ptr<DeviceBuffer> Loader::make_vector(const TensorView& values) {
  std::unique_ptr<DeviceBuffer> buffer;
  if (reader_.status().ok()) buffer = maker_.make_vector(values);
  reader_.release();
  return buffer;
}

std::unique_ptr<DeviceBuffer> Loader::ones(int64_t size) {
  const std::vector<float> values(static_cast<size_t>(size), 1);
  return maker_.make_vector({values.data(), DType::kF32, 1, size});
}

void Loader::norm(const std::string& prefix, const char* names, NormWeights* out) {
  if (names == nullptr) {
    out->weight = ones(c_.hidden_size);
    return;
  }
  const std::string name = reader_.find(prefix, names, ".weight");
  // Checkpoints that were converted from TensorFlow's have other names for the two.
  const bool is_old = !reader_.has(name + ".weight") && reader_.has(name + ".gamma");
  out->weight = vector(name + (is_old ? ".gamma" : ".weight"), c_.hidden_size, c_.norm_weight_offset);
  if (c_.norm_bias) out->bias = vector(name + (is_old ? ".beta" : ".bias"), c_.hidden_size);
}

std::unique_ptr<LinearWeight> Loader::table(const std::string& name, int64_t rows, WeightRole role, bool has_bias) {
  Parts parts;
  parts.add(reader_.tensor(name + ".weight", {rows, c_.hidden_size}),
            has_bias ? reader_.tensor(name + ".bias", {rows}) : TensorView(), has_bias);
  return make(role == WeightRole::kVocabulary ? rows_of(parts, share_.vocab) : parts, role);
}

void Loader::add_projection(const std::string& prefix, const char* names, int64_t rows, int64_t cols, bool has_bias,
                            Parts* out) {
  const std::string name = reader_.find(prefix, names, ".weight");
  const TensorView weight = names_.is_transposed ? reader_.transposed(reader_.tensor(name + ".weight", {cols, rows}))
                                                 : reader_.tensor(name + ".weight", {rows, cols});
  out->add(weight, has_bias ? reader_.tensor(name + ".bias", {rows}) : TensorView(), has_bias);
}

Loader::Qkv Loader::split_qkv(const Parts& all) const {
  Qkv out;
  const int64_t d = c_.head_dim, heads = c_.num_attention_heads, kv_heads = c_.num_key_value_heads;
  const auto add_heads = [&](Parts* to, int64_t first, int64_t count) {
    to->weights.push_back(slice_rows(all.weights[0], first * d, count * d));
    if (c_.qkv_bias) to->biases.push_back(slice_vector(all.biases[0], first * d, count * d));
  };
  switch (names_.qkv_order) {
    case QkvOrder::kStacked:
      add_heads(&out.q, 0, heads);
      add_heads(&out.k, heads, kv_heads);
      add_heads(&out.v, heads + kv_heads, kv_heads);
      break;
    case QkvOrder::kGrouped:
      for (int64_t g = 0, group = heads / kv_heads; g < kv_heads; ++g) {
        const int64_t first = g * (group + 2);
        add_heads(&out.q, first, group);
        add_heads(&out.k, first + group, 1);
        add_heads(&out.v, first + group + 1, 1);
      }
      break;
    case QkvOrder::kQuarters:
      for (int64_t i = 0, quarter = heads / 4; i < 4; ++i) {
        add_heads(&out.q, 3 * i * quarter, quarter);
        add_heads(&out.v, (3 * i + 1) * quarter, quarter);
        add_heads(&out.k, (3 * i + 2) * quarter, quarter);
      }
      break;
  }
  return out;
}

Parts Loader::read_qkv(int32_t index, const std::string& prefix) {
  Qkv qkv;
  const int64_t hidden = c_.hidden_size;
  if (names_.qkv == nullptr) {
    add_projection(prefix, names_.q, c_.q_size_of(index), hidden, c_.qkv_bias, &qkv.q);
    if (c_.has_own_kv(index)) {
      const char* const v = c_.layer(index).values_are_keys ? names_.k : names_.v;
      add_projection(prefix, names_.k, c_.kv_size_of(index), hidden, c_.qkv_bias, &qkv.k);
      add_projection(prefix, v, c_.kv_size_of(index), hidden, c_.qkv_bias, &qkv.v);
    }
  } else {
    Parts all;
    add_projection(prefix, names_.qkv, c_.q_size() + 2 * c_.kv_size(), hidden, c_.qkv_bias, &all);
    if (!reader_.status().ok()) return all;
    qkv = split_qkv(all);
  }
  Parts parts;
  const int64_t d = c_.head_dim_of(index);
  if (is_rank_) {
    qkv.q = rows_of(qkv.q, {share_.q_heads.begin * d, share_.q_heads.end * d});
    const Range& sets = share_.kv_heads_of(index);
    for (Parts* const kv : {&qkv.k, &qkv.v}) *kv = rows_of(*kv, {sets.begin * d, sets.end * d});
  }
  for (Parts* part : {&qkv.q, &qkv.k}) {  // whole heads
    for (TensorView& weight : part->weights) weight = pairs_apart(weight);
    for (TensorView& bias : part->biases) bias = pairs_apart(bias);
  }
  for (const Parts& part : {qkv.q, qkv.k, qkv.v}) {
    parts.weights.insert(parts.weights.end(), part.weights.begin(), part.weights.end());
    parts.biases.insert(parts.biases.end(), part.biases.begin(), part.biases.end());
  }
  return parts;
}

TensorView Loader::pairs_apart(const TensorView& view) {
  if (!names_.is_interleaved) return view;
  return reader_.pairs_apart(view, c_.head_dim, c_.rotary_dim(c_.ropes[0]));
}

std::unique_ptr<LinearWeight> Loader::load_positions(const std::string& prefix) {
  const int64_t first = c_.first_position, count = c_.max_position_embeddings;
  Parts parts;
  const std::string name = prefix + names_.embed_positions + ".weight";
  parts.add(slice_rows(reader_.tensor(name, {first + count, c_.hidden_size}), first, count), {}, false);
  return make(parts, WeightRole::kSmall);
}

// Weights or biases of LayerNorms of heads, one behind the other.
TensorView Loader::head_vectors(const std::string& name, const char* suffix, int64_t num_heads) {
  if (names_.head_norms == HeadNorms::kMatrix) {
    const TensorView all = reader_.tensor(name + suffix, {num_heads, c_.head_dim});
    return pairs_apart({all.data, all.dtype, 1, num_heads * c_.head_dim});
  }
  std::vector<TensorView> heads;
  for (int64_t i = 0; i < num_heads; ++i) {
    const bool is_shared = names_.head_norms == HeadNorms::kShared;
    heads.push_back(
        reader_.tensor(is_shared ? name + suffix : name + ".norms." + std::to_string(i) + suffix, {c_.head_dim}));
  }
  return reader_.joined(heads);
}

void Loader::load_qk_norms(int32_t index, const std::string& prefix, LayerWeights* layer) {
  const std::string q = prefix + names_.q_norm, k = prefix + names_.k_norm;
  const auto rms = [&](const std::string& name, int64_t size) {
    LLMB_CHECK(!names_.is_interleaved);  // else its channels would be in another order than those of q and k
    return vector(name + ".weight", size, c_.norm_weight_offset);
  };
  const auto heads_vector = [&](const std::string& name, int64_t num_heads, const Range& own) {
    LLMB_CHECK(!names_.is_interleaved);
    const TensorView all = reader_.tensor(name + ".weight", {num_heads * c_.head_dim});
    return make_vector(heads_of(reader_.plus(all, c_.norm_weight_offset), own));
  };
  switch (c_.qk_norm) {
    case QkNorm::kNone:
      return;
    case QkNorm::kPerHead:
      layer->q_norm.weight = rms(q, c_.head_dim_of(index));
      if (c_.has_own_kv(index)) layer->k_norm.weight = rms(k, c_.head_dim_of(index));
      return;
    case QkNorm::kAllHeads:
      layer->q_norm.weight = heads_vector(q, c_.num_attention_heads, share_.q_heads);
      layer->k_norm.weight = heads_vector(k, c_.num_key_value_heads, share_.kv_heads);
      return;
    case QkNorm::kLayerPerHead:
      layer->q_norm.weight = make_vector(heads_of(head_vectors(q, ".weight", c_.num_attention_heads), share_.q_heads));
      layer->k_norm.weight = make_vector(heads_of(head_vectors(k, ".weight", c_.num_key_value_heads), share_.kv_heads));
      if (names_.head_norms != HeadNorms::kShared) return;
      layer->q_norm.bias = make_vector(heads_of(head_vectors(q, ".bias", c_.num_attention_heads), share_.q_heads));
      layer->k_norm.bias = make_vector(heads_of(head_vectors(k, ".bias", c_.num_key_value_heads), share_.kv_heads));
      return;
    case QkNorm::kRotatedPerHead:
      // Only products of q and k are looked at, so q takes the weights of both. The rotation leaves the norm of k as it
      // is, so without weights k can be normalised in front of it.
      layer->q_norm.weight = make_vector(
          reader_.times(reader_.tensor(q + ".weight", {c_.head_dim}), reader_.tensor(k + ".weight", {c_.head_dim})));
      layer->k_norm.weight = ones(c_.head_dim);
      return;
    case QkNorm::kWeightless:
      if (c_.layer(index).rope < 0) return;
      layer->q_norm.weight = ones(c_.head_dim), layer->k_norm.weight = ones(c_.head_dim);
      return;
  }
}

void Loader::load_attention(int32_t index, const std::string& prefix, LayerWeights* layer) {
  if (c_.has_latent()) load_latent(prefix, layer);
  else if (c_.attention_gate) load_gated_qkv(prefix, layer);
  else layer->qkv = make(read_qkv(index, prefix));
  load_qk_norms(index, prefix, layer);
  if (c_.value_norm && c_.has_own_kv(index)) layer->v_norm.weight = ones(c_.head_dim_of(index));
  if (c_.attention_sinks)
    layer->sinks = make_vector(slice_vector(reader_.tensor(prefix + names_.sinks, {c_.num_attention_heads}),
                                            share_.q_heads.begin, share_.q_heads.count()));
  Parts o;
  add_projection(prefix, names_.o, c_.hidden_size, c_.o_size_of(index), c_.o_bias, &o);
  const int64_t d = c_.has_latent() ? c_.latent.value_dim : c_.head_dim_of(index);
  layer->o = make_sum(std::move(o), {share_.q_heads.begin * d, share_.q_heads.end * d});
}

void Loader::load_layer(int32_t index, const std::string& prefix, LayerWeights* layer) {
  const bool has_mixer = c_.layer(index).has_mixer;
  if (has_mixer && c_.pre_norm && (index > 0 || c_.first_norm)) norm(prefix, names_.input_norm, &layer->input_norm);
  if (c_.layer(index).has_state) load_state_layer(prefix, layer);
  else if (has_mixer) load_attention(index, prefix, layer);
  if (!c_.layer(index).has_mlp) return;
  const bool norms_sums = c_.residual == ResidualKind::kNormedSum;
  if (c_.post_norm || norms_sums) norm(prefix, names_.attention_post_norm, &layer->attention_post_norm);
  if (c_.pre_norm && c_.residual != ResidualKind::kParallelSharedNorm) norm(prefix, names_.mlp_norm, &layer->mlp_norm);
  const bool has_experts = c_.layer(index).has_experts;
  if (!has_experts || c_.experts.beside_dense) {
    const int64_t size = c_.intermediate_size_of(index);
    const Range columns = is_rank_ ? share_.mlp_of(index) : Range{0, size};
    load_mlp({prefix, names_.gate, names_.up, names_.gate_up, names_.down}, size, columns, layer);
  }
  if (has_experts) load_experts(prefix, layer);
  if (has_experts && c_.experts.shared_intermediate_size > 0) load_shared_expert(prefix, layer);
  if (has_experts && c_.experts.beside_dense) load_norms_beside_dense(prefix, layer);
  if (c_.post_norm || norms_sums) norm(prefix, names_.mlp_post_norm, &layer->mlp_post_norm);
  if (c_.hidden_size_per_layer_input > 0) {
    Parts gate, projection;
    add_projection(prefix, names_.input_gate, c_.hidden_size_per_layer_input, c_.hidden_size, false, &gate);
    layer->input_gate = make(gate);
    add_projection(prefix, names_.input_projection, c_.hidden_size, c_.hidden_size_per_layer_input, false, &projection);
    layer->input_projection = make(projection);
    norm(prefix, names_.input_post_norm, &layer->input_post_norm);
  }
  if (c_.layer_scalars) layer->scalar = vector(prefix + names_.layer_scalar, 1);
}

void Loader::load_layer_inputs(const std::string& prefix, ModelWeights* weights) {
  const int64_t size = c_.hidden_size_per_layer_input, all = size * c_.num_hidden_layers;
  Parts table, projection;
  table.add(reader_.tensor(prefix + names_.embed_layer_inputs + ".weight", {c_.vocab_size_per_layer_input, all}), {},
            false);
  table = rows_of(table, share_.vocab);
  if (reader_.status().ok())
    weights->embed_layer_inputs =
        maker_.make_table_columns(table.weights, share_.layers.begin * size, share_.layers.count() * size);
  reader_.release();
  add_projection(prefix, names_.project_layer_inputs, all, c_.hidden_size, false, &projection);
  weights->project_layer_inputs = make(projection);
  weights->num_layer_inputs = c_.num_hidden_layers;
  weights->layer_inputs_norm.weight =
      vector(prefix + names_.layer_inputs_norm + ".weight", size, c_.norm_weight_offset);
}

Result<ModelWeights> Loader::load() {
  ModelWeights weights;
  const std::string prefix = reader_.find("", names_.prefix, (std::string(names_.embed_tokens) + ".weight").c_str());
  if (names_.older != nullptr && reader_.has(prefix + names_.older->embedding_norm + ".weight")) names_ = *names_.older;
  const std::string head = reader_.find("", names_.lm_head, ".weight");
  const bool has_head = !c_.tie_word_embeddings || (c_.tied_unless_stored && reader_.has(head + ".weight"));
  if (share_.embeds || (share_.draws && (!has_head || c_.mtp.is_used)))  // the layer behind the last one embeds, too
    weights.embed_tokens = table(prefix + names_.embed_tokens, c_.vocab_size, WeightRole::kVocabulary);
  // The largest come first, when there is least else in memory beside what they are made of.
  if (has_head && share_.draws)
    weights.lm_head = table(head, c_.vocab_size, WeightRole::kVocabulary, names_.lm_head_bias);
  if (c_.learned_positions && share_.embeds) weights.embed_positions = load_positions(prefix);
  if (c_.num_token_types > 0 && share_.embeds)
    weights.embed_types = table(prefix + names_.embed_types, c_.num_token_types, WeightRole::kSmall);
  if (c_.embedding_norm && share_.embeds) norm(prefix, names_.embedding_norm, &weights.embedding_norm);
  if (c_.hidden_size_per_layer_input > 0) load_layer_inputs(prefix, &weights);
  for (auto i = static_cast<int32_t>(share_.layers.begin); i < share_.layers.end && reader_.status().ok(); ++i)
    load_layer(i, prefix + names_.layers + "." + std::to_string(i) + ".", &weights.layers.emplace_back());
  if (c_.final_norm && share_.draws) norm(prefix, names_.norm, &weights.norm);
  if (c_.mtp.is_used && !c_.mtp.is_apart() && share_.draws)
    load_mtp(prefix, has_head ? head : prefix + names_.embed_tokens, &weights);
  LLMB_RETURN_IF_ERROR(reader_.status());
  return weights;
}

namespace {

template <typename T>
int64_t bytes_of(const std::unique_ptr<T>& weight) {
  return weight ? weight->resident_bytes() : 0;
}
template <typename T>
int64_t bytes_of(const std::vector<std::unique_ptr<T>>& weights) {
  int64_t bytes = 0;
  for (const auto& weight : weights) bytes += bytes_of(weight);
  return bytes;
}
int64_t bytes_of(const NormWeights& norm) { return bytes_of(norm.weight) + bytes_of(norm.bias); }

}  // namespace

int64_t ModelWeights::resident_bytes() const {
  int64_t bytes = bytes_of(embed_tokens) + bytes_of(embed_positions) + bytes_of(embed_types) +
                  bytes_of(embedding_norm) + bytes_of(norm) + bytes_of(lm_head) + bytes_of(embed_layer_inputs) +
                  bytes_of(project_layer_inputs) + bytes_of(layer_inputs_norm) +
                  bytes_of(mtp.embedding_norm) + bytes_of(mtp.hidden_norm) +
                  bytes_of(mtp.from_embedding) + bytes_of(mtp.from_hidden) + bytes_of(mtp.norm) + bytes_of(mtp.lm_head) +
                  bytes_of(mtp.hidden_qkv);
  for (const auto& weight : mtp.from_states) bytes += bytes_of(weight);
  for (const LayerWeights& l : layers)
    bytes += bytes_of(l.input_norm) + bytes_of(l.qkv) + bytes_of(l.q_norm) + bytes_of(l.k_norm) + bytes_of(l.sinks) +
             bytes_of(l.o) + bytes_of(l.attention_post_norm) + bytes_of(l.mlp_norm) + bytes_of(l.gate_up) +
             bytes_of(l.down) + bytes_of(l.mlp_post_norm) + bytes_of(l.router) + bytes_of(l.choice_bias) +
             bytes_of(l.experts) + bytes_of(l.shared_gate) + bytes_of(l.mixed_gate) + bytes_of(l.state_gates) +
             bytes_of(l.conv) + bytes_of(l.conv_bias) + bytes_of(l.log_a) + bytes_of(l.dt_bias) + bytes_of(l.skip) +
             bytes_of(l.conv_gate) + bytes_of(l.state_norms) + bytes_of(l.v_norm) + bytes_of(l.input_gate) +
             bytes_of(l.input_projection) + bytes_of(l.input_post_norm) + bytes_of(l.scalar) + bytes_of(l.q_a) +
             bytes_of(l.kv_a) + bytes_of(l.q_a_norm) + bytes_of(l.kv_a_norm) + bytes_of(l.key_heads) +
             bytes_of(l.value_heads) + bytes_of(l.expert_scales) + bytes_of(l.router_norm) + bytes_of(l.experts_norm) +
             bytes_of(l.dense_post_norm) + bytes_of(l.experts_post_norm);
  return bytes;
}

Status check_model_weights(const ModelConfig& config, WeightSource& shapes) {
  NoWeights maker;
  return load_model_weights(config, shapes, maker).status();
}

Result<ModelWeights> load_model_weights(const ModelConfig& config, WeightSource& source, WeightMaker& maker,
                                        const ModelShare* share) {
  const Architecture* architecture = find_architecture(config.model_type);
  LLMB_CHECK_MSG(architecture != nullptr, config.model_type);
  return Loader(config, architecture->weights, source, maker, share).load();
}

int64_t stored_weight_bytes(const ModelConfig& config) {
  // num_stored_matmul_params counts the LM head; untied, the embedding comes on top. Norms and biases are noise.
  const int64_t embedding = config.tie_word_embeddings ? 0 : int64_t{config.vocab_size} * config.hidden_size;
  const int64_t inputs =
      int64_t{config.vocab_size_per_layer_input} * config.hidden_size_per_layer_input * config.num_hidden_layers;
  return (config.num_stored_matmul_params() + embedding + inputs) * dtype_bytes(config.dtype);
}

}  // namespace llmb
