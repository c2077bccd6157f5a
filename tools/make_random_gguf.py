#!/usr/bin/env python3
"""A GGUF file of random weights in a published model's shape, in the formats that llama.cpp's quantiser chooses.

    tools/make_random_gguf.py qwen2.5-0.5b Q4_K_M qwen2.5-0.5b-Q4_K_M.gguf

It needs the Python packages gguf and numpy. For tools/bench_peers.py and tools/bench_engine: such a file takes the time of a trained one. Its tokens are the bundled
model's, and names for the rest. Q4_K_M stores the LM head and some layers' v and down projections in Q6_K; rows that
are not whole blocks of 256 become Q5_0 and Q8_0 instead.
"""
import argparse
import json
import pathlib

import gguf
import numpy as np
from gguf import GGMLQuantizationType as T

ROOT = pathlib.Path(__file__).resolve().parent.parent
HALVES = {T.Q4_K: (0, 2), T.Q6_K: (208,), T.Q8_0: (0,), T.Q4_0: (0,), T.Q5_0: (0,)}
SCALES = {T.Q4_K: 1e-4, T.Q6_K: 2e-5, T.Q8_0: 2e-4, T.Q4_0: 4e-3, T.Q5_0: 2e-3}
SMALLER = {T.Q4_K: T.Q5_0, T.Q6_K: T.Q8_0}


def more_bits(layer, layers):
    return layer < layers // 8 or layer >= 7 * layers // 8 or (layer - layers // 8) % 3 == 2


def kind_of(mix, name, layer, layers):
    if mix == "Q8_0":
        return T.Q8_0
    if name == "token_embd" or name == "output":
        return T.Q6_K
    if mix == "Q4_0":
        return T.Q4_0
    return T.Q6_K if name in ("attn_v", "ffn_down") and more_bits(layer, layers) else T.Q4_K


class RandomModel:
    def __init__(self, path, arch, mix, layers):
        self.writer, self.mix, self.layers = gguf.GGUFWriter(path, arch), mix, layers
        self.generator = np.random.default_rng(1)

    def matrix(self, name, rows, cols, layer=None):
        kind = kind_of(self.mix, name, layer, self.layers)
        if cols % gguf.GGML_QUANT_SIZES[kind][0]:
            kind = SMALLER[kind]
        size, num_bytes = gguf.GGML_QUANT_SIZES[kind]
        raw = np.frombuffer(self.generator.bytes(rows * cols // size * num_bytes), np.uint8)
        raw = raw.copy().reshape(-1, num_bytes)
        for at in HALVES[kind]:
            scale = np.abs(self.generator.normal(size=(raw.shape[0], 1))) * SCALES[kind]
            raw[:, at:at + 2] = scale.astype(np.float16).view(np.uint8)
        prefix = "" if layer is None else f"blk.{layer}."
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


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shape", help="a directory of data/shapes: a llama, qwen2 or qwen3")
    parser.add_argument("mix", choices=["Q4_K_M", "Q8_0", "Q4_0"])
    parser.add_argument("out")
    args = parser.parse_args()
    c = json.loads((ROOT / "data/shapes" / args.shape / "config.json").read_text())
    hidden, inner, layers, heads = (c[k] for k in ("hidden_size", "intermediate_size", "num_hidden_layers",
                                                   "num_attention_heads"))
    kv_heads, head_dim = c["num_key_value_heads"], c.get("head_dim") or hidden // heads
    m = RandomModel(args.out, c["model_type"], args.mix, layers)
    w = m.writer
    w.add_context_length(c["max_position_embeddings"])
    w.add_embedding_length(hidden)
    w.add_block_count(layers)
    w.add_feed_forward_length(inner)
    w.add_head_count(heads)
    w.add_head_count_kv(kv_heads)
    w.add_key_length(head_dim)
    w.add_value_length(head_dim)
    w.add_rope_dimension_count(head_dim)
    w.add_rope_freq_base(c["rope_theta"])
    w.add_layer_norm_rms_eps(c["rms_norm_eps"])
    w.add_vocab_size(c["vocab_size"])
    add_tokenizer(w, c["vocab_size"])
    m.matrix("token_embd", c["vocab_size"], hidden)
    m.vector("output_norm.weight", hidden, 1)
    if not c.get("tie_word_embeddings"):
        m.matrix("output", c["vocab_size"], hidden)
    for layer in range(layers):
        for norm, size in [("attn_norm", hidden), ("ffn_norm", hidden)] + [
                (f"attn_{x}_norm", head_dim) for x in "qk" if c["model_type"] == "qwen3"]:
            m.vector(f"blk.{layer}.{norm}.weight", size, 1)
        for part, rows in (("q", heads), ("k", kv_heads), ("v", kv_heads)):
            m.matrix(f"attn_{part}", rows * head_dim, hidden, layer)
            if c["model_type"] == "qwen2":
                m.vector(f"blk.{layer}.attn_{part}.bias", rows * head_dim, 0)
        m.matrix("attn_output", hidden, heads * head_dim, layer)
        m.matrix("ffn_gate", inner, hidden, layer)
        m.matrix("ffn_up", inner, hidden, layer)
        m.matrix("ffn_down", hidden, inner, layer)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


if __name__ == "__main__":
    main()
