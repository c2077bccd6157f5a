// The computation of a transformer, as data: the forward pass and the backends follow it and know
// no architecture by name. Read from config.json by model/config_loader. Hugging Face's names where it has one.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "core/activation.h"
#include "core/types.h"

namespace llmb {

enum class RopeScalingKind { kNone, kLinear, kLlama3, kDynamic, kYarn, kLongRope, kProportional };

struct RopeScaling {
  RopeScalingKind kind = RopeScalingKind::kNone;
  double factor = 1.0;                            // linear, llama3, dynamic, yarn, proportional
  double low_freq_factor = 1.0;                   // llama3
  double high_freq_factor = 4.0;                  // llama3
  int32_t original_max_position_embeddings = 0;   // llama3, dynamic, yarn, longrope: positions that it was trained on
  double attention_factor = 1.0;                  // yarn, longrope: multiplies cosines and sines
  double beta_fast = 32.0, beta_slow = 1.0;       // yarn
  bool truncate = true;                           // yarn
  double rotated_share = 1.0;  // proportional: of the pairs, the first ones turn, by whole heads' angles
  std::vector<double> short_factor, long_factor;  // [rotary_dim / 2]  longrope
};

// Rotary position embeddings (RoPE).
struct RopeConfig {
  double theta = 10000.0;
  int32_t rotary_dim = 0;  // even; of a head's channels the first so many are rotated; 0: all
  RopeScaling scaling;
};

enum class NormKind { kRms, kLayer };

// Norms of q and k. RMSNorm over each head, or over all heads together; LayerNorm over each head, with weights for
// each; RMSNorm over each head behind the rotation; or RMSNorm over each head without weights, in layers that are
// rotated.
enum class QkNorm { kNone, kPerHead, kAllHeads, kLayerPerHead, kRotatedPerHead, kWeightless };

// kSequential: x += attention(norm(x)), x += mlp(norm'(x)). kParallel: x += attention(norm(x)) + mlp(norm'(x));
// kParallelSharedNorm: with one norm for both. kNormedSum: x = norm(x + attention(x)), x = norm'(x + mlp(x)).
enum class ResidualKind { kSequential, kParallel, kParallelSharedNorm, kNormedSum };

// In place of attention: what a layer keeps of a sequence.
enum class StateKind {
  kNone,
  kGatedDelta,  // a matrix for each value head, which decays and takes up a key and a value with every token, behind a
                // short convolution over q, k and v (Gated DeltaNet: Yang et al. 2024, arXiv:2412.06464)
  kMamba2,      // the same without the delta rule; q, k and v are called C, B and x (Dao and Gu 2024, arXiv:2405.21060)
  kShortConv,   // the newest tokens' inputs of a convolution, gated on both sides (LFM2); one value head as wide as x
};

struct StateConfig {
  StateKind kind = StateKind::kNone;  // of all layers that have a state
  int32_t num_key_heads = 0;
  int32_t num_value_heads = 0;         // a multiple of num_key_heads: neighbours have a key head together
  int32_t key_dim = 0, value_dim = 0;  // of a head
  int32_t conv_width = 0;              // tokens that a convolution sees, its own the last
  bool conv_bias = false;
  int32_t num_norms = 1;  // kMamba2: groups of neighbouring channels that are normed together

