#include "model/model_weights.h"

#include <string>
#include <utility>

#include "base/check.h"
#include "model/architecture.h"
#include "model/weight_reader.h"

namespace llmb {

namespace {

// Matrices that become one, with their biases.
struct Parts {
  std::vector<TensorView> weights, biases;

  void add(const TensorView& weight, const TensorView& bias, bool has_bias) {
    weights.push_back(weight);
    if (has_bias) biases.push_back(bias);
  }
};

// All experts of a layer in one tensor each; no rows where they are stored otherwise.
struct StackedExperts {
  TensorView gate_up, gate_up_bias, down, down_bias;

  bool is_used() const { return gate_up.rows > 0 || gate_up_bias.rows > 0; }
};

class Loader {
  struct Qkv {
    Parts q, k, v;
  };

 public:
  Loader(const ModelConfig& config, const WeightNames& names, WeightSource& source, WeightMaker& maker)
      : c_(config), names_(names), reader_(source), maker_(maker) {
    if (!source.has_common_layout()) return;
    names_.is_transposed = false;
    names_.qkv_order = QkvOrder::kStacked;
    names_.is_interleaved = false;
    names_.experts_layout = ExpertsLayout::kStacked;
  }

  Result<ModelWeights> load();

 private:
  void load_layer(int32_t index, const std::string& prefix, LayerWeights* layer);
  std::unique_ptr<LinearWeight> load_positions(const std::string& prefix);
  void load_mlp(const std::string& prefix, LayerWeights* layer);
  void load_experts(const std::string& prefix, LayerWeights* layer);
  std::string find_experts(const std::string& prefix) const;
  StackedExperts read_stacked(const std::string& name);
  void add_expert(const std::string& name, const StackedExperts& stacked, int32_t index, Parts* gate_up, Parts* down);
  void add_interleaved_expert(const std::string& name, const StackedExperts& stacked, int32_t index, Parts* gate_up,
                              Parts* down);

  void norm(const std::string& prefix, const char* names, NormWeights* out);
  std::unique_ptr<DeviceBuffer> vector(const std::string& name, int64_t size, double offset = 0);
  void add_projection(const std::string& prefix, const char* names, int64_t rows, int64_t cols, bool has_bias,
                      Parts* out);
  Qkv split_qkv(const Parts& all) const;
  Parts read_qkv(const std::string& prefix);
  TensorView pairs_apart(const TensorView& view);  // of q and k, where rope turns neighbouring channels together
  std::unique_ptr<LinearWeight> table(const std::string& name, int64_t rows, WeightRole role, bool has_bias = false);
  // Null after an error.
  std::unique_ptr<LinearWeight> make(const Parts& parts, WeightRole role = WeightRole::kProjection);

