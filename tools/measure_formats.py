#!/usr/bin/env python3
"""What GGUF's formats cost in accuracy: the bundled model in each of them, and the perplexity of right answers.

    tools/measure_formats.py build/llm-batch            (needs the Python packages gguf and numpy)

All matrices of the model are stored in one format, by the gguf package or the plain quantisers of
tools/golden/gguf_quantisers.py, which search for nothing: llama.cpp's make better files. Columns of zeros widen the
model to whole blocks of 256; the norms' weights are scaled, so that it computes the same function. The perplexity is
that of data/eval/heldout.jsonl's expected answers behind their questions, as options of a line, with fp32 activations
and with --gguf-activations int8.
"""
import argparse
import json
import math
import pathlib
import subprocess
import sys
import tempfile

import gguf
import numpy as np
from gguf import GGMLQuantizationType as T

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools/golden"))
from gguf_quantisers import quantize  # noqa: E402

FORMATS = (T.BF16, T.Q8_0, T.Q6_K, T.Q5_K, T.Q5_1, T.Q5_0, T.Q4_K, T.Q4_1, T.Q4_0, T.IQ4_NL, T.IQ4_XS, T.MXFP4, T.Q3_K,
           T.Q2_K)
NAMES = (("model.layers.", "blk."), ("model.embed_tokens", "token_embd"), ("model.norm", "output_norm"),
         ("input_layernorm", "attn_norm"), ("post_attention_layernorm", "ffn_norm"),
         ("self_attn.o_proj", "attn_output"), ("self_attn.", "attn_"), ("mlp.", "ffn_"), ("_proj", ""))


def read_tensors(path):
    """Those of a safetensors file in bf16."""
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    for name, entry in json.loads(data[8:8 + size]).items():
        if name != "__metadata__":
            begin, end = (8 + size + offset for offset in entry["data_offsets"])
            bits = np.frombuffer(data[begin:end], np.uint16).astype(np.uint32) << 16
            yield name, bits.view(np.float32).reshape(entry["shape"])


def whole_blocks(size):
    return -(-size // 256) * 256


class Widened:
    """The model with columns of zeros, and heads of zeros in each group that shares keys and values."""

    def __init__(self, config):
        self.config = config
        self.hidden, self.head_dim = whole_blocks(config["hidden_size"]), config["head_dim"]
        self.kv_heads, heads = config["num_key_value_heads"], config["num_attention_heads"]
        self.group = whole_blocks(heads * self.head_dim) // self.head_dim // self.kv_heads
        self.old_group = heads // self.kv_heads

    def by_heads(self, rows):
        """Rows of q, or of the transposed output projection, with heads of zeros."""
        out = np.zeros((self.kv_heads, self.group, self.head_dim, rows.shape[1]), np.float32)
        out[:, :self.old_group] = rows.reshape(self.kv_heads, self.old_group, self.head_dim, -1)
        return out.reshape(-1, rows.shape[1])

    def tensor(self, name, x):
        old = self.config["hidden_size"]
        if x.ndim == 1:  # a norm: the mean is over more numbers now
            return np.pad(x * np.float32(math.sqrt(old / self.hidden)), (0, self.hidden - old))
        if "q_proj" in name:
            x = self.by_heads(x)
        if "o_proj" in name:
            x = self.by_heads(x.T).T
        rows, cols = (self.hidden - size if size == old else 0 for size in x.shape)
        if "o_proj" in name or "down_proj" in name:
            return np.pad(x, ((0, rows), (0, 0)))
        x = np.pad(x, ((0, 0), (0, cols)))
        if "q_proj" in name or "k_proj" in name:  # neighbours are what llama.cpp rotates together
            x = x.reshape(-1, 2, self.head_dim // 2, x.shape[1]).swapaxes(1, 2).reshape(x.shape)
        return x


def write_model(model, kind, path):
    config = json.loads((model / "config.json").read_text())
    wide = Widened(config)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(wide.hidden)
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(wide.group * wide.kv_heads)
    writer.add_head_count_kv(wide.kv_heads)
    writer.add_rope_dimension_count(wide.head_dim)
    writer.add_key_length(wide.head_dim)
    writer.add_value_length(wide.head_dim)
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"] * config["hidden_size"] / wide.hidden)
    writer.add_vocab_size(config["vocab_size"])
    for name, x in read_tensors(model / "model.safetensors"):
        x = np.ascontiguousarray(wide.tensor(name, x))
        for old, new in NAMES:
            name = name.replace(old, new, 1)
        if x.ndim == 1:
            writer.add_tensor(name, x)
        else:
            writer.add_tensor(name, quantize(x, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def perplexity(program, model, tokenizer, lines, flags):
    done = subprocess.run([program, "-m", model, "--tokenizer", tokenizer, "--max-model-len", "1024", "--progress", "none",
                           *flags], input=lines, capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr)
    best = [max(json.loads(line)["options"], key=lambda option: option["logprob"]) for line in done.stdout.splitlines()]
    return math.exp(-sum(o["logprob"] for o in best) / sum(o["num_tokens"] for o in best))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", help="llm-batch")
    parser.add_argument("--model", type=pathlib.Path, default=ROOT / "data/model", help="a llama in bf16")
    parser.add_argument("--lines", type=int, default=700, help="questions, spread over the file (%(default)s)")
    args = parser.parse_args()
    questions = [json.loads(line) for line in (ROOT / "data/eval/heldout.jsonl").open()]
    questions = [q for q in questions if q.get("metadata", {}).get("expected") and "messages" in q]
    questions = questions[::max(1, len(questions) // args.lines)][:args.lines]
    lines = "".join(json.dumps({"messages": q["messages"], "options": [q["metadata"]["expected"]]}) + "\n"
                    for q in questions)
    print(f"{len(questions)} answers\n\n| format | bits a weight | perplexity | with int8 activations |\n|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for kind in FORMATS:
            path = f"{folder}/{kind.name}.gguf"
            write_model(args.model, kind, path)
            size, num_bytes = gguf.GGML_QUANT_SIZES[kind]
            flags = [["--dtype", "float32"]] + ([["--gguf-activations", "int8"]] if size > 1 else [])
            found = [f"{perplexity(args.program, path, args.model, lines, f):.4f}" for f in flags]
            bits = 8 * num_bytes / size
            print(f"| {kind.name} | {bits:.4g} | {' | '.join(found + [''] * (2 - len(found)))} |", flush=True)


if __name__ == "__main__":
    main()
