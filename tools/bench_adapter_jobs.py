#!/usr/bin/env python3
"""Whole jobs whose rows name LoRA adapters, in pairs that take turns: all rows with one adapter; rows of many, shuffled; the
same with memory for 8 of them only. Random weights of a shape of data/shapes, adapters of all linear projections.

    tools/bench_adapter_jobs.py build/llm-batch --shape qwen2.5-0.5b --adapters 1000 --rows 10 --pairs 11

Prints tokens a second, how often an adapter was read, and medians of each pair's ratio to one adapter with their 95 %
interval. The adapters share one file, so reading it is reading memory: what is measured is moving and changing them.

2026-11-27, two cores of an AMD EPYC 7003 that did nothing else, --prompt 4 --max-tokens 4, so that an adapter of 17.6 MB is
read for only 80 tokens, one run each: one adapter 186.1 tokens/s, 1,000 of them 199.2 (1,000 reads, x 1.070), with room for 8
176.6 (1,000 reads, x 0.949). Bars: 0.95, 0.85. A run takes seven minutes.
"""
import argparse
import json
import math
import os
import pathlib
import random
import statistics
import struct
import subprocess
import tempfile


def write_adapter(folder, c, rank):
    """In PEFT's layout, bf16, all values 2^-10."""
    head = c.get("head_dim") or c["hidden_size"] // c["num_attention_heads"]
    q, kv, hidden, wide = (head * c["num_attention_heads"], head * c["num_key_value_heads"], c["hidden_size"],
                           c["intermediate_size"])
    targets = {"self_attn.q_proj": (hidden, q), "self_attn.k_proj": (hidden, kv), "self_attn.v_proj": (hidden, kv),
               "self_attn.o_proj": (q, hidden), "mlp.gate_proj": (hidden, wide), "mlp.up_proj": (hidden, wide),
               "mlp.down_proj": (wide, hidden)}
    header, end = {}, 0
    for layer in range(c["num_hidden_layers"]):
        for module, (n_in, n_out) in targets.items():
            for factor, shape in (("A", [rank, n_in]), ("B", [n_out, rank])):
                size = 2 * shape[0] * shape[1]
                header[f"base_model.model.model.layers.{layer}.{module}.lora_{factor}.weight"] = {
                    "dtype": "BF16", "shape": shape, "data_offsets": [end, end + size]}
                end += size
    folder.mkdir()
    text = json.dumps(header).encode()
    (folder / "adapter_model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + b"\x80\x3a" * (end // 2))
    (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": rank, "lora_alpha": rank, "bias": "none"}))
    return end


def run(args, folder, adapters, names, room):
    """Tokens a second of the computing, and how many adapters were read."""
    rng = random.Random(1)
    order = [name for name in names for _ in range(args.rows)]
    rng.shuffle(order)
    lines = [json.dumps({"prompt_token_ids": [rng.randrange(1000) for _ in range(args.prompt)], "adapter": name,
                         "max_tokens": args.max_tokens, "ignore_eos": True, "temperature": 0}) for name in order]
    (folder / "in.jsonl").write_text("\n".join(lines) + "\n")
    metrics = folder / "metrics.jsonl"
    metrics.unlink(missing_ok=True)
    command = [args.program, "-m", f"data/shapes/{args.shape}", "--tokenizer", "data/model", "--load-format", "dummy",
               "--adapter-dir", adapters, "--metrics", metrics, "--progress", "none", "--max-model-len", "256",
               "--max-num-seqs", str(args.seqs), "--speculative", "none", folder / "in.jsonl", "-o", folder / "out.jsonl",
               "--restart"]
    subprocess.run([*map(str, command), *(["--adapter-memory", str(room)] if room else [])], check=True)
    line = json.loads(metrics.read_text().splitlines()[-1])
    return line["total_token_throughput"], line["adapter_reads"]


def show(name, rates, reads, ones):
    ratios = sorted(rate / one for rate, one in zip(rates, ones))
    n, reach = len(ratios), 0.98 * math.sqrt(len(ratios))
    low, high = max(0, math.floor(n / 2 - reach)), min(n - 1, math.ceil(n / 2 + reach) - 1)
    print(f"{name:28} {statistics.median(rates):9.1f} tokens/s, {reads} reads: x {statistics.median(ratios):.3f} "
          f"(95 %: {ratios[low]:.3f} to {ratios[high]:.3f})", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("--shape", default="qwen2.5-0.5b")
    parser.add_argument("--adapters", type=int, default=1000)
    parser.add_argument("--rows", type=int, default=10, help="of each adapter")
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--prompt", type=int, default=8, help="tokens")
    parser.add_argument("--max-tokens", type=int, default=16)
    parser.add_argument("--seqs", type=int, default=64)
    parser.add_argument("--pairs", type=int, default=11)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        config = json.loads(pathlib.Path(f"data/shapes/{args.shape}/config.json").read_text())
        size = write_adapter(folder / "adapter", config, args.rank)
        one, many = folder / "one", folder / "many"
        one.mkdir(), many.mkdir()
        os.symlink(folder / "adapter", one / "a0000")
        names = [f"a{i:04}" for i in range(args.adapters)]
        for adapter in names:
            os.symlink(folder / "adapter", many / adapter)
        print(f"{args.shape}, {args.adapters} adapters of rank {args.rank} x {args.rows} rows, {size / 1e6:.1f} MB each")
        rates = {"one": [], "many": [], "room for 8": []}
        for _ in range(args.pairs):
            only = argparse.Namespace(**{**vars(args), "rows": args.rows * args.adapters})
            rate, _ = run(only, folder, one, ["a0000"], None)
            rates["one"].append(rate)
            for case, room in (("many", None), ("room for 8", 8 * size + (1 << 20))):
                rate, reads = run(args, folder, many, names, room)
                rates[case].append(rate)
                show(case, rates[case], reads, rates["one"])


if __name__ == "__main__":
    main()
