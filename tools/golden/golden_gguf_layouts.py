"""How llama.cpp's converter lays out the architectures that are not Llama's kin, and back."""
import gguf
import numpy as np

ARCHITECTURES = {
    "gpt2": "GPT2", "gpt_neox": "GPTNEOX", "falcon": "FALCON", "bloom": "BLOOM", "mpt": "MPT", "gpt_oss": "GPT_OSS"
}
GROUPED = ("gpt_neox", "bloom", "falcon")  # the rows of q, k and v of a KV head together
TRANSPOSED = ("c_attn.weight", "c_proj.weight", "c_fc.weight")  # of GPT-2's Conv1D


def name_of(tensor, config):
    arch = getattr(gguf.MODEL_ARCH, ARCHITECTURES[config.model_type])
    names = gguf.get_tensor_name_map(arch, config.num_hidden_layers)
    spellings = (tensor, tensor.removeprefix("transformer."))  # Bloom's files are without
    found = next(filter(None, (names.get_name(s, try_suffixes=(".weight", ".bias")) for s in spellings)), None)
    assert found is not None, tensor
    return found if found.endswith((".weight", ".bias")) else found + ".weight"


def groups_of(config):
    """KV heads, and rows of heads in the group of one: its queries, a key, a value."""
    heads = config.num_attention_heads
    if config.model_type != "falcon":
        return heads, 3
    kv = config.num_kv_heads if config.new_decoder_architecture else 1
    return kv, heads // kv + 2


def is_grouped(tensor, config):
    return config.model_type in GROUPED and "query_key_value" in tensor


def to_gguf(tensor, values, config):
    if config.model_type == "gpt2" and tensor.endswith(TRANSPOSED):
        return values.T
    if not is_grouped(tensor, config):
        return values
    kv, size = groups_of(config)
    rows = values.reshape(kv, size, values.shape[0] // (kv * size), -1)
    parts = rows[:, :size - 2], rows[:, size - 2:size - 1], rows[:, size - 1:]
    return np.concatenate([p.reshape(-1, rows.shape[-1]) for p in parts]).reshape(values.shape)


def from_gguf(tensor, values, config):
    if config.model_type == "gpt2" and tensor.endswith(TRANSPOSED):
        return values.T
    if not is_grouped(tensor, config):
        return values
    kv, size = groups_of(config)
    head_dim = values.shape[0] // (kv * size)
    rows = values.reshape(values.shape[0], -1)
    q, k, v = np.split(rows, [kv * (size - 2) * head_dim, kv * (size - 1) * head_dim])
    parts = [q.reshape(kv, size - 2, head_dim, -1), k.reshape(kv, 1, head_dim, -1), v.reshape(kv, 1, head_dim, -1)]
    return np.concatenate(parts, 1).reshape(values.shape)


def add_gpt_oss_values(writer, config):
    writer.add_context_length(config.max_position_embeddings)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_expert_feed_forward_length(config.intermediate_size)
    writer.add_expert_count(config.num_local_experts)
    writer.add_expert_used_count(config.num_experts_per_tok)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_sliding_window(config.sliding_window)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    rope = config.rope_parameters
    writer.add_rope_freq_base(rope["rope_theta"])
    writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
    writer.add_rope_scaling_factor(rope["factor"])
    writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])


def add_values(writer, config):
    model_type, heads = config.model_type, config.num_attention_heads
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_head_count(heads)
    writer.add_vocab_size(config.vocab_size)
    if model_type == "gpt_oss":
        return add_gpt_oss_values(writer, config)
    writer.add_layer_norm_eps(getattr(config, "layer_norm_eps", None) or config.layer_norm_epsilon)
    inner = 4 * config.hidden_size
    if model_type == "gpt2":
        writer.add_context_length(config.n_positions)
    elif model_type == "gpt_neox":
        inner = config.intermediate_size
        writer.add_context_length(config.max_position_embeddings)
        writer.add_rope_dimension_count(
            int(config.rope_parameters["partial_rotary_factor"] * config.hidden_size // heads))
        writer.add_parallel_residual(config.use_parallel_residual)
    elif model_type == "falcon":
        inner = config.ffn_hidden_size
        writer.add_context_length(2048)
        writer.add_head_count_kv(config.num_kv_heads if config.new_decoder_architecture else 1)
    elif model_type == "bloom":
        writer.add_context_length(config.seq_length)
    elif model_type == "mpt":
        writer.add_context_length(config.max_seq_len)
        writer.add_clamp_kqv(config.attn_config.clip_qkv)
        writer.add_max_alibi_bias(config.attn_config.alibi_bias_max)
    writer.add_feed_forward_length(inner)


def expert_parts(tensor, values):
    """GPT-OSS: of the experts' stacked tensors [E, in, out], what the converter writes, by name: [E, out, in]."""
    layer = tensor.split(".")[2]
    part = "bias" if tensor.endswith("_bias") else "weight"
    turned = values if part == "bias" else values.swapaxes(1, 2)
    if "down_proj" in tensor:
        return {f"blk.{layer}.ffn_down_exps.{part}": turned}
    return {f"blk.{layer}.ffn_gate_exps.{part}": turned[:, 0::2], f"blk.{layer}.ffn_up_exps.{part}": turned[:, 1::2]}


def from_expert_parts(tensor, parts):
    turned = parts[0]
    if len(parts) == 2:
        turned = np.stack(parts, 2).reshape((parts[0].shape[0], 2 * parts[0].shape[1]) + parts[0].shape[2:])
    return turned if tensor.endswith("_bias") else turned.swapaxes(1, 2)
