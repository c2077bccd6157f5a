#include "model/gguf_layout.h"

#include <utility>

namespace llmb {

namespace {

using Name = std::pair<std::string_view, std::string_view>;

constexpr Name kBesideLayers[] = {{"embed_tokens_per_layer.", "per_layer_token_embd."},
                                  {"per_layer_model_projection.", "per_layer_model_proj."},
                                  {"per_layer_projection_norm.", "per_layer_proj_norm."},
                                  {"embedding_norm.", "token_embd_norm."},
                                  {"embeddings.word_embeddings.", "token_embd."},
                                  {"embeddings.tok_embeddings.", "token_embd."},
                                  {"embeddings.position_embeddings.", "position_embd."},
                                  {"embeddings.token_type_embeddings.", "token_types."},
                                  {"embeddings.LayerNorm.", "token_embd_norm."},
                                  {"embeddings.norm.", "token_embd_norm."},
                                  {"embeddings.weight", "token_embd.weight"},
                                  {"emb_ln.", "token_embd_norm."},
                                  {"final_norm.", "output_norm."}};

constexpr Name kInLayer[] = {
    // Gated DeltaNet.
    {"linear_attn.in_proj_qkvz.", "ssm_in."},
    {"linear_attn.in_proj_qkv.", "attn_qkv."},
    {"linear_attn.in_proj_z.", "attn_gate."},
    {"linear_attn.in_proj_ba.", "ssm_ba."},
    {"linear_attn.in_proj_b.", "ssm_beta."},
    {"linear_attn.in_proj_a.", "ssm_alpha."},
    {"linear_attn.conv1d.", "ssm_conv1d."},
    {"linear_attn.A_log", "ssm_a"},
    {"linear_attn.dt_bias", "ssm_dt.bias"},
    {"linear_attn.norm.", "ssm_norm."},
    {"linear_attn.out_proj.", "ssm_out."},
    // Mamba-2, in the two folders that it has.
    {"mamba.in_proj.", "ssm_in."},
    {"mamba.conv1d.", "ssm_conv1d."},
    {"mamba.A_log", "ssm_a"},
    {"mamba.D", "ssm_d"},
    {"mamba.dt_bias", "ssm_dt.bias"},
    {"mamba.norm.", "ssm_norm."},
    {"mamba.out_proj.", "ssm_out."},
    {"mixer.in_proj.", "ssm_in."},
    {"mixer.conv1d.", "ssm_conv1d."},
    {"mixer.A_log", "ssm_a"},
    {"mixer.D", "ssm_d"},
    {"mixer.dt_bias", "ssm_dt.bias"},
    {"mixer.norm.", "ssm_norm."},
    {"mixer.out_proj.", "ssm_out."},
    // Nemotron-H's other layers.
    {"norm.", "attn_norm."},
    {"mixer.q_proj.", "attn_q."},
    {"mixer.k_proj.", "attn_k."},
    {"mixer.v_proj.", "attn_v."},
    {"mixer.o_proj.", "attn_output."},
    {"mixer.up_proj.", "ffn_up."},
    {"mixer.down_proj.", "ffn_down."},
    {"mixer.gate.e_score_correction_bias", "exp_probs_b.bias"},
    {"mixer.gate.", "ffn_gate_inp."},
    {"mixer.shared_experts.up_proj.", "ffn_up_shexp."},
    {"mixer.shared_experts.down_proj.", "ffn_down_shexp."},
    // Granite's experts.
    {"block_sparse_moe.input_linear.weight", "ffn_gate_up_exps.weight"},
    {"block_sparse_moe.output_linear.weight", "ffn_down_exps.weight"},
    // LFM2.
    {"conv.conv.", "shortconv.conv."},
    {"conv.in_proj.", "shortconv.in_proj."},
    {"conv.out_proj.", "shortconv.out_proj."},
    {"operator_norm.", "attn_norm."},
    {"ffn_norm.", "ffn_norm."},
    {"feed_forward.w1.", "ffn_gate."},
    {"feed_forward.w2.", "ffn_down."},
    {"feed_forward.w3.", "ffn_up."},
    {"self_attn.q_layernorm.", "attn_q_norm."},
    {"self_attn.k_layernorm.", "attn_k_norm."},
    {"self_attn.out_proj.", "attn_output."},
    // Gemma 4.
    {"layer_scalar", "layer_output_scale.weight"},
    {"per_layer_input_gate.", "inp_gate."},
    {"per_layer_projection.", "proj."},
    {"post_per_layer_input_norm.", "post_norm."},
    {"pre_feedforward_layernorm_2.", "pre_ffw_norm_2."},
    {"post_feedforward_layernorm_1.", "post_ffw_norm_1."},
    {"post_feedforward_layernorm_2.", "post_ffw_norm_2."},
    {"router.proj.", "ffn_gate_inp."},
    {"router.scale", "ffn_gate_inp.scale"},
    {"router.per_expert_scale", "ffn_down_exps.scale"},
    // All experts in one.
    {"experts.gate_up_proj", "ffn_gate_up_exps.weight"},
    {"experts.down_proj", "ffn_down_exps.weight"},
    {"mlp.experts.gate_up_proj", "ffn_gate_up_exps.weight"},
    {"mlp.experts.down_proj", "ffn_down_exps.weight"},
    // BERT.
    {"attention.self.query.", "attn_q."},
    {"attention.self.key.", "attn_k."},
    {"attention.self.value.", "attn_v."},
    {"attention.output.dense.", "attn_output."},
    {"attention.output.LayerNorm.", "attn_output_norm."},
    {"intermediate.dense.", "ffn_up."},
    {"output.dense.", "ffn_down."},
    {"output.LayerNorm.", "layer_output_norm."},
    // Nomic's, in its first spelling.
    {"norm1.", "attn_output_norm."},
    {"norm2.", "layer_output_norm."},
    {"mlp.fc11.", "ffn_up."},
    {"mlp.fc12.", "ffn_gate."},
    // ModernBERT.
    {"attn_norm.", "attn_norm."},
    {"attn.Wo.", "attn_output."},
    {"mlp_norm.", "ffn_norm."},
    {"mlp.Wi.", "ffn_up."},
    {"mlp.Wo.", "ffn_down."}};

constexpr Name kMtp[] = {{"fc.", "eh_proj."},
                         {"pre_fc_norm_embedding.", "enorm."},
                         {"pre_fc_norm_hidden.", "hnorm."},
                         {"norm.", "shared_head_norm."}};

template <size_t kCount>
std::optional<std::string> renamed(std::string_view name, const Name (&names)[kCount]) {
  for (const auto& [from, to] : names)
    if (name.starts_with(from)) return std::string(to) + std::string(name.substr(from.size()));
  return std::nullopt;
}

// Value heads in the file's order: all that have the first place beside their key head, then all that have the second.
// Where value heads and key heads are as many, this is the order of the checkpoint.
std::function<int64_t(int64_t)> turned_heads(const StateConfig& s, int64_t first, int64_t width) {
  const int64_t keys = s.num_key_heads, group = s.num_value_heads / keys;
  return [=](int64_t row) {
    if (row < first) return row;
    const int64_t head = (row - first) / width, in_head = (row - first) % width;
    return first + (head % group * keys + head / group) * width + in_head;
  };
}

// Qwen 3 Next's rates and decays in one: for each key head those of its value heads, rates first.
GgufLayout gates_of_both(const StateConfig& s, bool are_decays) {
  const int64_t group = s.num_value_heads / s.num_key_heads, first = are_decays ? group : 0;
  GgufLayout layout;
  layout.stored_rows = 2 * int64_t{s.num_value_heads};
  layout.row = [=](int64_t row) { return row / group * 2 * group + first + row % group; };
  return layout;
}

GgufLayout delta_layout(std::string_view part, const GgufArchitecture& architecture, const StateConfig& s) {
  GgufLayout layout;
  if (part == "A_log") layout.value = GgufLayout::Value::kLogOfNegated;
  if (s.num_key_heads < 1 || s.num_value_heads < s.num_key_heads) return layout;
  const bool is_next = std::string_view(architecture.name) == "qwen3next";
  if (is_next && part.starts_with("in_proj_b.")) return gates_of_both(s, false);
  if (is_next && part.starts_with("in_proj_a.")) return gates_of_both(s, true);
  if (is_next || s.num_value_heads == s.num_key_heads) return layout;
  const int64_t width = s.value_dim;
  if (part.starts_with("in_proj_qkv.") || part.starts_with("conv1d."))
    layout.row = turned_heads(s, 2 * s.keys_size(), width);
  else if (part.starts_with("in_proj_z.")) layout.row = turned_heads(s, 0, width);
  else if (part.starts_with("in_proj_b.") || part.starts_with("in_proj_a.") || part == "A_log" || part == "dt_bias")
    layout.row = turned_heads(s, 0, 1);
  else if (part.starts_with("out_proj.")) layout.piece = turned_heads(s, 0, 1), layout.piece_cols = width;
  return layout;
}

bool is_of_q_or_k(std::string_view name, std::string_view part) {
  const std::string q = ".self_attn.q_" + std::string(part), k = ".self_attn.k_" + std::string(part);
  return name.find(q) != name.npos || name.find(k) != name.npos;
}

}  // namespace

GgufLayout gguf_layout(std::string_view name, std::string_view stored, bool is_vector,
                       const GgufArchitecture& architecture, const ModelConfig& config) {
  constexpr std::string_view kDelta = ".linear_attn.";
  GgufLayout layout;
  const bool is_norm = is_of_q_or_k(name, "norm.") && !is_vector;
  if (architecture.is_rope_interleaved && (is_of_q_or_k(name, "proj.") || is_norm)) {
    layout.row = [&config](int64_t row) { return gguf_interleaved_row(row, config); };
    layout.moves_numbers = is_norm;
  }
  if (const size_t at = name.find(kDelta); at != name.npos)
    layout = delta_layout(name.substr(at + kDelta.size()), architecture, config.state);
  else if (name.ends_with(".A_log")) layout.value = GgufLayout::Value::kLogOfNegated;
  if (architecture.has_norms_plus_one && stored.ends_with("norm.weight") && !stored.ends_with(".ssm_norm.weight"))
    layout.value = GgufLayout::Value::kMinusOne;
  return layout;
}

std::optional<std::string> gguf_name_in_layer(std::string_view part, const GgufArchitecture& architecture) {
  std::optional<std::string> found = renamed(part, kInLayer);
  const bool is_next = std::string_view(architecture.name) == "qwen3next";
  if (found && is_next)
    for (const std::string_view own : {"ssm_beta.", "ssm_alpha."})
      if (found->starts_with(own)) found = "ssm_ba." + found->substr(own.size());
  return found;
}

std::optional<std::string> gguf_name_beside_layers(std::string_view name) { return renamed(name, kBesideLayers); }

std::string gguf_name_of_mtp(const std::string& name, int32_t num_layers) {
  constexpr std::string_view kFolder = "mtp.", kLayer = "mtp.layers.0.";
  const std::string layer = std::to_string(num_layers) + ".";
  if (name.starts_with(kLayer)) return "model.layers." + layer + name.substr(kLayer.size());
  if (!name.starts_with(kFolder)) return name;
  const auto own = renamed(std::string_view(name).substr(kFolder.size()), kMtp);
  return own ? "blk." + layer + "nextn." + *own : name;
}

}  // namespace llmb
