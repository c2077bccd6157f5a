"""What llama.cpp's converter makes of plain decoders: their names by the gguf package, their values, and what it does
to their tensors."""
import gguf
import numpy as np

LAYER_NORM = dict(without=("rms_norm_eps",), layer_norm_eps=1e-5)
SCALES = dict(embedding_multiplier=3.0, residual_multiplier=0.4, attention_multiplier=0.25, logits_scaling=2.5)
WINDOW = 11
# Where rope turns neighbours together and the checkpoint has halves: rows of q and k change places.
PERMUTED = {"MISTRAL3", "INTERNLM2", "OLMO", "GRANITE_MOE", "ARCEE"}
SIZES = ("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "max_position_embeddings",
         "intermediate_size", "rope_theta", "rms_norm_eps")


def variants(tiny, of, t):
    """name: config, formats, architecture of the file"""
    mix = (t.Q8_0, t.Q4_0, t.F16)
    yarn = dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=64, beta_fast=32.0, beta_slow=1.0)
    found = {
        "mistral3": (of("Ministral3ForCausalLM", "ministral3", tiny, head_dim=8, max_position_embeddings=256,
                        rope_parameters=dict(**yarn, rope_theta=10000.0, mscale=1.0, mscale_all_dim=1.0,
                                             llama_4_scaling_beta=0.1), without=("rope_theta",)), "MISTRAL3"),
        "chatglm": (of("GlmForCausalLM", "glm", tiny, head_dim=8, attention_bias=True), "CHATGLM"),
        "glm4": (of("Glm4ForCausalLM", "glm4", tiny, head_dim=16, attention_bias=True), "GLM4"),
        "command-r": (of("CohereForCausalLM", "cohere", tiny, logit_scale=0.5, use_qk_norm=True, **LAYER_NORM), "COMMAND_R"),
        "cohere2": (of("Cohere2ForCausalLM", "cohere2", tiny, logit_scale=0.5, num_hidden_layers=4, sliding_window=WINDOW,
                       layer_types=["sliding_attention"] * 3 + ["full_attention"], **LAYER_NORM), "COHERE2"),
        "exaone4": (of("Exaone4ForCausalLM", "exaone4", tiny, sliding_window=WINDOW, sliding_window_pattern="LG",
                       layer_types=["sliding_attention", "full_attention"]), "EXAONE4"),
        "ernie4_5": (of("Ernie4_5ForCausalLM", "ernie4_5", tiny, head_dim=16, use_bias=False), "ERNIE4_5"),
        "ernie4_5-moe": (of("Ernie4_5_MoeForCausalLM", "ernie4_5_moe", tiny, moe_num_experts=6, moe_k=2,
                            moe_intermediate_size=32, moe_num_shared_experts=2, moe_layer_start_index=1,
                            moe_layer_interval=1), "ERNIE4_5_MOE"),
        "phi2": (of("PhiForCausalLM", "phi", tiny, partial_rotary_factor=0.5, num_key_value_heads=4,
                    intermediate_size=128, **LAYER_NORM), "PHI2"),
        "hunyuan-dense": (of("HunYuanDenseV1ForCausalLM", "hunyuan_v1_dense", tiny, head_dim=16,
                             rope_theta=20000.0), "HUNYUAN_DENSE"),
        "hunyuan-moe": (of("HunYuanMoEV1ForCausalLM", "hunyuan_v1_moe", tiny, head_dim=8, num_experts=5,
                           moe_topk=2, intermediate_size=32), "HUNYUAN_MOE"),
        "internlm2": (of("LlamaForCausalLM", "llama", tiny), "INTERNLM2"),
        "nemotron": (of("NemotronForCausalLM", "nemotron", tiny, hidden_act="relu2", norm_eps=1e-5,
                        partial_rotary_factor=0.5, without=("rms_norm_eps",)), "NEMOTRON"),
        "olmo": (of("OlmoForCausalLM", "olmo", tiny, clip_qkv=1.5, without=("rms_norm_eps",)), "OLMO"),
        "olmo3": (of("Olmo3ForCausalLM", "olmo3", tiny, num_hidden_layers=4, sliding_window=WINDOW, rope_theta=500000.0,
                     rope_scaling={**yarn, "original_max_position_embeddings": 24, "attention_factor": 1.2}), "OLMO2"),
        "olmoe": (of("OlmoeForCausalLM", "olmoe", tiny, num_experts=5, num_experts_per_tok=2,
                     intermediate_size=32), "OLMOE"),
        "stablelm": (of("StableLmForCausalLM", "stablelm", tiny, use_qkv_bias=True, partial_rotary_factor=0.25,
                        **LAYER_NORM), "STABLELM"),
        "stablelm-parallel": (of("StableLmForCausalLM", "stablelm", tiny, use_parallel_residual=True, qk_layernorm=True,
                                 partial_rotary_factor=0.5, **LAYER_NORM), "STABLELM"),
        "granitemoe": (of("GraniteMoeForCausalLM", "granitemoe", tiny, num_local_experts=5, num_experts_per_tok=2,
                          intermediate_size=32, **SCALES), "GRANITE_MOE"),
        "granitemoe-shared": (of("GraniteMoeSharedForCausalLM", "granitemoeshared", tiny, num_local_experts=4,
                                 num_experts_per_tok=2, shared_intermediate_size=32, **SCALES), "GRANITE_MOE"),
        "llama4": (of("Llama4ForCausalLM", "llama4_text", tiny, head_dim=8, num_hidden_layers=4, num_local_experts=4,
                      num_experts_per_tok=2, intermediate_size=32, intermediate_size_mlp=64,
                      interleave_moe_layer_step=2), "LLAMA4"),
        "arcee": (of("ArceeForCausalLM", "arcee", tiny, head_dim=16, hidden_act="relu2"), "ARCEE"),
        "dots1": (of("Dots1ForCausalLM", "dots1", tiny, head_dim=16, n_routed_experts=8, n_group=4, topk_group=2,
                     num_experts_per_tok=2, moe_intermediate_size=32, n_shared_experts=2, norm_topk_prob=True,
                     routed_scaling_factor=2.5, first_k_dense_replace=1, sliding_window=None), "DOTS1"),
        "starcoder": (of("GPTBigCodeForCausalLM", "gpt_bigcode", tiny, n_embd=32, n_layer=2, n_head=4, n_positions=128,
                         multi_query=True, without=SIZES), "STARCODER"),
        "qwen2vl": (of("Qwen2ForCausalLM", "qwen2", tiny), "QWEN2VL"),
        "qwen3vl": (of("Qwen3ForCausalLM", "qwen3", tiny, head_dim=16), "QWEN3VL"),
        "qwen3vlmoe": (of("Qwen3MoeForCausalLM", "qwen3_moe", tiny, head_dim=16, num_experts=5, num_experts_per_tok=2,
                          moe_intermediate_size=32, norm_topk_prob=True), "QWEN3VLMOE"),
    }
    return {name: (config, mix, arch) for name, (config, arch) in found.items()}