  int64_t keys_size() const { return int64_t{num_key_heads} * key_dim; }
  int64_t values_size() const { return int64_t{num_value_heads} * value_dim; }
  int64_t conv_channels() const { return 2 * keys_size() + values_size(); }  // q, k and v
  int64_t gates_size() const {  // of a token: rates and decays, or steps that both follow from
    return kind == StateKind::kGatedDelta ? 2 * num_value_heads : kind == StateKind::kMamba2 ? num_value_heads : 0;
  }
};

// Where layers differ.
struct LayerConfig {
  bool has_state = false;    // in place of attention
  bool has_mixer = true;     // attention or a state; else it is an MLP alone
  bool has_mlp = true;       // or experts; else it is a mixer alone
  int32_t window = 0;        // positions that a token sees, its own the last; 0: all up to its own
  int32_t chunk = 0;         // > 0: positions are cut into chunks so long, and a token sees its own chunk up to itself
  int32_t reach = 0;         // > 0: in an encoder, a token sees so many positions on either side of its own
  int32_t rope = 0;          // index into ModelConfig::ropes; -1: q and k are not rotated
  bool has_experts = false;  // else the MLP is dense
  int32_t head_dim = 0, num_key_value_heads = 0, intermediate_size = 0;  // 0: the model's
  int32_t kv_layer = -1;         // >= 0: an earlier layer whose keys and values it attends to; it has none of its own
  int32_t first_position = 0;    // that tokens see: they see none of the keys and values before it
  bool values_are_keys = false;  // as their projection gives them, without norms and rotation
};

// A router's logits become scores: each expert's share among all by softmax, or the logistic function of its logit.
enum class ExpertScores { kSoftmax, kLogistic };

// A token goes through the experts with the top_k largest scores, and weighs them by their scores.
struct ExpertsConfig {
  int32_t num_experts = 0;  // 0: no layer has any
  int32_t top_k = 0;        // experts of a token
  int32_t intermediate_size = 0;
  bool norm_topk_prob = true;  // a token's weights sum to 1; else they are the scores
  bool bias = false;           // biases on the router and on the experts' projections
  ExpertScores scores = ExpertScores::kSoftmax;
  bool choice_bias = false;  // a number for each expert is added to its score where experts are chosen, not weighed
  // Experts lie in groups of neighbours. A token's are of the top_groups whose best score most together.
  int32_t num_groups = 1, top_groups = 1;
  int32_t scores_of_group = 2;           // so many of a group's best scores are added to judge it
  double weight_scale = 1;               // of the weights
  bool weighs_input = false;             // an expert's input is multiplied by its weight, not what it gives
  int32_t shared_intermediate_size = 0;  // of an expert that all tokens go through; 0: none
  // The layer's dense MLP stands beside its experts. Both are added, a norm behind each; the experts have a norm of
  // their own in front, and their router takes x / rms(x). A number for each expert multiplies its weights.
  bool beside_dense = false;
  bool shared_gate = false;              // its output is multiplied by the logistic function of a product with x
};

// Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434, section 2.1.2), absorbed: of a token all heads see one
// key, `rope_dim` rotated channels and then a latent of `rank`, which is the value as well. A head's query becomes as
// long as that key by a matrix of its own, and what it gathers of the latents becomes a value by another. With it,
// ModelConfig's num_key_value_heads is 1 and its head_dim rope_dim + rank.
struct LatentConfig {
  int32_t rank = 0;  // 0: the model has none
  int32_t rope_dim = 0;
  int32_t key_dim = 0;         // of a head's query before its matrix, rotated channels aside
  int32_t value_dim = 0;       // of a head's value
  int32_t query_rank = 0;      // > 0: queries are projected in two steps, with a norm between
  bool is_interleaved = true;  // rope turns neighbouring channels of a checkpoint together, not those half apart
  double norm_eps = 1e-6;      // of the norms of the latent and of what is between the two steps

  int32_t query_dim() const { return key_dim + rope_dim; }
};

// A layer behind the last one that drafts: one that was trained with the model; or, in a folder of its own
// (model/eagle_layer.h), of EAGLE or EAGLE-3.
enum class DraftLayerKind { kMtp, kEagle, kEagle3 };

// Multi-token prediction (DeepSeek-AI 2024, arXiv:2412.19437, section 2.2): a layer behind the last one predicts the token
// behind the next, from the last hidden state and the next token's embedding. It has the model's head, and it drafts.
struct MtpConfig {
  bool is_known = false;  // checkpoints of the architecture may have such a layer
  bool is_used = false;   // it is loaded, and has keys and values as layer num_hidden_layers
  DraftLayerKind kind = DraftLayerKind::kMtp;
  // kEagle3: it starts from the residual streams that enter these. In the config of a stage of layers they count from its
  // first one, so that those of earlier stages are below 0, and those of later ones beyond its last.
  std::array<int32_t, 3> state_layers = {};
  // Its row of a token is made of the token and of the hidden state before, so that of the first token is none.
  LayerConfig layer = {.first_position = 1};

  bool is_apart() const { return kind != DraftLayerKind::kMtp; }
  bool takes_states() const { return kind == DraftLayerKind::kEagle3; }  // also where another stage has the layer
};

// q of layers that are not rotated grows with its position p: by 1 + scale * ln(1 + floor((p + 1) / step)).
struct QueryGrowth {
  double scale = 0;  // 0: none
  int32_t step = 1;
};

// Invariants, checked by config_loader: all sizes > 0; num_attention_heads % num_key_value_heads == 0; head_dim even;
// vectors have the lengths that are named or are empty.
struct ModelConfig {
  std::string model_type;  // names the architecture; which tensors there are and how they are laid out follows from it
  int32_t vocab_size = 0;
  int32_t hidden_size = 0;
  int32_t intermediate_size = 0;  // of dense MLPs
  int32_t num_hidden_layers = 0;
  int32_t num_attention_heads = 0;
  int32_t num_key_value_heads = 0;
  int32_t head_dim = 0;
  int32_t max_position_embeddings = 0;
  bool tie_word_embeddings = false;
  bool tied_unless_stored = false;  // tied, unless the checkpoint has a head
  DType dtype = DType::kBF16;       // of the stored weights, as config.json says
  bool is_dequantised = false;      // `dtype` is what weights stored in fewer bits become
  bool has_quantization = false;    // config.json says how weights are quantised
  // Rows and columns of an fp8 weight that share a scale; 0: no blocks.
  int32_t fp8_block_rows = 0, fp8_block_cols = 0;
  std::vector<TokenId> eos_token_ids;
  std::vector<TokenId> bos_token_ids;

