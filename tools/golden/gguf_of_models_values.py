"""The values of the files that make_gguf_of_models.py writes: sizes, pooling and tokenizers."""
import json

import gguf
import numpy as np
from gguf import MODEL_ARCH as A

SPACE = "\u2581"
ENCODERS = (A.BERT, A.NOMIC_BERT, A.MODERN_BERT, A.GEMMA_EMBEDDING)


def older_nomic(tensors):
    """The first spelling of Nomic's files, which is the converter's: q, k and v in one, and so on."""
    names = {"embeddings.LayerNorm": "emb_ln", "self_attn.o_proj": "attn.out_proj", "post_attention_layernorm": "norm1",
             "post_mlp_layernorm": "norm2", "mlp.up_proj": "mlp.fc11", "mlp.gate_proj": "mlp.fc12",
             "mlp.down_proj": "mlp.fc2"}
    out = {}
    for name, tensor in tensors.items():
        name = f"encoder.{name}" if name.startswith("layers.") else name
        if "self_attn.q_proj" in name:
            parts = [tensors[name.removeprefix("encoder.").replace("q_proj", f"{p}_proj")] for p in "qkv"]
            out[name.replace("self_attn.q_proj", "attn.Wqkv")] = np.concatenate(parts)
        elif "self_attn.k_proj" not in name and "self_attn.v_proj" not in name:
            for new, old in names.items():
                name = name.replace(new, old)
            out[name] = tensor
    return out


def add_rope_factors(writer, config):
    """Pairs that do not turn have frequencies divided by 1e30."""
    pairs = config["global_head_dim"] // 2
    turned = int(config["global_head_dim"] * 0.25 / 2)
    writer.add_tensor("rope_freqs.weight", np.array([1.0] * turned + [1e30] * (pairs - turned), np.float32))


def add_delta(writer, config, num_mtp):
    writer.add_ssm_conv_kernel(config["linear_conv_kernel_dim"])
    writer.add_ssm_state_size(config["linear_key_head_dim"])
    writer.add_ssm_group_count(config["linear_num_key_heads"])
    writer.add_ssm_time_step_rank(config["linear_num_value_heads"])
    writer.add_ssm_inner_size(config["linear_value_head_dim"] * config["linear_num_value_heads"])
    states = [t == "linear_attention" for t in config["layer_types"]]
    writer.add_array(f"{writer.arch}.attention.recurrent_layers", states + [False] * num_mtp)
    writer.add_rope_dimension_count(int(config["head_dim"] * config.get("partial_rotary_factor", 0.25)))
    if num_mtp:
        writer.add_nextn_predict_layers(num_mtp)
    if "shared_expert_intermediate_size" in config:
        writer.add_expert_shared_feed_forward_length(config["shared_expert_intermediate_size"])


def add_mamba2(writer, heads, inner, groups, state, width):
    writer.add_ssm_time_step_rank(heads)
    writer.add_ssm_inner_size(inner)
    writer.add_ssm_group_count(groups)
    writer.add_ssm_state_size(state)
    writer.add_ssm_conv_kernel(width)


def add_granite(writer, config):
    add_mamba2(writer, config["mamba_n_heads"], config["mamba_expand"] * config["hidden_size"], config["mamba_n_groups"],
               config["mamba_d_state"], config["mamba_d_conv"])
    writer.add_attention_scale(config["attention_multiplier"])
    writer.add_embedding_scale(config["embedding_multiplier"])
    writer.add_residual_scale(config["residual_multiplier"])
    writer.add_logit_scale(config["logits_scaling"])
    writer.add_rope_scaling_finetuned(config["position_embedding_type"] == "rope")
    writer.add_expert_shared_feed_forward_length(config["shared_intermediate_size"])
    writer.add_head_count_kv([0 if t == "mamba" else config["num_key_value_heads"] for t in config["layer_types"]])


