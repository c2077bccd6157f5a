#!/usr/bin/env python3
"""What formats of few bits cost in accuracy: the bundled model in each of them, the perplexity of right answers, and
how many answers are right.

    tools/measure_formats.py build/llm-batch                  (needs the Python packages gguf and numpy)
    tools/measure_formats.py build/llm-batch --checkpoints    (needs those of tools/golden/requirements.txt)
    tools/measure_formats.py build/llm-batch --kv-caches

GGUF: all matrices of the model are stored in one format, by the gguf package or the plain quantisers of
tools/golden/gguf_quantisers.py, which search for nothing: llama.cpp's make better files. Columns of zeros widen the
model to whole blocks of 256; the norms' weights are scaled, so that it computes the same function.
Checkpoints: the matrices of layers are stored as GPTQ, AWQ, compressed-tensors and bitsandbytes do, rounded to the
nearest code by the packers of tools/golden/make_golden_quantized.py, without the calibration that the tools are named
for; the embedding stays as it is.
KV caches: the model as it is, each question by itself and behind seven others with their answers.
The perplexity is that of data/eval/heldout.jsonl's expected answers behind their questions, as options of a line, with
fp32 activations and with --gguf-activations int8; right answers are greedy and equal to the expected ones.
"""
import argparse
import json
import math
import pathlib
import shutil
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


GROUP = 64  # columns that share a scale


def write_checkpoint(model, folder, quantization, dtype, quantiser):
    """Bits a weight of the matrices of layers, scales and all."""
    import torch
    from safetensors.torch import load_file, save_file

    bits, count, tensors = 0, 0, {}
    for name, x in load_file(model / "model.safetensors").items():
        if name.endswith("_proj.weight"):
            parts, _ = quantiser(x.float())
            tensors |= {f"{name.removesuffix('.weight')}.{part}": t.contiguous() for part, t in parts.items()}
            bits += sum(8 * t.numel() * t.element_size() for t in parts.values())
            count += x.numel()
        else:
            tensors[name] = x.to(getattr(torch, dtype))
    for file in model.glob("*.json"):
        shutil.copy(file, folder)
    config = json.loads((model / "config.json").read_text())
    config |= {"torch_dtype": dtype, "quantization_config": quantization}
    (folder / "config.json").write_text(json.dumps(config))
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return bits / count


def fp8(weight):
    """E4M3 with a scale a row."""
    import torch

    scale = weight.abs().amax(1, keepdim=True) / 448
    return {"weight": (weight / scale).to(torch.float8_e4m3fn), "weight_scale": scale}, None


def checkpoints():
    import make_golden_quantized as packers

    packers.GROUP = GROUP
    ints = packers.of_groups
    group = {"strategy": "group", "group_size": GROUP}
    of_rows = {"num_bits": 8, "strategy": "channel", "symmetric": True}
    fp8_config = ints("float-quantized", **of_rows)
    fp8_config["config_groups"]["group_0"]["weights"]["type"] = "float"

    def gptq(bits, size, order):
        config = {"quant_method": "gptq", "bits": bits, "group_size": size, "desc_act": order}
        return config, "float16", lambda w: packers.gptq(w, bits, size, order)

    return {
        "GPTQ, 8 bits, a scale a row": gptq(8, -1, False),
        f"GPTQ, 4 bits, groups of {GROUP}": gptq(4, GROUP, False),
        "the same, columns in another order": gptq(4, GROUP, True),
        f"AWQ, 4 bits, groups of {GROUP}": ({"quant_method": "awq", "bits": 4, "group_size": GROUP, "zero_point": True,
                                            "version": "gemm"}, "float16", packers.awq),
        "compressed-tensors, W8A8, int8": (ints("int-quantized", **of_rows), "bfloat16",
                                           lambda w: packers.compressed(w, 8, "channel", packed=False)),
        "compressed-tensors, W8A8, fp8": (fp8_config, "bfloat16", fp8),
        "compressed-tensors, W8A16": (ints("pack-quantized", **of_rows), "bfloat16",
                                      lambda w: packers.compressed(w, 8, "channel")),
        f"compressed-tensors, W4A16, groups of {GROUP}": (ints("pack-quantized", num_bits=4, symmetric=True, **group),
                                                          "bfloat16", packers.compressed),
        "the same with zeros": (ints("pack-quantized", num_bits=4, symmetric=False, **group), "bfloat16",
                                lambda w: packers.compressed(w, symmetric=False)),
        "compressed-tensors, NVFP4": (packers.NVFP4, "bfloat16", packers.nvfp4),
        "bitsandbytes, int8": packers.FORMATS["llm-int8"],
        "bitsandbytes, NF4": packers.FORMATS["nf4"],
        "bitsandbytes, FP4": packers.FORMATS["fp4"],
    }


