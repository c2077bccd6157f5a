// The names that tensors of a Hugging Face checkpoint have in a GGUF file.
#include <charconv>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "model/gguf_layout.h"
#include "model/gguf_model.h"

namespace llmb {

namespace {

struct Rename {
  std::string_view from, to;
};

// Prefixes of the names of all tensors but the head, and of the index of a layer.
constexpr std::string_view kPrefixes[] = {"model.", "transformer.", "gpt_neox.", "bert.", "nomic_bert."};
constexpr std::string_view kLayers[] = {"layers.", "h.", "blocks.", "encoder.layer.", "encoder.layers."};
// Tensors whose names the loader takes from the file.
constexpr std::string_view kOwnNames[] = {"blk.", "cls.", "dense_2.", "dense_3."};

constexpr Rename kModelNames[] = {
    {"embed_tokens.", "token_embd."},    {"wte.", "token_embd."},
    {"embed_in.", "token_embd."},        {"word_embeddings.", "token_embd."},
    {"wpe.", "position_embd."},          {"word_embeddings_layernorm.", "token_embd_norm."},
    {"norm.", "output_norm."},           {"ln_f.", "output_norm."},
    {"norm_f.", "output_norm."},         {"final_layer_norm.", "output_norm."},
    {"final_layernorm.", "output_norm."},
    {"embed_tokens_per_layer.", "per_layer_token_embd."},
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

constexpr Rename kHeadNames[] = {{"lm_head.", "output."}, {"embed_out.", "output."}};

constexpr Rename kLayerNames[] = {
    {"input_layernorm.", "attn_norm."},
    {"self_attn.q_proj.", "attn_q."},
    {"self_attn.k_proj.", "attn_k."},
    {"self_attn.v_proj.", "attn_v."},
    {"self_attn.o_proj.", "attn_output."},
    {"self_attn.qkv_proj.", "attn_qkv."},
    {"self_attn.q_norm.", "attn_q_norm."},
    {"self_attn.k_norm.", "attn_k_norm."},
    {"mlp.gate_proj.", "ffn_gate."},
    {"mlp.up_proj.", "ffn_up."},
    {"mlp.down_proj.", "ffn_down."},
    {"mlp.gate_up_proj.", "ffn_up."},
    {"mlp.c_fc.", "ffn_up."},
    {"mlp.c_proj.", "ffn_down."},
    {"pre_feedforward_layernorm.", "ffn_norm."},
    {"post_feedforward_layernorm.", "post_ffw_norm."},
    {"self_attn.sinks", "attn_sinks.weight"},
    {"ln_1.", "attn_norm."},
    {"norm_1.", "attn_norm."},
    {"ln_attn.", "attn_norm_2."},
    {"ln_mlp.", "attn_norm."},
    {"attn.c_attn.", "attn_qkv."},
    {"attn.Wqkv.", "attn_qkv."},
    {"attention.query_key_value.", "attn_qkv."},
    {"self_attention.query_key_value.", "attn_qkv."},
    {"attn.c_proj.", "attn_output."},
    {"attn.out_proj.", "attn_output."},
    {"attention.dense.", "attn_output."},
    {"self_attention.dense.", "attn_output."},
    {"ln_2.", "ffn_norm."},
    {"norm_2.", "ffn_norm."},
    {"mlp.dense_h_to_4h.", "ffn_up."},
    {"mlp.dense_4h_to_h.", "ffn_down."},
    {"ffn.up_proj.", "ffn_up."},
    {"ffn.down_proj.", "ffn_down."},
    {"self_attn.q_a_proj.", "attn_q_a."},
    {"self_attn.q_a_layernorm.", "attn_q_a_norm."},
    {"self_attn.q_b_proj.", "attn_q_b."},
    {"self_attn.kv_a_proj_with_mqa.", "attn_kv_a_mqa."},
    {"self_attn.kv_a_layernorm.", "attn_kv_a_norm."},
    {"self_attn.k_b_proj.", "attn_k_b."},
    {"self_attn.v_b_proj.", "attn_v_b."},
    {"mlp.shared_experts.gate_proj.", "ffn_gate_shexp."},
    {"mlp.shared_experts.up_proj.", "ffn_up_shexp."},
    {"mlp.shared_experts.down_proj.", "ffn_down_shexp."},
    {"mlp.shared_expert.gate_proj.", "ffn_gate_shexp."},
    {"mlp.shared_expert.up_proj.", "ffn_up_shexp."},
    {"mlp.shared_expert.down_proj.", "ffn_down_shexp."},
    {"mlp.shared_expert_gate.", "ffn_gate_inp_shexp."},
    {"mlp.gate.e_score_correction_bias", "exp_probs_b.bias"},
    {"mlp.moe_statics.e_score_correction_bias", "exp_probs_b.bias"},
    {"mlp.gate.wg.", "ffn_gate_inp."},
    {"mlp.gate.", "ffn_gate_inp."},
    {"mlp.router.", "ffn_gate_inp."},
    {"block_sparse_moe.gate.", "ffn_gate_inp."},
    {"block_sparse_moe.router.layer.", "ffn_gate_inp."},
    {"feed_forward.router.", "ffn_gate_inp."},
    {"post_self_attn_layernorm.", "post_attention_norm."},
    {"post_mlp_layernorm.", "post_ffw_norm."},
    {"self_attn.query_layernorm.", "attn_q_norm."},
    {"self_attn.key_layernorm.", "attn_k_norm."},
    {"self_attn.dense.", "attn_output."},
    {"mlp.fc1.", "ffn_up."},
    {"mlp.fc2.", "ffn_down."},
    {"feed_forward.gate_proj.", "ffn_gate."},
    {"feed_forward.up_proj.", "ffn_up."},
    {"feed_forward.down_proj.", "ffn_down."},
    {"mlp.shared_mlp.gate_proj.", "ffn_gate_shexp."},
    {"mlp.shared_mlp.up_proj.", "ffn_up_shexp."},
    {"mlp.shared_mlp.down_proj.", "ffn_down_shexp."},
    {"feed_forward.shared_expert.gate_proj.", "ffn_gate_shexp."},
    {"feed_forward.shared_expert.up_proj.", "ffn_up_shexp."},
    {"feed_forward.shared_expert.down_proj.", "ffn_down_shexp."},
    {"shared_mlp.gate_proj.", "ffn_gate_shexp."},
    {"shared_mlp.up_proj.", "ffn_up_shexp."},
    {"shared_mlp.output_linear.", "ffn_down_shexp."},
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

// Folders of numbered matrices or vectors that are in one tensor of the file; "": kExpertNames say in which.
constexpr Rename kNumbered[] = {{"experts.", ""},
                                {"block_sparse_moe.", ""},
                                {"self_attn.q_layernorm.norms.", "attn_q_norm."},
                                {"self_attn.k_layernorm.norms.", "attn_k_norm."}};

// After "mlp.experts.<index>." or "block_sparse_moe.experts.<index>.": one matrix of a tensor that holds all of them.
constexpr Rename kExpertNames[] = {{"gate_proj.", "ffn_gate_exps."}, {"up_proj.", "ffn_up_exps."},
                                   {"down_proj.", "ffn_down_exps."}, {"w1.", "ffn_gate_exps."},
                                   {"w3.", "ffn_up_exps."},          {"w2.", "ffn_down_exps."}};

// A layer behind the last one has these beside those of other layers.
constexpr Rename kMtpNames[] = {{"fc.", "eh_proj."},
                                {"pre_fc_norm_embedding.", "enorm."},
                                {"pre_fc_norm_hidden.", "hnorm."},
                                {"norm.", "shared_head_norm."}};

std::optional<std::string> renamed(std::string_view name, std::span<const Rename> names) {
  for (const Rename& entry : names)
    if (name.starts_with(entry.from)) return std::string(entry.to) + std::string(name.substr(entry.from.size()));
  return std::nullopt;
}

bool remove_one_of(std::span<const std::string_view> prefixes, std::string_view* name) {
  for (const std::string_view prefix : prefixes)
    if (name->starts_with(prefix)) {
      name->remove_prefix(prefix.size());
      return true;
    }
  return false;
}

// "experts.7.up_proj.weight", after what comes before it.
std::optional<GgufPlace> numbered_place(std::string_view part) {
  for (const Rename& folder : kNumbered) {
    const size_t at = part.find(folder.from);
    if (at == part.npos) continue;
    const std::string_view rest = part.substr(at + folder.from.size());
    int64_t index = 0;
    const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), index);
    if (error != std::errc() || index < 0 || end == rest.data() + rest.size() || *end != '.') continue;
    const std::string_view member = rest.substr(static_cast<size_t>(end - rest.data()) + 1);
    if (!folder.to.empty()) return GgufPlace{std::string(folder.to) + std::string(member), index};
    if (const auto name = renamed(member, kExpertNames)) return GgufPlace{*name, index};
  }
  return std::nullopt;
}

// "model.layers.7.mlp.up_proj.weight" → "blk.7.ffn_up.weight".
std::optional<GgufPlace> find_place(std::string_view name, const GgufArchitecture& architecture) {
  const auto dense = [](std::optional<std::string> found) {
    return found ? std::optional(GgufPlace{*found, {}}) : std::nullopt;
  };
  for (const std::string_view own : kOwnNames)
    if (name.starts_with(own)) return GgufPlace{std::string(name), {}};
  if (!remove_one_of(kPrefixes, &name)) return dense(renamed(name, kHeadNames));
  if (!remove_one_of(kLayers, &name)) return dense(renamed(name, kModelNames));
  const size_t dot = name.find('.');
  if (dot == name.npos) return std::nullopt;
  const std::string_view part = name.substr(dot + 1);
  const Rename after_attention[] = {
      {"post_attention_layernorm.", architecture.has_post_attention_norm ? "post_attention_norm." : "ffn_norm."}};
  std::optional<GgufPlace> found = numbered_place(part);
  if (!found) found = dense(renamed(part, after_attention));
  if (!found) found = dense(renamed(part, kLayerNames));
  // Qwen 3 Next's rates and decays are in one tensor.
  if (found && std::string_view(architecture.name) == "qwen3next")
    for (const std::string_view own : {"ssm_beta.", "ssm_alpha."})
      if (found->name.starts_with(own)) found->name = "ssm_ba." + found->name.substr(own.size());
  if (found) found->name = "blk." + std::string(name.substr(0, dot + 1)) + found->name;
  return found;
}

// "mtp.layers.0.mlp.up_proj.weight" is one of the layer behind the last one, whose index is num_layers.
std::string name_of_mtp(const std::string& name, int32_t num_layers) {
  constexpr std::string_view kFolder = "mtp.", kLayer = "mtp.layers.0.";
  const std::string layer = std::to_string(num_layers) + ".";
  if (name.starts_with(kLayer)) return "model.layers." + layer + name.substr(kLayer.size());
  if (!name.starts_with(kFolder)) return name;
  const auto own = renamed(std::string_view(name).substr(kFolder.size()), kMtpNames);
  return own ? "blk." + layer + "nextn." + *own : name;
}

}  // namespace

std::optional<std::string> gguf_tensor_name(const std::string& name, const GgufArchitecture& architecture) {
  const auto place = find_place(name, architecture);
  return place && !place->index ? std::optional(place->name) : std::nullopt;
}

std::optional<GgufPlace> gguf_place(const GgufFile& file, const std::string& name, const GgufArchitecture& architecture,
                                    const ModelConfig& config) {
  constexpr std::string_view kShared = "_shexp";
  auto place = find_place(name_of_mtp(name, config.num_hidden_layers), architecture);
  if (!place || file.tensor(place->name) != nullptr) return place;
  const size_t at = place->name.find(kShared);
  if (at == std::string::npos) return place;
  const std::string dense = std::string(place->name).erase(at, kShared.size());
  if (file.tensor(dense) != nullptr) place->name = dense;
  return place;
}

GgufStored gguf_stored(const GgufFile& file, const ModelConfig& config, const std::string& name) {
  if (const GgufTensor* tensor = file.tensor(name)) return {tensor};
  const int64_t q = config.q_size(), kv = config.kv_size(), up = config.experts.intermediate_size;
  const struct {
    std::string_view name, all;
    int64_t first_row, num_rows;
  } parts[] = {{".attn_q.", ".attn_qkv.", 0, q + 2 * kv},
               {".attn_k.", ".attn_qkv.", q, q + 2 * kv},
               {".attn_v.", ".attn_qkv.", q + kv, q + 2 * kv},
               {".ffn_gate_exps.", ".ffn_gate_up_exps.", 0, 2 * up},
               {".ffn_up_exps.", ".ffn_gate_up_exps.", up, 2 * up}};
  for (const auto& part : parts) {
    const size_t at = name.find(part.name);
    if (at == name.npos) continue;
    std::string all = name;
    return {file.tensor(all.replace(at, part.name.size(), part.all)), part.first_row, part.num_rows};
  }
  return {};
}

}  // namespace llmb