def add_nemotron(writer, config):
    add_mamba2(writer, config["mamba_num_heads"], config["mamba_num_heads"] * config["mamba_head_dim"],
               config["n_groups"], config["ssm_state_size"], config["conv_kernel"])
    kinds = config["hybrid_override_pattern"]
    size = config.get("moe_intermediate_size", config["intermediate_size"])
    writer.add_head_count_kv([config["num_key_value_heads"] if k == "*" else 0 for k in kinds])
    writer.add_feed_forward_length([size if k in "E-" and not (k == "-" and "E" in kinds) else
                                    config["intermediate_size"] if k == "-" else 0 for k in kinds])
    if "n_routed_experts" not in config:
        return
    writer.add_expert_shared_feed_forward_length(config["moe_shared_expert_intermediate_size"])
    writer.add_expert_shared_count(config["n_shared_experts"])
    writer.add_expert_weights_norm(True)
    writer.add_expert_weights_scale(config["routed_scaling_factor"])
    writer.add_expert_group_count(config["n_group"])
    writer.add_expert_group_used_count(config["topk_group"])


def add_gemma4(writer, config):
    slides = [t == "sliding_attention" for t in config["layer_types"]]
    shared, size = config.get("num_kv_shared_layers", 0), config["intermediate_size"]
    writer.add_array(f"{writer.arch}.attention.sliding_window_pattern", slides)
    writer.add_uint32(f"{writer.arch}.attention.shared_kv_layers", shared)
    writer.add_uint32(f"{writer.arch}.embedding_length_per_layer_input", config["hidden_size_per_layer_input"])
    writer.add_key_length(config["global_head_dim"])
    writer.add_uint32(f"{writer.arch}.attention.key_length_swa", config["head_dim"])
    writer.add_float32(f"{writer.arch}.rope.freq_base_swa", 10000.0)
    full = config.get("num_global_key_value_heads", config["num_key_value_heads"])
    writer.add_head_count_kv([config["num_key_value_heads"] if s else full for s in slides])
    if config.get("use_double_wide_mlp"):
        own = len(slides) - shared
        writer.add_feed_forward_length([size] * own + [2 * size] * shared)
    if "top_k_experts" in config:
        writer.add_expert_used_count(config["top_k_experts"])


def add_encoder(writer, arch, config, directory):
    writer.add_causal_attention(False)
    for folder, number in (("pooling_mode_mean_tokens", 1), ("pooling_mode_cls_token", 2)):
        path = directory / "1_Pooling/config.json"
        if path.exists() and json.loads(path.read_text()).get(folder):
            writer.add_uint32(f"{writer.arch}.pooling_type", number)
    if arch == A.MODERN_BERT:
        writer.add_sliding_window(config["local_attention"])
        writer.add_float32(f"{writer.arch}.rope.freq_base_swa", 10000.0)
    if arch == A.GEMMA_EMBEDDING:
        writer.add_uint32(f"{writer.arch}.attention.sliding_window_pattern", config["sliding_window_pattern"])
    labels = config.get("id2label")
    if "ForSequenceClassification" in config["architectures"][0]:
        writer.add_array(f"{writer.arch}.classifier.output_labels", [v for _, v in sorted(labels.items())])
        kinds = {"mean": 1, "cls": 2}
        if arch == A.MODERN_BERT:
            writer.add_uint32(f"{writer.arch}.classifier.pooling_type", kinds[config.get("classifier_pooling", "cls")])


