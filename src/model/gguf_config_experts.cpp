// Experts and latent attention as a GGUF file describes them.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>

#include "model/gguf_config_json.h"

namespace llmb {

namespace {

using nlohmann::json;

// Experts as DeepSeek's models have them, and those of Qwen.
void read_routing(GgufConfigJson& c) {
  c.integer("num_experts", "expert_count");
  c.integer("num_experts_per_tok", "expert_used_count");
  c.integer("moe_intermediate_size", "expert_feed_forward_length");
  c.integer("shared_expert_intermediate_size", "expert_shared_feed_forward_length");
  c.out["first_k_dense_replace"] = c.integer_of("leading_dense_block_count").value_or(0);
  c.out["n_shared_experts"] = c.integer_of("expert_shared_count").value_or(0);
  c.out["norm_topk_prob"] = c.boolean_of("expert_weights_norm").value_or(false);
  c.number("routed_scaling_factor", "expert_weights_scale");
  c.out["n_group"] = c.integer_of("expert_group_count").value_or(1);
  c.out["topk_group"] = c.integer_of("expert_group_used_count").value_or(1);
}

// key_length_mla counts the channels of a head's key, rotated ones included.
void read_deepseek2(GgufConfigJson& c) {
  json& out = c.out;
  constexpr int64_t kSigmoid = 2, kMaxKey = 1 << 20;
  const int64_t rope = c.integer_of("rope.dimension_count").value_or(64);
  const auto key = c.integer_of("attention.key_length_mla");
  if (!c.status.ok()) return;
  if (key && (*key <= rope || *key > kMaxKey)) return c.fail(data_loss("\"attention.key_length_mla\" is out of range"));
  if (!key)
    return c.fail(
        unsupported("\"deepseek2.attention.key_length_mla\" is missing: the file was converted before latent "
                    "attention could be computed from it; convert the model again"));
  out.erase("head_dim"), out.erase("partial_rotary_factor");
  out["qk_rope_head_dim"] = rope;
  out["qk_nope_head_dim"] = *key - rope;
  c.integer("v_head_dim", "attention.value_length_mla");
  c.integer("kv_lora_rank", "attention.kv_lora_rank");
  const auto query_rank = c.integer_of("attention.q_lora_rank");
  out["q_lora_rank"] = query_rank ? json(*query_rank) : json();
  if (const auto scale = c.file().number("deepseek2.rope.scaling.yarn_log_multiplier");
      scale && out.contains("rope_scaling"))
    out["rope_scaling"]["mscale"] = out["rope_scaling"]["mscale_all_dim"] = *scale * 10;
  if (c.number_of("attention.temperature_scale").value_or(0) != 0)
    return c.fail(unsupported("\"deepseek2.attention.temperature_scale\" is not supported"));
  count_layers(c);
  if (c.integer_of("expert_count").value_or(0) == 0) {
    out["model_type"] = "youtu";
    return;
  }
  // Where the file does not say how scores are made: only with sigmoids a bias decides with them.
  const auto& tensors = c.file().tensors();
  const bool has_choice_bias = std::any_of(
      tensors.begin(), tensors.end(), [](const GgufTensor& tensor) { return tensor.name.ends_with(".exp_probs_b.bias"); });
  const auto gating = c.integer_of("expert_gating_func");
  if (gating ? *gating == kSigmoid : has_choice_bias) return;
  out["model_type"] = "deepseek_v2";
  if (out["n_group"] != 1) out["topk_method"] = "group_limited_greedy";
}

}  // namespace

void read_expert_particulars(GgufConfigJson& c) {
  const std::string type = c.out["model_type"];
  json& out = c.out;
  for (const char* name : {"deepseek_v3", "qwen2_moe", "glm4_moe", "dots1"})
    if (type == name) read_routing(c);
  if (type == "deepseek_v3") read_deepseek2(c);
  if (type == "glm4_moe") {
    count_layers(c);
    out["attention_bias"] = c.has("blk.0.attn_q.bias");
    out["use_qk_norm"] = c.has("blk.0.attn_q_norm.weight");
  }
}

bool knows_gguf_experts(const std::string& model_type) {
  for (const char* known : {"qwen3_moe", "gpt_oss", "deepseek_v3", "qwen2_moe", "glm4_moe", "olmoe", "ernie4_5_moe",
                            "granitemoe", "hunyuan_v1_moe", "llama4_text", "dots1",
                            "qwen3_5_moe_text", "qwen3_next", "granitemoehybrid", "nemotron_h", "gemma4_text"})
    if (model_type == known) return true;
  return false;
}

}  // namespace llmb
