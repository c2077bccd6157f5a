#!/usr/bin/env python3
"""A GGUF file of random weights in a published model's shape, in the formats that llama.cpp's quantiser chooses.

    tools/make_random_gguf.py qwen2.5-0.5b Q4_K_M qwen2.5-0.5b-Q4_K_M.gguf

It needs the Python packages gguf and numpy. For tools/bench_peers.py and tools/bench_engine: such a file takes the time
of a trained one. Its tokens are the bundled model's, and names for the rest. Q4_K_M stores the LM head and some layers'
v and down projections in Q6_K; rows that are not whole blocks of 256 become Q5_0 and Q8_0 instead. Small matrices that
llama.cpp leaves alone stay in 16 or 32 bits, the table of Gemma 4's per-layer inputs is Q8_0 in a BF16 file.
"""
import argparse
import json
import pathlib

import gguf
import numpy as np
from gguf import GGMLQuantizationType as T

ROOT = pathlib.Path(__file__).resolve().parent.parent
HALVES = {T.BF16: (), T.Q4_K: (0, 2), T.Q6_K: (208,), T.Q8_0: (0,), T.Q4_0: (0,), T.Q5_0: (0,)}
SCALES = {T.Q4_K: 1e-4, T.Q6_K: 2e-5, T.Q8_0: 2e-4, T.Q4_0: 4e-3, T.Q5_0: 2e-3}
ARCHITECTURES = {"qwen3_5_text": "qwen35", "gemma4_text": "gemma4"}
SMALLER = {T.Q4_K: T.Q5_0, T.Q6_K: T.Q8_0}


def more_bits(layer, layers):
    return layer < layers // 8 or layer >= 7 * layers // 8 or (layer - layers // 8) % 3 == 2


def kind_of(mix, name, layer, layers):
    if mix in ("BF16", "Q8_0"):
        return T[mix]
    if name == "token_embd" or name == "output":
        return T.Q6_K
    if mix == "Q4_0":
        return T.Q4_0
    return T.Q6_K if name in ("attn_v", "ffn_down") and more_bits(layer, layers) else T.Q4_K


