"""What llama.cpp's converter makes of mixtures of experts with shared ones, and of latent attention."""
import gguf
import numpy as np

ARCHITECTURES = {"qwen2_moe": "qwen2moe", "glm4_moe": "glm4moe", "deepseek_v2": "deepseek2", "deepseek_v3": "deepseek2",
                 "youtu": "deepseek2", "glm4_moe_lite": "deepseek2"}
LAYER_NAMES = {
    "self_attn.q_a_proj": "attn_q_a", "self_attn.q_a_layernorm": "attn_q_a_norm", "self_attn.q_b_proj": "attn_q_b",
    "self_attn.kv_a_proj_with_mqa": "attn_kv_a_mqa", "self_attn.kv_a_layernorm": "attn_kv_a_norm",
    "mlp.shared_experts.gate_proj": "ffn_gate_shexp", "mlp.shared_experts.up_proj": "ffn_up_shexp",
    "mlp.shared_experts.down_proj": "ffn_down_shexp", "mlp.shared_expert.gate_proj": "ffn_gate_shexp",
    "mlp.shared_expert.up_proj": "ffn_up_shexp", "mlp.shared_expert.down_proj": "ffn_down_shexp",
    "mlp.shared_expert_gate": "ffn_gate_inp_shexp"}
LATENT = dict(num_key_value_heads=4, kv_lora_rank=32, qk_rope_head_dim=16, qk_nope_head_dim=32, v_head_dim=32)
GROUPS = dict(num_experts_per_tok=3, moe_intermediate_size=32, n_group=4, topk_group=2, first_k_dense_replace=1,
              routed_scaling_factor=1.5)


def variants(tiny, of, t):
    mix = (t.Q8_0, t.Q4_0, t.F16)
    yarn = {"type": "yarn", "factor": 4.0, "mscale": 0.7, "mscale_all_dim": 0.7, "original_max_position_embeddings": 32}
    return {
        "deepseek_v3": (of("DeepseekV3ForCausalLM", "deepseek_v3", tiny, **LATENT, **GROUPS, q_lora_rank=32,
                           n_routed_experts=8, n_shared_experts=1, rope_scaling=yarn), mix),
        "deepseek_v2": (of("DeepseekV2ForCausalLM", "deepseek_v2", tiny, **LATENT, **GROUPS, q_lora_rank=None,
                           n_routed_experts=8, n_shared_experts=2, topk_method="group_limited_greedy"), mix),
        "qwen2moe": (of("Qwen2MoeForCausalLM", "qwen2_moe", tiny, head_dim=8, num_experts=5, num_experts_per_tok=2,
                        moe_intermediate_size=32, shared_expert_intermediate_size=64, norm_topk_prob=False), mix),
        "glm4moe": (of("Glm4MoeForCausalLM", "glm4_moe", tiny, head_dim=8, **GROUPS, n_routed_experts=8,
                       n_shared_experts=1, partial_rotary_factor=0.5, use_qk_norm=True, attention_bias=True), mix),
        "seed_oss": (of("SeedOssForCausalLM", "seed_oss", tiny, head_dim=8, attention_bias=True,
                        attention_out_bias=False), mix),
        "youtu": (of("YoutuForCausalLM", "youtu", tiny, **LATENT, q_lora_rank=32, tie_word_embeddings=True), mix),
        "glm4_moe_lite": (of("Glm4MoeLiteForCausalLM", "glm4_moe_lite", tiny, **LATENT, q_lora_rank=32, n_routed_experts=6,
                             n_shared_experts=1, num_experts_per_tok=2, moe_intermediate_size=32, n_group=1,
                             topk_group=1, routed_scaling_factor=1.8, norm_topk_prob=True,
                             mlp_layer_types=["dense", "sparse"]), mix)}


def add_values(writer, config):
    for field, add in (("first_k_dense_replace", writer.add_leading_dense_block_count),
                       ("n_routed_experts", writer.add_expert_count), ("n_shared_experts", writer.add_expert_shared_count),
                       ("shared_expert_intermediate_size", writer.add_expert_shared_feed_forward_length),
                       ("routed_scaling_factor", writer.add_expert_weights_scale),
                       ("n_group", writer.add_expert_group_count), ("topk_group", writer.add_expert_group_used_count),
                       ("q_lora_rank", writer.add_q_lora_rank), ("kv_lora_rank", writer.add_kv_lora_rank),
                       ("qk_rope_head_dim", writer.add_rope_dimension_count)):
        if config.get(field) is not None:
            add(config[field])
    if "n_routed_experts" in config:
        writer.add_expert_weights_norm(config["model_type"] != "deepseek_v2")
    if "n_routed_experts" in config and config["model_type"] != "glm4_moe_lite":  # which leaves it out
        writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SOFTMAX if config["model_type"] == "deepseek_v2"
                                      else gguf.ExpertGatingFuncType.SIGMOID)
    if config["model_type"] in ("youtu", "glm4_moe_lite"):
        writer.add_leading_dense_block_count(1 if "n_routed_experts" in config else config["num_hidden_layers"])
    if "kv_lora_rank" in config:  # one head of keys, as they are cached; what heads have besides
        writer.add_head_count_kv(1)
        writer.add_key_length(config["kv_lora_rank"] + config["qk_rope_head_dim"])
        writer.add_value_length(config["kv_lora_rank"])
        writer.add_key_length_mla(config["qk_nope_head_dim"] + config["qk_rope_head_dim"])
        writer.add_value_length_mla(config["v_head_dim"])
    scaling = config.get("rope_scaling") or {}
    if scaling.get("type") == "yarn":
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(scaling["factor"])
        writer.add_rope_scaling_orig_ctx_len(scaling["original_max_position_embeddings"])
        writer.add_rope_scaling_yarn_log_mul(0.1 * scaling["mscale_all_dim"])


def write_latent_heads(tensor, values, config, quantiser):
    """Keys' matrices, transposed, and values', head by head."""
    layer, rank, key = tensor.split(".")[2], config["kv_lora_rank"], config["qk_nope_head_dim"]
    by_head = values.reshape(config["num_attention_heads"], -1, rank)
    keys = quantiser.write(f"blk.{layer}.attn_k_b.weight", np.ascontiguousarray(by_head[:, :key].swapaxes(1, 2)))
    rest = quantiser.write(f"blk.{layer}.attn_v_b.weight", np.ascontiguousarray(by_head[:, key:]))
    return np.concatenate([keys.swapaxes(1, 2), rest], 1).reshape(values.shape)
