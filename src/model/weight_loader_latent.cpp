// Latent attention: projections in the order in which the forward pass takes their rows, and the matrices that are
// absorbed into queries and values, head by head.
#include <string>

#include "model/weight_loader.h"

namespace llmb {

void Loader::load_latent(const std::string& prefix, LayerWeights* layer) {
  const LatentConfig& l = c_.latent;
  const int64_t heads = c_.num_attention_heads, hidden = c_.hidden_size, rope = l.rope_dim;
  const auto rotated = [&](const TensorView& view) {
    return l.is_interleaved ? reader_.pairs_apart(view, rope, rope) : view;
  };
  int64_t in = hidden;
  if (l.query_rank > 0) {
    Parts first;
    add_projection(prefix, names_.q_a, l.query_rank, hidden, c_.qkv_bias, &first);
    layer->q_a = make(first);
    layer->q_a_norm.weight = vector(prefix + names_.q_a_norm + ".weight", l.query_rank);
    in = l.query_rank;
  }
  Parts q, by_head, kv, rope_first;
  add_projection(prefix, l.query_rank > 0 ? names_.q_b : names_.q, heads * l.query_dim(), in, false, &q);
  for (int64_t h = share_.q_heads.begin; h < share_.q_heads.end; ++h) {
    const TensorView all = slice_rows(q.weights[0], h * l.query_dim(), l.query_dim());
    by_head.add(slice_rows(all, 0, l.key_dim), {}, false);
    by_head.add(rotated(slice_rows(all, l.key_dim, rope)), {}, false);
  }
  layer->qkv = make(by_head);
  add_projection(prefix, names_.kv_a, l.rank + rope, hidden, c_.qkv_bias, &kv);
  const TensorView bias = c_.qkv_bias ? kv.biases[0] : TensorView();
  rope_first.add(rotated(slice_rows(kv.weights[0], l.rank, rope)),
                 c_.qkv_bias ? rotated(slice_vector(bias, l.rank, rope)) : bias, c_.qkv_bias);
  rope_first.add(slice_rows(kv.weights[0], 0, l.rank), c_.qkv_bias ? slice_vector(bias, 0, l.rank) : bias, c_.qkv_bias);
  layer->kv_a = make(rope_first);
  layer->kv_a_norm.weight = vector(prefix + names_.kv_a_norm + ".weight", l.rank);
  load_latent_heads(prefix, layer);
}

void Loader::load_latent_heads(const std::string& prefix, LayerWeights* layer) {
  const LatentConfig& l = c_.latent;
  const int64_t heads = c_.num_attention_heads, both = l.key_dim + l.value_dim;
  const std::string k_name = prefix + names_.k_b + ".weight", v_name = prefix + names_.v_b + ".weight";
  const bool is_apart = reader_.has(k_name);
  TensorView all, keys, values;
  if (is_apart) {
    keys = reader_.tensor(k_name, {heads, l.rank, l.key_dim});
    values = reader_.tensor(v_name, {heads, l.value_dim, l.rank});
  } else {
    all = reader_.tensor(prefix + names_.kv_b + ".weight", {heads * both, l.rank});
  }
  for (int64_t h = share_.q_heads.begin; h < share_.q_heads.end && reader_.status().ok(); ++h) {
    const TensorView key =
        is_apart ? slice_rows(keys, h * l.rank, l.rank) : reader_.transposed(slice_rows(all, h * both, l.key_dim));
    const TensorView value = is_apart ? slice_rows(values, h * l.value_dim, l.value_dim)
                                      : slice_rows(all, h * both + l.key_dim, l.value_dim);
    layer->key_heads.push_back(maker_.make_linear({&key, 1}, {}, WeightRole::kSmall));
    layer->value_heads.push_back(maker_.make_linear({&value, 1}, {}, WeightRole::kSmall));
    reader_.release_copies();
  }
  reader_.release();
}

}  // namespace llmb