def answer(program, model, lines, flags):
    command = [program, "-m", model, "--max-model-len", "1024", "--progress", "none", "--order", "input", *flags]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    done = subprocess.run(command, input=text, capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr)
    return [json.loads(line) for line in done.stdout.splitlines()]


def perplexity(program, model, questions, flags):
    lines = [{"messages": q["messages"], "options": [q["metadata"]["expected"]]} for q in questions]
    best = [max(r["options"], key=lambda option: option["logprob"]) for r in answer(program, model, lines, flags)]
    return math.exp(-sum(o["logprob"] for o in best) / sum(o["num_tokens"] for o in best))


def num_right(program, model, questions, flags):
    lines = [{"messages": q["messages"], "max_tokens": q["max_tokens"], "temperature": 0} for q in questions]
    records = answer(program, model, lines, flags)
    return sum(r["text"].strip() == q["metadata"]["expected"] for r, q in zip(records, questions))


def measure_gguf(args, questions):
    print("| format | bits a weight | perplexity | with int8 activations | right answers | with int8 activations |\n"
          "|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for kind in FORMATS:
            path = f"{folder}/{kind.name}.gguf"
            write_model(args.model, kind, path)
            size, num_bytes = gguf.GGML_QUANT_SIZES[kind]
            tokenizer = ["--tokenizer", args.model]
            ways = [tokenizer + ["--dtype", "float32"]]
            ways += [tokenizer + ["--gguf-activations", "int8"]] if size > 1 else []
            none = [""] * (2 - len(ways))
            cells = [f"{perplexity(args.program, path, questions, way):.4f}" for way in ways] + none
            cells += [str(num_right(args.program, path, questions, way)) for way in ways] + none
            print(f"| {kind.name} | {8 * num_bytes / size:.4g} | {' | '.join(cells)} |", flush=True)


def measure_checkpoints(args, questions):
    print("| checkpoint | bits a weight | perplexity | right answers |\n|---|---|---|---|")

    def row(name, bits, path):
        found = [measure(args.program, path, questions, ["--dtype", "float32"]) for measure in (perplexity, num_right)]
        print(f"| {name} | {bits:.4g} | {found[0]:.4f} | {found[1]} |", flush=True)

    row("bfloat16, as it is", 16, args.model)
    for name, (quantization, dtype, quantiser) in checkpoints().items():
        with tempfile.TemporaryDirectory() as folder:
            row(name, write_checkpoint(args.model, pathlib.Path(folder), quantization, dtype, quantiser), folder)


def measure_caches(args, questions):
    print("| KV cache | perplexity | right answers | behind others: tokens of a prompt | perplexity | right answers |\n"
          "|---|---|---|---|---|---|")

    def turns(question):
        return question["messages"] + [{"role": "assistant", "content": question["metadata"]["expected"]}]

    behind = [{**q, "messages": sum((turns(questions[i - k]) for k in range(7, 0, -1)), []) + q["messages"]}
              for i, q in enumerate(questions)]
    lines = [{"messages": q["messages"], "max_tokens": 1} for q in behind]
    tokens = sum(r["usage"]["prompt_tokens"] for r in answer(args.program, args.model, lines, [])) / len(lines)
    for dtype in ("float32", "bfloat16", "int8", "fp8", "int4"):
        flags = ["--dtype", "float32", "--kv-cache-dtype", dtype]
        cells = [f"{perplexity(args.program, args.model, questions, flags):.4f}",
                 str(num_right(args.program, args.model, questions, flags)), f"{tokens:.0f}",
                 f"{perplexity(args.program, args.model, behind, flags):.4f}",
                 str(num_right(args.program, args.model, behind, flags))]
        print(f"| {dtype} | {' | '.join(cells)} |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", help="llm-batch")
    parser.add_argument("--model", type=pathlib.Path, default=ROOT / "data/model", help="a llama in bf16")
    parser.add_argument("--lines", type=int, default=700, help="questions, spread over the file (%(default)s)")
    parser.add_argument("--checkpoints", action="store_true", help="those of Hugging Face in place of GGUF files")
    parser.add_argument("--kv-caches", action="store_true", help="dtypes of the KV cache in place of them")
    args = parser.parse_args()
    questions = [json.loads(line) for line in (ROOT / "data/eval/heldout.jsonl").open()]
    questions = [q for q in questions if q.get("metadata", {}).get("expected") and "messages" in q]
    questions = questions[::max(1, len(questions) // args.lines)][:args.lines]
    print(f"{len(questions)} answers\n")
    measure = measure_caches if args.kv_caches else measure_checkpoints if args.checkpoints else measure_gguf
    measure(args, questions)


if __name__ == "__main__":
    main()
