// The layer behind the last one (MtpConfig). Qwen's checkpoints have it in a folder of its own, DeepSeek's and GLM's as
// a further layer.
#include <cstring>
#include <span>
#include <string>
#include <utility>

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
void Loader::load_eagle3_qkv(const std::string& prefix, ModelWeights* weights) {
  const int64_t hidden = c_.hidden_size, d = c_.head_dim;
  Parts qkv, of_embedding, of_hidden;
  const auto add = [&](const char* name, int64_t rows, const Range& heads) {
    Parts all;
    add_projection(prefix, name, rows, 2 * hidden, c_.qkv_bias, &all);
    const Parts own = rows_of(all, {heads.begin * d, heads.end * d});
    qkv.weights.insert(qkv.weights.end(), own.weights.begin(), own.weights.end());
    qkv.biases.insert(qkv.biases.end(), own.biases.begin(), own.biases.end());
  };
  add(names_.q, c_.q_size(), share_.q_heads);
  for (const char* const name : {names_.k, names_.v}) add(name, c_.kv_size(), share_.kv_heads);
  if (!reader_.status().ok()) return;
  for (const TensorView& weight : qkv.weights) {
    of_embedding.add(reader_.columns(weight, 0, hidden), {}, false);
    of_hidden.add(reader_.columns(weight, hidden, hidden), {}, false);
  }
  weights->layers.back().qkv = maker_.make_linear(of_embedding.weights, qkv.biases, WeightRole::kProjection);
  weights->mtp.hidden_qkv = make(of_hidden);
}

// A rank has the rows of its part of the vocabulary; where there are none, one that stands for no token.
void Loader::load_eagle3_head(int64_t num_rows, std::span<const TokenId> tokens, MtpWeights* mtp) {
  Parts all, own;
  add_projection("", "lm_head", num_rows, c_.hidden_size, false, &all);
  mtp->head_tokens.assign(tokens.begin(), tokens.end());
  if (!is_rank_ || tokens.empty() || !reader_.status().ok()) {
    mtp->lm_head = make(tokens.empty() ? rows_of(all, share_.vocab) : all, WeightRole::kVocabulary);
    return;
  }
  mtp->head_tokens.clear();
  const auto add_rows = [&](int64_t begin, int64_t end) {
    if (begin < end) own.add(slice_rows(all.weights[0], begin, end - begin), {}, false);
  };
  int64_t begin = 0;  // of rows that lie side by side
  for (int64_t i = 0; i < num_rows; ++i) {
    const TokenId token = tokens[static_cast<size_t>(i)];
    if (share_.vocab.holds(token)) {
      mtp->head_tokens.push_back(static_cast<TokenId>(token - share_.vocab.begin));
      continue;
    }
    add_rows(begin, i);
    begin = i + 1;
  }
  add_rows(begin, num_rows);
  if (mtp->head_tokens.empty()) {
    mtp->head_tokens.push_back(-1);
    add_rows(0, 1);
  }
  mtp->lm_head = make(own, WeightRole::kVocabulary);
}

Status Loader::load_eagle3(int64_t num_head_rows, std::span<const TokenId> head_tokens, ModelWeights* weights) {
  const int64_t hidden = c_.hidden_size, size = c_.intermediate_size;
  const std::string prefix = reader_.find("", "midlayer.|layers.0.", "hidden_norm.weight");
  MtpWeights& mtp = weights->mtp;
  Parts all;
  add_projection("", "fc", hidden, 3 * hidden, false, &all);
  for (int64_t i = 0; i < 3 && reader_.status().ok(); ++i) {
    const TensorView columns = reader_.columns(all.weights[0], i * hidden, hidden);
    mtp.from_states[static_cast<size_t>(i)] = maker_.make_linear({&columns, 1}, {}, WeightRole::kProjection);
  }
  reader_.release();
  norm(prefix, "input_layernorm", &mtp.embedding_norm);
  norm(prefix, "hidden_norm", &mtp.hidden_norm);
  LayerWeights& layer = weights->layers.emplace_back();
  load_eagle3_qkv(prefix, weights);
  Parts o;
  add_projection(prefix, names_.o, hidden, c_.o_size_of(0), c_.o_bias, &o);
  layer.o = make_sum(std::move(o), {share_.q_heads.begin * c_.head_dim, share_.q_heads.end * c_.head_dim});
  norm(prefix, names_.mlp_norm, &layer.mlp_norm);
  load_mlp({prefix, names_.gate, names_.up, names_.gate_up, names_.down}, size, share_.mlp, &layer);
  norm("", "norm", &mtp.norm);
  load_eagle3_head(num_head_rows, head_tokens, &mtp);
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
  const auto read_rows = [&](const std::string& name) {
    const TensorView all = reader_.tensor(name, {c_.vocab_size, hidden});
    return reader_.read(is_rank_ && reader_.status().ok()
                            ? slice_rows(all, share_.vocab.begin, share_.vocab.count())
                            : all);
  };
  const TensorView own = read_rows(own_head), shared = read_rows(head + ".weight");
  if (!reader_.status().ok()) return;
  const auto bytes = static_cast<size_t>(own.rows * own.row_bytes());
  const bool is_alike = own.dtype == shared.dtype && own.blocks == shared.blocks;
  const bool is_copy = own.data == nullptr || (is_alike && std::memcmp(own.data, shared.data, bytes) == 0);
  if (!is_copy) mtp.lm_head = maker_.make_linear({&own, 1}, {}, WeightRole::kVocabulary);
  reader_.release();
}

}  // namespace llmb