  // An encoder: tokens see those behind them as well. It gives hidden states and no tokens.
  bool is_encoder = false;

  // Norms.
  NormKind norm = NormKind::kRms;
  bool norm_bias = false;  // kLayer only
  double norm_eps = 1e-5;
  double norm_weight_offset = 0;  // added to norm weights at load: Gemma stores w, meaning 1 + w
  bool pre_norm = true;           // before attention and before the MLP
  bool first_norm = true;         // with pre_norm, before the first layer's attention too
  bool final_norm = true;         // behind the last layer
  bool post_norm = false;         // of what attention and the MLP give, before it is added; kRms only
  bool embedding_norm = false;
  QkNorm qk_norm = QkNorm::kNone;
  ResidualKind residual = ResidualKind::kSequential;

  // Positions: rope, or learned, or ALiBi.
  std::vector<RopeConfig> ropes = {RopeConfig()};
  bool learned_positions = false;   // a table of max_position_embeddings rows is added to the embeddings
  int32_t first_position = 0;       // rows of the stored table before that of position 0
  int32_t num_token_types = 0;      // rows of a table, of which one is added by the text a token is of: first or second
  std::vector<float> alibi_slopes;  // [num_attention_heads]  score += slope * (key position - query position)

  // Attention.
  bool qkv_bias = false;
  bool o_bias = false;
  double attention_scale = 0;           // of scores; 0: 1 / sqrt(head_dim)
  bool scale_by_inverse_layer = false;  // layer i's scores are divided by i + 1 besides
  double attention_softcap = 0;         // > 0: scores become softcap * tanh(score / softcap)
  bool attention_sinks = false;         // a further score for each head, whose value is 0
  double qkv_clip = 0;                  // > 0: q, k and v are clamped to [-clip, clip]
  QueryGrowth query_growth;
  bool attention_gate = false;  // its output is multiplied by the logistic function of a product with x
  StateConfig state;
  LatentConfig latent;
  MtpConfig mtp;
  bool value_norm = false;  // RMSNorm over each head of v, without weights

  // MLP.
  ActivationSpec activation;
  bool mlp_bias = false;
  ExpertsConfig experts;

  // A vector of each token for each layer, from a table of its own and from the token's embedding, is added, gated,
  // behind the layer's MLP.
  int32_t hidden_size_per_layer_input = 0;  // its size; 0: there is none
  int32_t vocab_size_per_layer_input = 0;

  // Multipliers.
  double embedding_multiplier = 1;
  double residual_multiplier = 1;  // of what attention and the MLP give
  double logit_multiplier = 1;
  double logit_softcap = 0;  // > 0: logits become softcap * tanh(logit / softcap)
  bool layer_scalars = false;  // the residual stream is multiplied by a number of each layer behind it

  std::vector<LayerConfig> layers;  // [num_hidden_layers], or empty: all as LayerConfig()

  LayerConfig layer(int32_t index) const {
    return mtp.is_used && index == num_hidden_layers ? mtp.layer : layers.empty() ? LayerConfig() : layers[index];
  }
  // With the one behind the last, where that is used.
  int32_t num_used_layers() const { return num_hidden_layers + (mtp.is_used ? 1 : 0); }
  // A GPU's dtype by default: fp32 that was made of a few bits is not worth its memory there.
  DType gpu_dtype() const { return is_dequantised && dtype == DType::kF32 ? DType::kBF16 : dtype; }

  // The dtype of a CPU's KV cache by default: rounding keys and values to 16 bits costs a model that was
  // rounded itself nothing that shows.
  DType cpu_kv_dtype(Quantization weights) const {
    return weights == Quantization::kNone && gpu_dtype() == DType::kF32 ? DType::kF32 : DType::kBF16;
  }