class RandomModel:
    def __init__(self, path, arch, mix, layers):
        self.writer, self.mix, self.layers = gguf.GGUFWriter(path, arch), mix, layers
        self.generator = np.random.default_rng(1)

    def matrix(self, name, rows, cols, layer=None, kind=None):
        kind = kind or kind_of(self.mix, name, layer, self.layers)
        prefix = "" if layer is None else f"blk.{layer}."
        if kind == T.BF16:
            numbers = self.generator.integers(-2**15, 2**15, rows * cols, np.int16).view(np.uint16)
            numbers = numbers & 0x807f | 0x3c00  # 0.0078 to 0.0156 in size
            self.writer.add_tensor(f"{prefix}{name}.weight", numbers.view(np.uint8).reshape(rows, -1), raw_dtype=kind)
            return
        if cols % gguf.GGML_QUANT_SIZES[kind][0]:
            kind = SMALLER[kind]
        size, num_bytes = gguf.GGML_QUANT_SIZES[kind]
        raw = np.frombuffer(self.generator.bytes(rows * cols // size * num_bytes), np.uint8)
        raw = raw.copy().reshape(-1, num_bytes)
        for at in HALVES[kind]:
            scale = np.abs(self.generator.normal(size=(raw.shape[0], 1))) * SCALES[kind]
            raw[:, at:at + 2] = scale.astype(np.float16).view(np.uint8)
        self.writer.add_tensor(f"{prefix}{name}.weight", raw.reshape(rows, -1), raw_dtype=kind)

    def vector(self, name, size, value):
        self.writer.add_tensor(name, np.full(size, value, np.float32))


def add_tokenizer(writer, vocab_size):
    model = json.loads((ROOT / "data/model/tokenizer.json").read_text())
    tokens, types = [f"<unused{i}>" for i in range(vocab_size)], [1] * vocab_size
    for token, index in model["model"]["vocab"].items():
        tokens[index] = token
    for token in model["added_tokens"]:
        tokens[token["id"]], types[token["id"]] = token["content"], 3
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges([m if isinstance(m, str) else " ".join(m) for m in model["model"]["merges"]])
    writer.add_eos_token_id(1)


def add_sizes(w, c, head_dim):
    w.add_context_length(c["max_position_embeddings"])
    w.add_embedding_length(c["hidden_size"])
    w.add_block_count(c["num_hidden_layers"])
    w.add_head_count(c["num_attention_heads"])
    w.add_layer_norm_rms_eps(c["rms_norm_eps"])
    w.add_vocab_size(c["vocab_size"])
    if c["model_type"] == "gemma4_text":
        return add_gemma4_sizes(w, c)
    w.add_feed_forward_length(c["intermediate_size"])
    w.add_head_count_kv(c["num_key_value_heads"])
    w.add_key_length(head_dim)
    w.add_value_length(head_dim)
    rope = c.get("rope_parameters", c)
    w.add_rope_freq_base(float(rope["rope_theta"]))
    w.add_rope_dimension_count(int(head_dim * rope.get("partial_rotary_factor", 1)))
    if c["model_type"] == "qwen3_5_text":
        w.add_rope_dimension_sections([*rope["mrope_section"], 0])
        w.add_ssm_conv_kernel(c["linear_conv_kernel_dim"])
        w.add_ssm_state_size(c["linear_key_head_dim"])
        w.add_ssm_group_count(c["linear_num_key_heads"])
        w.add_ssm_time_step_rank(c["linear_num_value_heads"])
        w.add_ssm_inner_size(c["linear_num_value_heads"] * c["linear_value_head_dim"])
        w.add_full_attention_interval(c["layer_types"].index("full_attention") + 1)


def add_gemma4_sizes(w, c):
    slides = [t == "sliding_attention" for t in c["layer_types"]]
    shared, wide, narrow = c["num_kv_shared_layers"], c["global_head_dim"], c["head_dim"]
    w.add_feed_forward_length([c["intermediate_size"]] * (len(slides) - shared) + [2 * c["intermediate_size"]] * shared)
    w.add_head_count_kv([c["num_key_value_heads"]] * len(slides))
    w.add_key_length(wide)
    w.add_value_length(wide)
    w.add_rope_dimension_count(wide)
    w.add_rope_freq_base(c["rope_parameters"]["full_attention"]["rope_theta"])
    w.add_sliding_window(c["sliding_window"])
    w.add_final_logit_softcapping(c["final_logit_softcapping"])
    w.add_array("gemma4.attention.sliding_window_pattern", slides)
    for key, value in (("attention.shared_kv_layers", shared), ("attention.key_length_swa", narrow),
                       ("embedding_length_per_layer_input", c["hidden_size_per_layer_input"]),
                       ("attention.value_length_swa", narrow), ("rope.dimension_count_swa", narrow)):
        w.add_uint32(f"gemma4.{key}", value)
    w.add_float32("gemma4.rope.freq_base_swa", c["rope_parameters"]["sliding_attention"]["rope_theta"])


def add_attention(m, c, layer, head_dim, has_kv=True):
    hidden, heads, kind = c["hidden_size"], c["num_attention_heads"], c["model_type"]
    kv_heads = c["num_key_value_heads"] if has_kv else 0
    for part, rows in (("q", heads * (2 if c.get("attn_output_gate") else 1)), ("k", kv_heads), ("v", kv_heads)):
        if rows == 0:
            continue
        m.matrix(f"attn_{part}", rows * head_dim, hidden, layer)
        if kind == "qwen2":
            m.vector(f"blk.{layer}.attn_{part}.bias", rows * head_dim, 0)
        if kind not in ("qwen2", "llama") and part != "v":
            m.vector(f"blk.{layer}.attn_{part}_norm.weight", head_dim, 1)
    m.matrix("attn_output", hidden, heads * head_dim, layer)


def add_delta_net(m, c, layer):
    hidden, keys, heads = c["hidden_size"], c["linear_num_key_heads"], c["linear_num_value_heads"]
    value_dim = c["linear_value_head_dim"]
    channels, values = 2 * keys * c["linear_key_head_dim"] + heads * value_dim, heads * value_dim
    m.matrix("attn_qkv", channels, hidden, layer)
    m.matrix("attn_gate", values, hidden, layer)
    m.matrix("ssm_alpha", heads, hidden, layer)
    m.matrix("ssm_beta", heads, hidden, layer)
    m.matrix("ssm_out", hidden, values, layer)
    taps = c["linear_conv_kernel_dim"]
    m.writer.add_tensor(f"blk.{layer}.ssm_conv1d.weight", np.full((channels, taps), 1 / taps, np.float32))
    m.vector(f"blk.{layer}.ssm_dt.bias", heads, 0)
    m.vector(f"blk.{layer}.ssm_a", heads, -1)
    m.vector(f"blk.{layer}.ssm_norm.weight", value_dim, 1)


def add_gemma4_inputs(m, c):
    hidden, layers, size = c["hidden_size"], c["num_hidden_layers"], c["hidden_size_per_layer_input"]
    table = T.Q8_0 if m.mix == "BF16" else kind_of(m.mix, "token_embd", None, layers)
    m.matrix("per_layer_token_embd", c["vocab_size_per_layer_input"], layers * size, kind=table)
    m.matrix("per_layer_model_proj", layers * size, hidden, kind=T.BF16)
    m.vector("per_layer_proj_norm.weight", size, 1)
    pairs = c["global_head_dim"] // 2
    turned = int(pairs * c["rope_parameters"]["full_attention"]["partial_rotary_factor"])
    m.writer.add_tensor("rope_freqs.weight", np.array([1.0] * turned + [1e30] * (pairs - turned), np.float32))
    for layer in range(layers):
        m.matrix("inp_gate", size, hidden, layer)
        m.matrix("proj", hidden, size, layer)
        m.vector(f"blk.{layer}.post_norm.weight", hidden, 1)
        m.vector(f"blk.{layer}.layer_output_scale.weight", 1, 1)


def add_layer(m, c, layer, head_dim):
    hidden, inner, kind = c["hidden_size"], c["intermediate_size"], c["model_type"]
    norms = {"gemma4_text": ("attn_norm", "ffn_norm", "post_attention_norm", "post_ffw_norm"),
             "qwen3_5_text": ("attn_norm", "post_attention_norm")}.get(kind, ("attn_norm", "ffn_norm"))
    for norm in norms:
        m.vector(f"blk.{layer}.{norm}.weight", hidden, 1)
    has_kv = layer < c["num_hidden_layers"] - c.get("num_kv_shared_layers", 0)
    if c.get("layer_types", [""] * (layer + 1))[layer] == "linear_attention":
        add_delta_net(m, c, layer)
    elif kind == "gemma4_text":
        is_full = c["layer_types"][layer] == "full_attention"
        add_attention(m, c, layer, c["global_head_dim"] if is_full else head_dim, has_kv)
        inner *= 1 if has_kv else 2
    else:
        add_attention(m, c, layer, head_dim)
    m.matrix("ffn_gate", inner, hidden, layer)
    m.matrix("ffn_up", inner, hidden, layer)
    m.matrix("ffn_down", hidden, inner, layer)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shape", help="a directory of data/shapes")
    parser.add_argument("mix", choices=["BF16", "Q4_K_M", "Q8_0", "Q4_0"])
    parser.add_argument("out")
    args = parser.parse_args()
    c = json.loads((ROOT / "data/shapes" / args.shape / "config.json").read_text())
    c = {**c, **c.get("text_config", {})}
    head_dim = c.get("head_dim") or c["hidden_size"] // c["num_attention_heads"]
    m = RandomModel(args.out, ARCHITECTURES.get(c["model_type"], c["model_type"]), args.mix, c["num_hidden_layers"])
    add_sizes(m.writer, c, head_dim)
    add_tokenizer(m.writer, c["vocab_size"])
    m.matrix("token_embd", c["vocab_size"], c["hidden_size"])
    m.vector("output_norm.weight", c["hidden_size"], 1)
    if not c.get("tie_word_embeddings"):
        m.matrix("output", c["vocab_size"], c["hidden_size"])
    if c["model_type"] == "gemma4_text":
        add_gemma4_inputs(m, c)
    for layer in range(c["num_hidden_layers"]):
        add_layer(m, c, layer, head_dim)
    m.writer.write_header_to_file()
    m.writer.write_kv_data_to_file()
    m.writer.write_tensors_to_file()
    m.writer.close()


if __name__ == "__main__":
    main()