def add_values(writer, arch, config):
    hidden, heads = config.get("hidden_size", config.get("n_embd")), config.get("num_attention_heads", config.get("n_head"))
    writer.add_embedding_length(hidden)
    writer.add_block_count(config.get("num_hidden_layers", config.get("n_layer")))
    writer.add_head_count(heads)
    writer.add_vocab_size(config["vocab_size"])
    inner = config.get("intermediate_size_mlp", config.get("intermediate_size", 4 * hidden))
    writer.add_feed_forward_length(inner)
    writer.add_context_length(config.get("max_position_embeddings", config.get("n_positions")))
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    part = config.get("partial_rotary_factor", 0.5 if arch in ("CHATGLM", "GLM4") else None)
    expert_size = {"ERNIE4_5_MOE": "moe_intermediate_size", "LLAMA4": "intermediate_size"}.get(arch, "moe_intermediate_size")
    for value, add in ((config.get("num_key_value_heads", 1 if arch == "STARCODER" else None), writer.add_head_count_kv),
                       (config.get("rope_theta", rope.get("rope_theta")), writer.add_rope_freq_base),
                       (part and int(part * config.get("head_dim", hidden // heads)), writer.add_rope_dimension_count),
                       (config.get("rms_norm_eps"), writer.add_layer_norm_rms_eps),
                       (config.get("layer_norm_eps", config.get("norm_eps")), writer.add_layer_norm_eps),
                       (1e-5 if arch in ("OLMO", "STARCODER") else None, writer.add_layer_norm_eps),
                       (config.get("clip_qkv"), writer.add_clamp_kqv),
                       (config.get("logit_scale", config.get("logits_scaling")), writer.add_logit_scale),
                       (config.get("embedding_multiplier"), writer.add_embedding_scale),
                       (config.get("residual_multiplier"), writer.add_residual_scale),
                       (config.get("attention_multiplier"), writer.add_attention_scale),
                       (config.get("sliding_window"), writer.add_sliding_window),
                       (config.get("head_dim") if arch != "CHATGLM" else None, writer.add_key_length),
                       (config.get("head_dim") if arch != "CHATGLM" else None, writer.add_value_length),
                       (config.get(expert_size) if arch in ("ERNIE4_5_MOE", "LLAMA4", "DOTS1", "QWEN3VLMOE") else None,
                        writer.add_expert_feed_forward_length),
                       (config.get("shared_intermediate_size"), writer.add_expert_shared_feed_forward_length),
                       (config.get("n_shared_experts", config.get("moe_num_shared_experts")), writer.add_expert_shared_count),
                       (config.get("first_k_dense_replace", config.get("moe_layer_start_index")),
                        writer.add_leading_dense_block_count),
                       (config.get("interleave_moe_layer_step", config.get("moe_layer_interval")),
                        writer.add_interleave_moe_layer_step),
                       (config.get("n_group"), writer.add_expert_group_count),
                       (config.get("topk_group"), writer.add_expert_group_used_count),
                       (config.get("routed_scaling_factor"), writer.add_expert_weights_scale),
                       (config.get("use_parallel_residual"), writer.add_parallel_residual),
                       (config.get("norm_topk_prob") if arch == "DOTS1" else None, writer.add_expert_weights_norm)):
        if value is not None:
            add(value)
    for names, add in ((("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"), writer.add_expert_count),
                       (("num_experts_per_tok", "moe_topk", "moe_k"), writer.add_expert_used_count)):
        for name in names:
            if name in config:
                add(config[name])
    if arch in ("EXAONE4", "OLMO2"):
        types = config.get("layer_types") or ["full_attention" if i % 4 == 3 else "sliding_attention" for i in range(4)]
        writer.add_sliding_window_pattern([kind == "sliding_attention" for kind in types])
    if rope.get("rope_type") == "yarn":
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(rope["factor"])
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
        writer.add_rope_scaling_yarn_beta_fast(rope["beta_fast"])
        writer.add_rope_scaling_yarn_beta_slow(rope["beta_slow"])
        if "attention_factor" in rope:
            writer.add_rope_scaling_yarn_attn_factor(rope["attention_factor"])
    if arch == "MISTRAL3":
        writer.add_rope_scaling_yarn_log_mul(rope["mscale_all_dim"])
        writer.add_attn_temperature_scale(rope["llama_4_scaling_beta"])
    if arch in ("QWEN2VL", "QWEN3VL", "QWEN3VLMOE"):
        writer.add_rope_dimension_sections([2, 1, 1, 0])


def name_of(tensor, arch, num_layers):
    for spelled, published in ((".gate.moe_statics.", ".moe_statics."), ("router.weight", "router.layer.weight"),
                               ("e_score_correction_bias", "e_score_correction.bias")):
        if spelled != "router.weight" or "block_sparse_moe" in tensor:
            tensor = tensor.replace(spelled, published)
    found = gguf.get_tensor_name_map(getattr(gguf.MODEL_ARCH, arch), num_layers).get_name(
        tensor, try_suffixes=(".weight", ".bias"))
    assert found is not None, tensor
    return found


class Writer:
    """Writes parameters as the converter would; gives back what the model has to compute with."""

    def __init__(self, arch, config, quantiser, quantize, interleave):
        self.arch, self.config, self.quantiser = arch, config, quantiser
        self.quantize, self.interleave = quantize, interleave
        self.parts = {}  # of tensors that are one in the file

    def add_part(self, name, key, raw, count, join, **kwargs):
        parts = self.parts.setdefault(name, {})
        parts[key] = raw
        if len(parts) == count:
            self.quantiser.writer.add_tensor(name, join([parts[k] for k in sorted(parts)]), **kwargs)

    def write_fused(self, layer, part, values):
        """ChatGLM's q, k and v in one tensor."""
        which, kind = part.split(".")[1][0], part.rsplit(".", 1)[1]
        q8 = gguf.GGMLQuantizationType.Q8_0
        raw = values if kind == "bias" else self.quantize(np.ascontiguousarray(values), q8)
        self.add_part(f"blk.{layer}.attn_qkv.{kind}", "qkv".index(which), raw, 3, np.concatenate,
                      **({} if kind == "bias" else {"raw_dtype": q8}))
        return values if kind == "bias" else gguf.dequantize(raw, q8).astype(np.float32)

    def write_experts(self, layer, part, values):
        """Gate and up of all experts, or of the shared one, in one; or down."""
        is_turned = self.config["model_type"] == "llama4_text"
        turned = values.swapaxes(1, 2) if is_turned else values
        kind = "shexp" if part.startswith("shared_mlp") else "exps"
        if part.endswith("down_proj"):
            read_back = self.quantiser.write(f"blk.{layer}.ffn_down_{kind}.weight", turned)
        elif self.arch == "OLMOE":
            read_back = self.quantiser.write(f"blk.{layer}.ffn_gate_up_exps.weight", turned)
        else:
            halves = np.split(turned, 2, axis=-2)
            read_back = np.concatenate([self.quantiser.write(f"blk.{layer}.ffn_{name}_{kind}.weight", rows)
                                        for name, rows in zip(("gate", "up"), halves)], axis=-2)
        return read_back.swapaxes(1, 2) if is_turned else read_back

    def write(self, tensor, values):
        layer, part = (tensor.split(".", 3)[2:] if ".layers." in tensor else (None, tensor))
        if part.endswith(("experts.gate_up_proj", "experts.down_proj", "shared_mlp.input_linear.weight")):
            return self.write_experts(layer, part, values)
        if self.arch == "CHATGLM" and part.startswith(("self_attn.q_", "self_attn.k_", "self_attn.v_")):
            return self.write_fused(layer, part, values)
        if "layernorm.norms." in part:
            heads = self.config["num_attention_heads" if "q_layer" in part else "num_key_value_heads"]
            self.add_part(f"blk.{layer}.attn_{part.split('.')[1][0]}_norm.weight", int(part.split(".")[3]), values, heads,
                          np.stack)
            return values
        name = name_of(tensor, self.arch, self.config.get("num_hidden_layers", 2))
        if self.arch == "NEMOTRON" and name.endswith("norm.weight"):
            self.quantiser.writer.add_tensor(name, values + 1)
            return values + np.float32(1) - np.float32(1)
        is_rotated = self.arch in PERMUTED and part.startswith(("self_attn.q_proj", "self_attn.k_proj"))
        heads = self.config.get("num_attention_heads" if ".q_proj" in tensor else "num_key_value_heads")
        laid_out = self.interleave(values, heads) if is_rotated else values
        if laid_out.ndim == 1 or "_norm" in name or "exp_probs" in name:
            self.quantiser.writer.add_tensor(name, np.ascontiguousarray(laid_out))
            return values
        read_back = self.quantiser.write(name, laid_out)
        rows = values.shape[0]
        return (read_back.reshape(heads, rows // heads // 2, 2, -1).swapaxes(1, 2).reshape(values.shape) if is_rotated
                else read_back)
