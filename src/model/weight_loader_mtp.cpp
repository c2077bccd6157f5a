// The layer behind the last one (MtpConfig). Qwen's checkpoints have it in a folder of its own, DeepSeek's and GLM's as
// a further layer.
#include <cstring>
#include <string>

#include "model/weight_loader.h"

namespace llmb {

namespace {

struct MtpNames {
  const char *project, *embedding_norm, *hidden_norm, *norm;
};
constexpr MtpNames kQwen = {"fc", "pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm"};
constexpr MtpNames kDeepSeek = {"eh_proj", "enorm", "hnorm", "shared_head.norm"};

}  // namespace

// [hidden_size, 2 * hidden_size]: the embedding's columns, and behind them the hidden state's.
void Loader::load_mtp_project(const std::string& prefix, const char* name, MtpWeights* mtp) {
  const int64_t hidden = c_.hidden_size;
  const bool has_bias = c_.mtp.is_apart() && reader_.has(prefix + name + ".bias");
  Parts both, from_embedding, from_hidden;
  add_projection(prefix, name, hidden, 2 * hidden, has_bias, &both);
  if (!reader_.status().ok()) return;
  from_embedding.add(reader_.columns(both.weights[0], 0, hidden), {}, false);
  from_hidden.add(reader_.columns(both.weights[0], hidden, hidden), has_bias ? both.biases[0] : TensorView(), has_bias);
  mtp->from_embedding = maker_.make_linear(from_embedding.weights, {}, WeightRole::kProjection);
  mtp->from_hidden = make(from_hidden);
}

// As published: no norm but the one in front of the MLP.
Status Loader::load_eagle(ModelWeights* weights) {
  load_mtp_project("", "fc", &weights->mtp);
  load_layer(0, "layers.0.", &weights->layers.emplace_back());
  return reader_.status();
}

// q, k and v see the embedding's norm and the state's, side by side: a matrix for each here.
Status Loader::load_eagle3(int64_t num_head_tokens, ModelWeights* weights) {
  const int64_t hidden = c_.hidden_size, size = c_.intermediate_size;
  const std::string prefix = reader_.find("", "midlayer.|layers.0.", "hidden_norm.weight");
  MtpWeights& mtp = weights->mtp;
  Parts all, of_embedding, of_hidden;
  add_projection("", "fc", hidden, 3 * hidden, false, &all);
  for (int64_t i = 0; i < 3 && reader_.status().ok(); ++i) {
    const TensorView columns = reader_.columns(all.weights[0], i * hidden, hidden);
    mtp.from_states[static_cast<size_t>(i)] = maker_.make_linear({&columns, 1}, {}, WeightRole::kProjection);
  }
  reader_.release();
  norm(prefix, "input_layernorm", &mtp.embedding_norm);
  norm(prefix, "hidden_norm", &mtp.hidden_norm);
  LayerWeights& layer = weights->layers.emplace_back();
  Parts qkv;
  add_projection(prefix, names_.q, c_.q_size(), 2 * hidden, c_.qkv_bias, &qkv);
  for (const char* const name : {names_.k, names_.v})
    add_projection(prefix, name, c_.kv_size(), 2 * hidden, c_.qkv_bias, &qkv);
  if (!reader_.status().ok()) return reader_.status();
  for (const TensorView& weight : qkv.weights) {
    of_embedding.add(reader_.columns(weight, 0, hidden), {}, false);
    of_hidden.add(reader_.columns(weight, hidden, hidden), {}, false);
  }
  layer.qkv = maker_.make_linear(of_embedding.weights, qkv.biases, WeightRole::kProjection);
  mtp.hidden_qkv = make(of_hidden);
  Parts o;
  add_projection(prefix, names_.o, hidden, c_.o_size_of(0), c_.o_bias, &o);
  layer.o = make(o);
  norm(prefix, names_.mlp_norm, &layer.mlp_norm);
  load_mlp({prefix, names_.gate, names_.up, names_.gate_up, names_.down}, size, {0, size}, &layer);
  norm("", "norm", &mtp.norm);
  Parts head;
  add_projection("", "lm_head", num_head_tokens, hidden, false, &head);
  mtp.lm_head = make(head, WeightRole::kVocabulary);
  return reader_.status();
}

// A further layer comes with copies of embedding and head. A head that is none is kept.
void Loader::load_mtp(const std::string& prefix, const std::string& head, ModelWeights* weights) {
  const std::string layer = prefix + names_.layers + "." + std::to_string(c_.num_hidden_layers) + ".";
  const std::string own_folder = reader_.find("", "mtp.|model.mtp.", "fc.weight");
  const bool is_folder = reader_.has(own_folder + "fc.weight") || c_.has_states();
  const std::string folder = is_folder ? own_folder : layer;
  const MtpNames& names = is_folder ? kQwen : kDeepSeek;
  const int64_t hidden = c_.hidden_size;
  MtpWeights& mtp = weights->mtp;
  norm(folder, names.embedding_norm, &mtp.embedding_norm);
  norm(folder, names.hidden_norm, &mtp.hidden_norm);
  load_mtp_project(folder, names.project, &mtp);
  if (!reader_.status().ok()) return;
  load_layer(c_.num_hidden_layers, is_folder ? folder + "layers.0." : layer, &weights->layers.emplace_back());
  norm(folder, names.norm, &mtp.norm);
  const std::string own_head = layer + "shared_head.head.weight";
  if (is_folder || !reader_.has(own_head)) return;
  const TensorView own = reader_.read(reader_.tensor(own_head, {c_.vocab_size, hidden}));
  const TensorView shared = reader_.read(reader_.tensor(head + ".weight", {c_.vocab_size, hidden}));
  if (!reader_.status().ok()) return;
  const auto bytes = static_cast<size_t>(own.rows * own.row_bytes());
  const bool is_alike = own.dtype == shared.dtype && own.blocks == shared.blocks;
  const bool is_copy = own.data == nullptr || (is_alike && std::memcmp(own.data, shared.data, bytes) == 0);
  if (!is_copy) mtp.lm_head = maker_.make_linear({&own, 1}, {}, WeightRole::kVocabulary);
  reader_.release();
}

}  // namespace llmb