def add_tokenizer(writer, directory):
    path = directory / "tokenizer.json"
    if not path.exists():
        return
    file = json.loads(path.read_text())
    model, special = file["model"], {t["content"] for t in file["added_tokens"]}
    is_unigram = model["type"] == "Unigram"
    tokens = [t for t, _ in model["vocab"]] if is_unigram else sorted(model["vocab"], key=model["vocab"].get)
    config = json.loads((directory / "tokenizer_config.json").read_text())
    kinds = [gguf.TokenType.CONTROL if t in special else gguf.TokenType.NORMAL for t in tokens]
    if model["type"] == "WordPiece":
        writer.add_tokenizer_model("bert")
        tokens = [t if t in special else t[2:] if t.startswith("##") else SPACE + t for t in tokens]
    elif is_unigram:
        writer.add_tokenizer_model("t5")
        writer.add_token_scores([s for _, s in model["vocab"]])
        kinds[model["unk_id"]] = gguf.TokenType.UNKNOWN
    else:
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre("gpt-2")
        writer.add_token_merges([m if isinstance(m, str) else " ".join(m) for m in model["merges"]])
    first = config.get("cls_token", config.get("bos_token"))
    last = config.get("sep_token", config.get("eos_token"))
    plain = [t.removeprefix(SPACE) if t.removeprefix(SPACE) in special else t for t in tokens]
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_bos_token_id(plain.index(first))
    writer.add_eos_token_id(plain.index(last))
    writer.add_sep_token_id(plain.index(last))
    writer.add_unk_token_id(plain.index(config["unk_token"]))
    writer.add_pad_token_id(plain.index(config["pad_token"]))
    writer.add_add_bos_token(True)
    writer.add_add_eos_token(True)


def add_values(writer, arch, config, directory, num_mtp):
    writer.add_context_length(config["max_position_embeddings"] -
                              (config["pad_token_id"] + 1 if "roberta" in config["model_type"] else 0))
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"] + num_mtp)
    writer.add_head_count(config["num_attention_heads"])
    has_own_sizes = arch in (A.NEMOTRON_H, A.NEMOTRON_H_MOE, A.LFM2) or config.get("use_double_wide_mlp")
    if "intermediate_size" in config and not has_own_sizes:
        writer.add_feed_forward_length(config["intermediate_size"])
    has_own_heads = arch in (A.NEMOTRON_H, A.NEMOTRON_H_MOE, A.LFM2, A.GRANITE_HYBRID, A.GEMMA4)
    if "num_key_value_heads" in config and not has_own_heads:
        writer.add_head_count_kv(config["num_key_value_heads"])
    if "head_dim" in config and arch != A.GEMMA4:
        writer.add_key_length(config["head_dim"])
    theta = {A.GEMMA4: 1e6, A.GEMMA_EMBEDDING: 1e6, A.MODERN_BERT: 160000.0, A.NOMIC_BERT: 1000.0}.get(arch, 10000.0)
    if arch != A.BERT:
        writer.add_rope_freq_base(config.get("rope_theta", theta))
    if arch in (A.BERT, A.NOMIC_BERT, A.MODERN_BERT):
        writer.add_layer_norm_eps(config.get("layer_norm_eps", {A.MODERN_BERT: 1e-5}.get(arch, 1e-12)))
    elif "layer_norm_epsilon" in config:
        writer.add_layer_norm_eps(config["layer_norm_epsilon"])
    else:
        writer.add_layer_norm_rms_eps(config.get("rms_norm_eps", config.get("norm_eps", 1e-6)))
    for field, add in (("sliding_window", writer.add_sliding_window),
                       ("final_logit_softcapping", writer.add_final_logit_softcapping),
                       ("num_experts", writer.add_expert_count), ("num_local_experts", writer.add_expert_count),
                       ("n_routed_experts", writer.add_expert_count),
                       ("num_experts_per_tok", writer.add_expert_used_count),
                       ("moe_intermediate_size", writer.add_expert_feed_forward_length)):
        if config.get(field):
            add(config[field])
    if "linear_num_key_heads" in config:
        add_delta(writer, config, num_mtp)
    if arch == A.LFM2:
        size = 2 * config["intermediate_size"] // 3
        writer.add_feed_forward_length(-(-size // config["block_multiple_of"]) * config["block_multiple_of"])
        writer.add_head_count_kv([0 if t == "conv" else config["num_key_value_heads"] for t in config["layer_types"]])
        writer.add_uint32("lfm2.shortconv.l_cache", config["conv_L_cache"])
    if arch == A.GRANITE_HYBRID:
        add_granite(writer, config)
    if arch in (A.NEMOTRON_H, A.NEMOTRON_H_MOE):
        add_nemotron(writer, config)
    if arch == A.GEMMA4:
        add_gemma4(writer, config)
    if arch in ENCODERS:
        add_encoder(writer, arch, config, directory)
        add_tokenizer(writer, directory)