  const ModelConfig& c_;
  WeightNames names_;
  WeightReader reader_;
  WeightMaker& maker_;
};

std::unique_ptr<LinearWeight> Loader::make(const Parts& parts, WeightRole role) {
  std::unique_ptr<LinearWeight> weight;
  if (reader_.status().ok()) weight = maker_.make_linear(parts.weights, parts.biases, role);
  reader_.release();
  return weight;
}

std::unique_ptr<DeviceBuffer> Loader::vector(const std::string& name, int64_t size, double offset) {
  std::unique_ptr<DeviceBuffer> buffer;
  const TensorView values = reader_.plus(reader_.tensor(name, {size}), offset);
  if (reader_.status().ok()) buffer = maker_.make_vector(values);
  reader_.release();
  return buffer;
}

void Loader::norm(const std::string& prefix, const char* names, NormWeights* out) {
  if (names == nullptr) {
    const std::vector<float> ones(static_cast<size_t>(c_.hidden_size), 1);
    out->weight = maker_.make_vector({ones.data(), DType::kF32, 1, c_.hidden_size});
    return;
  }
  const std::string name = reader_.find(prefix, names, ".weight");
  out->weight = vector(name + ".weight", c_.hidden_size, c_.norm_weight_offset);
  if (c_.norm_bias) out->bias = vector(name + ".bias", c_.hidden_size);
}

std::unique_ptr<LinearWeight> Loader::table(const std::string& name, int64_t rows, WeightRole role, bool has_bias) {
  Parts parts;
  parts.add(reader_.tensor(name + ".weight", {rows, c_.hidden_size}),
            has_bias ? reader_.tensor(name + ".bias", {rows}) : TensorView(), has_bias);
  return make(parts, role);
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

Parts Loader::read_qkv(const std::string& prefix) {
  Qkv qkv;
  const int64_t hidden = c_.hidden_size;
  if (names_.qkv == nullptr) {
    add_projection(prefix, names_.q, c_.q_size(), hidden, c_.qkv_bias, &qkv.q);
    add_projection(prefix, names_.k, c_.kv_size(), hidden, c_.qkv_bias, &qkv.k);
    add_projection(prefix, names_.v, c_.kv_size(), hidden, c_.qkv_bias, &qkv.v);
  } else {
    Parts all;
    add_projection(prefix, names_.qkv, c_.q_size() + 2 * c_.kv_size(), hidden, c_.qkv_bias, &all);
    if (!reader_.status().ok()) return all;
    qkv = split_qkv(all);
  }
  for (Parts* parts : {&qkv.q, &qkv.k}) {
    for (TensorView& weight : parts->weights) weight = pairs_apart(weight);
    for (TensorView& bias : parts->biases) bias = pairs_apart(bias);
  }
  Parts parts;
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
  const int64_t first = names_.first_position, count = c_.max_position_embeddings;
  Parts parts;
  const std::string name = prefix + names_.embed_positions + ".weight";
  parts.add(slice_rows(reader_.tensor(name, {first + count, c_.hidden_size}), first, count), {}, false);
  return make(parts, WeightRole::kSmall);
}

void Loader::load_mlp(const std::string& prefix, LayerWeights* layer) {
  const int64_t hidden = c_.hidden_size, intermediate = c_.intermediate_size;
  Parts gate_up, down;
  if (c_.activation.gated && names_.gate_up != nullptr) {
    add_projection(prefix, names_.gate_up, 2 * intermediate, hidden, c_.mlp_bias, &gate_up);
  } else {
    if (c_.activation.gated) add_projection(prefix, names_.gate, intermediate, hidden, c_.mlp_bias, &gate_up);
    add_projection(prefix, names_.up, intermediate, hidden, c_.mlp_bias, &gate_up);
  }
  layer->gate_up = make(gate_up);
  add_projection(prefix, names_.down, hidden, intermediate, c_.mlp_bias, &down);
  layer->down = make(down);
}

// The experts' folder: where either form of them is.
std::string Loader::find_experts(const std::string& prefix) const {
  const std::string one_by_one = std::string(".0.") + names_.expert_gate + ".weight";
  const std::string name = reader_.find(prefix, names_.experts, one_by_one.c_str());
  return reader_.has(name + one_by_one) ? name : reader_.find(prefix, names_.experts, names_.stacked_gate_up);
}

StackedExperts Loader::read_stacked(const std::string& name) {
  StackedExperts s;
  const int64_t count = c_.experts.num_experts, hidden = c_.hidden_size, wide = 2 * c_.experts.intermediate_size;
  if (names_.experts_layout == ExpertsLayout::kInterleaved) {
    s.gate_up_bias = reader_.tensor(name + ".gate_up_proj_bias", {count, wide});
    s.down_bias = reader_.tensor(name + ".down_proj_bias", {count, hidden});
    if (reader_.has(name + ".gate_up_proj_blocks")) return s;
    s.gate_up = reader_.tensor(name + ".gate_up_proj", {count, hidden, wide});
    s.down = reader_.tensor(name + ".down_proj", {count, wide / 2, hidden});
  } else if (!reader_.has(name + ".0." + names_.expert_gate + ".weight") && reader_.has(name + names_.stacked_gate_up)) {
    s.gate_up = reader_.tensor(name + names_.stacked_gate_up, {count, wide, hidden});
    s.down = reader_.tensor(name + names_.stacked_down, {count, hidden, wide / 2});
  }
  return s;
}

void Loader::add_expert(const std::string& name, const StackedExperts& stacked, int32_t index, Parts* gate_up,
                        Parts* down) {
  const int64_t hidden = c_.hidden_size, intermediate = c_.experts.intermediate_size, wide = 2 * intermediate;
  if (names_.experts_layout == ExpertsLayout::kInterleaved)
    return add_interleaved_expert(name, stacked, index, gate_up, down);
  if (stacked.gate_up.rows > 0) {
    gate_up->add(slice_rows(stacked.gate_up, index * wide, wide), {}, false);
    down->add(slice_rows(stacked.down, index * hidden, hidden), {}, false);
    return;
  }
  const std::string one = name + "." + std::to_string(index) + ".";
  add_projection(one, names_.expert_gate, intermediate, hidden, c_.experts.bias, gate_up);
  add_projection(one, names_.expert_up, intermediate, hidden, c_.experts.bias, gate_up);
  add_projection(one, names_.expert_down, hidden, intermediate, c_.experts.bias, down);
}

// Gate and up in turn: gate is every other row from 0 on, up from 1 on.
void Loader::add_interleaved_expert(const std::string& name, const StackedExperts& stacked, int32_t index,
                                    Parts* gate_up, Parts* down) {
  const int64_t count = c_.experts.num_experts, hidden = c_.hidden_size, wide = 2 * c_.experts.intermediate_size;
  const auto matrix = [&](const char* part, const TensorView& all, int64_t rows, int64_t cols) {
    if (all.rows == 0) return reader_.mxfp4(name + part, index, count, rows, cols);
    return reader_.transposed(slice_rows(all, index * cols, cols));
  };
  const TensorView both = matrix(".gate_up_proj", stacked.gate_up, wide, hidden);
  const TensorView biases = slice_vector(stacked.gate_up_bias, index * wide, wide);
  for (const int64_t begin : {0, 1}) gate_up->add(reader_.every(both, begin, 2), reader_.every(biases, begin, 2), true);
  down->add(matrix(".down_proj", stacked.down, hidden, wide / 2),
            slice_vector(stacked.down_bias, index * hidden, hidden), true);
}

void Loader::load_experts(const std::string& prefix, LayerWeights* layer) {
  Parts router;
  const std::string router_name = reader_.find(prefix, names_.router, ".weight");
  router.add(reader_.tensor(router_name + ".weight", {c_.experts.num_experts, c_.hidden_size}),
             c_.experts.bias ? reader_.tensor(router_name + ".bias", {c_.experts.num_experts}) : TensorView(),
             c_.experts.bias);
  layer->router = make(router, WeightRole::kSmall);
  const std::string name = find_experts(prefix);
  const StackedExperts stacked = read_stacked(name);
  std::vector<std::unique_ptr<LinearWeight>> gate_up, down;
  for (int32_t i = 0; i < c_.experts.num_experts && reader_.status().ok(); ++i) {
    Parts first, second;
    add_expert(name, stacked, i, &first, &second);
    if (!reader_.status().ok()) return;
    gate_up.push_back(maker_.make_linear(first.weights, first.biases, WeightRole::kProjection));
    down.push_back(maker_.make_linear(second.weights, second.biases, WeightRole::kProjection));
    if (stacked.is_used()) reader_.release_copies();
    else reader_.release();
  }
  reader_.release();
  if (reader_.status().ok()) layer->experts = maker_.make_experts(std::move(gate_up), std::move(down));
}

void Loader::load_layer(int32_t index, const std::string& prefix, LayerWeights* layer) {
  if (c_.pre_norm) norm(prefix, names_.input_norm, &layer->input_norm);
  layer->qkv = make(read_qkv(prefix));
  if (c_.qk_norm != QkNorm::kNone) {
    const bool per_head = c_.qk_norm == QkNorm::kPerHead;
    const auto head_norm = [&](const char* name, int64_t all_heads) {
      LLMB_CHECK(!names_.is_interleaved);  // else its channels would be in another order than those of q and k
      return vector(prefix + name + ".weight", per_head ? c_.head_dim : all_heads, c_.norm_weight_offset);
    };
    layer->q_norm = head_norm(names_.q_norm, c_.q_size());
    layer->k_norm = head_norm(names_.k_norm, c_.kv_size());
  }
  if (c_.attention_sinks) layer->sinks = vector(prefix + names_.sinks, c_.num_attention_heads);
  Parts o;
  add_projection(prefix, names_.o, c_.hidden_size, c_.q_size(), c_.o_bias, &o);
  layer->o = make(o);
  if (c_.post_norm) norm(prefix, names_.attention_post_norm, &layer->attention_post_norm);
  if (c_.pre_norm && c_.residual != ResidualKind::kParallelSharedNorm) norm(prefix, names_.mlp_norm, &layer->mlp_norm);
  if (c_.layer(index).has_experts) load_experts(prefix, layer);
  else load_mlp(prefix, layer);
  if (c_.post_norm) norm(prefix, names_.mlp_post_norm, &layer->mlp_post_norm);
}

Result<ModelWeights> Loader::load() {
  ModelWeights weights;
  const std::string prefix = reader_.find("", names_.prefix, (std::string(names_.embed_tokens) + ".weight").c_str());
  weights.embed_tokens = table(prefix + names_.embed_tokens, c_.vocab_size, WeightRole::kVocabulary);
  // The largest come first, when there is least else in memory beside what they are made of.
  const std::string head = reader_.find("", names_.lm_head, ".weight");
  if (!c_.tie_word_embeddings || (c_.tied_unless_stored && reader_.has(head + ".weight")))
    weights.lm_head = table(head, c_.vocab_size, WeightRole::kVocabulary, names_.lm_head_bias);
  if (c_.learned_positions) weights.embed_positions = load_positions(prefix);
  if (c_.embedding_norm) norm(prefix, names_.embedding_norm, &weights.embedding_norm);
  for (int32_t i = 0; i < c_.num_hidden_layers && reader_.status().ok(); ++i)
    load_layer(i, prefix + names_.layers + "." + std::to_string(i) + ".", &weights.layers.emplace_back());
  norm(prefix, names_.norm, &weights.norm);
  LLMB_RETURN_IF_ERROR(reader_.status());
  return weights;
}

template <typename T>
int64_t bytes_of(const std::unique_ptr<T>& weight) {
  return weight ? weight->resident_bytes() : 0;
}
int64_t bytes_of(const NormWeights& norm) { return bytes_of(norm.weight) + bytes_of(norm.bias); }

}  // namespace

int64_t ModelWeights::resident_bytes() const {
  int64_t bytes = bytes_of(embed_tokens) + bytes_of(embed_positions) + bytes_of(embedding_norm) + bytes_of(norm) +
                  bytes_of(lm_head);
  for (const LayerWeights& l : layers)
    bytes += bytes_of(l.input_norm) + bytes_of(l.qkv) + bytes_of(l.q_norm) + bytes_of(l.k_norm) + bytes_of(l.sinks) +
             bytes_of(l.o) + bytes_of(l.attention_post_norm) + bytes_of(l.mlp_norm) + bytes_of(l.gate_up) +
             bytes_of(l.down) + bytes_of(l.mlp_post_norm) + bytes_of(l.router) + bytes_of(l.experts);
  return bytes;
}

namespace {

// Makes nothing of anything.
class NoWeights final : public WeightMaker {
 public:
  std::unique_ptr<LinearWeight> make_linear(std::span<const TensorView>, std::span<const TensorView>,
                                            WeightRole) override {
    return {};
  }
  std::unique_ptr<ExpertsWeight> make_experts(std::vector<std::unique_ptr<LinearWeight>>,
                                              std::vector<std::unique_ptr<LinearWeight>>) override {
    return {};
  }
  std::unique_ptr<DeviceBuffer> make_vector(const TensorView&) override { return {}; }
};

}  // namespace

Status check_model_weights(const ModelConfig& config, WeightSource& shapes) {
  NoWeights maker;
  return load_model_weights(config, shapes, maker).status();
}

Result<ModelWeights> load_model_weights(const ModelConfig& config, WeightSource& source, WeightMaker& maker) {
  const Architecture* architecture = find_architecture(config.model_type);
  LLMB_CHECK_MSG(architecture != nullptr, config.model_type);
  return Loader(config, architecture->weights, source, maker).load();
}

int64_t stored_weight_bytes(const ModelConfig& config) {
  // num_stored_matmul_params counts the LM head; untied, the embedding comes on top. Norms and biases are noise.
  const int64_t embedding = config.tie_word_embeddings ? 0 : int64_t{config.vocab_size} * config.hidden_size;
  return (config.num_stored_matmul_params() + embedding) * dtype_bytes(config.dtype);
}

}  // namespace llmb