  // In layers that say nothing else.
  int64_t q_size() const { return int64_t{num_attention_heads} * head_dim; }
  int64_t kv_size() const { return int64_t{num_key_value_heads} * head_dim; }
  // The same of one layer.
  int32_t head_dim_of(int32_t index) const { return layer(index).head_dim > 0 ? layer(index).head_dim : head_dim; }
  int32_t num_kv_heads_of(int32_t index) const {
    return layer(index).num_key_value_heads > 0 ? layer(index).num_key_value_heads : num_key_value_heads;
  }
  int32_t intermediate_size_of(int32_t index) const {
    return layer(index).intermediate_size > 0 ? layer(index).intermediate_size : intermediate_size;
  }
  bool has_own_kv(int32_t index) const {
    const LayerConfig l = layer(index);
    return l.kv_layer < 0 && !l.has_state && l.has_mixer;
  }
  int32_t kv_layer_of(int32_t index) const { return layer(index).kv_layer < 0 ? index : layer(index).kv_layer; }
  int64_t q_size_of(int32_t index) const { return int64_t{num_attention_heads} * head_dim_of(index); }
  int64_t kv_size_of(int32_t index) const {  // of its own keys
    return has_own_kv(index) ? int64_t{num_kv_heads_of(index)} * head_dim_of(index) : 0;
  }
  int64_t qkv_size_of(int32_t index) const { return q_size_of(index) + (has_latent() ? 1 : 2) * kv_size_of(index); }
  bool has_latent() const { return latent.rank > 0; }
  // How much attention gathers of a token in a layer, and how much the projection behind it takes.
  int64_t gathered_size_of(int32_t index) const {
    return int64_t{num_attention_heads} * (has_latent() ? latent.rank : head_dim_of(index));
  }
  int64_t o_size_of(int32_t index) const {
    return int64_t{num_attention_heads} * (has_latent() ? latent.value_dim : head_dim_of(index));
  }
  bool heads_differ() const {
    for (const LayerConfig& l : layers)
      if (l.head_dim > 0 || l.num_key_value_heads > 0 || l.kv_layer >= 0) return true;
    return false;
  }
  // Layers that are a mixer or an MLP alone. Only with ResidualKind::kSequential and pre_norm.
  bool has_halves() const {
    for (const LayerConfig& l : layers)
      if (!l.has_mixer || !l.has_mlp) return true;
    return false;
  }
  int32_t rotary_dim(const RopeConfig& rope) const { return rope.rotary_dim > 0 ? rope.rotary_dim : head_dim; }
  bool has_states() const { return state.kind != StateKind::kNone; }
  // How wide the rows are that attention, or what stands in its place, hands to the projection behind it, at most.
  int64_t mixed_size() const {
    int64_t size = state.values_size();
    for (int32_t i = 0; i < num_used_layers(); ++i) size = std::max(size, o_size_of(i));
    return size;
  }
  double score_scale(int32_t layer) const {
    const double scale = attention_scale > 0 ? attention_scale : 1 / std::sqrt(static_cast<double>(head_dim_of(layer)));
    return scale_by_inverse_layer ? scale / (layer + 1) : scale;
  }

  // Parameters that take part in the matrix products of one token, the LM head included, the embedding lookup not.
  int64_t num_matmul_params() const { return num_params(experts.top_k); }
  // As many as are stored: every expert.
  int64_t num_stored_matmul_params() const { return num_params(experts.num_experts); }

 private:
  int64_t latent_params() const {  // of a layer's attention
    const LatentConfig& l = latent;
    const int64_t hidden = hidden_size, heads = num_attention_heads, queries = heads * l.query_dim();
    const int64_t of_queries = l.query_rank > 0 ? (hidden + queries) * l.query_rank : hidden * queries;
    return of_queries + hidden * head_dim + heads * (l.key_dim + l.value_dim) * l.rank + heads * l.value_dim * hidden;
  }
  int64_t num_params(int64_t num_experts) const {
    const int64_t hidden = hidden_size, matrices = activation.gated ? 3 : 2, inputs = hidden_size_per_layer_input;
    const int64_t mixer = hidden * (state.conv_channels() + 2 * state.values_size() + state.gates_size());
    const int64_t mixture = hidden * experts.num_experts + num_experts * matrices * hidden * experts.intermediate_size +
                            matrices * hidden * experts.shared_intermediate_size;
    int64_t total = hidden * (vocab_size + (mtp.is_used ? 2 * hidden : 0));
    for (int32_t i = 0; i < num_used_layers(); ++i) {
      const int64_t attention = hidden * (q_size_of(i) * (attention_gate ? 3 : 2) + kv_size_of(i) * 2);
      const int64_t of_mixer = layer(i).has_state ? mixer : has_latent() ? latent_params() : attention;
      total += (layer(i).has_mixer ? of_mixer : 0) + hidden * inputs * 3;
      if (!layer(i).has_mlp) continue;
      if (layer(i).has_experts) total += mixture;
      if (!layer(i).has_experts || experts.beside_dense) total += matrices * hidden * intermediate_size_of(i);
    }
    return total;
  }
};

}  // namespace llmb
