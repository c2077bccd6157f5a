#!/usr/bin/env python3
"""Runs the device tests and then all GPU benches of a bundle (tools/gpu_bundle.sh), and writes what came out as Markdown:

    tools/gpu_check.py build-gpu/bundle                                            # what `make gpu-check` does, about 8 minutes
    tools/gpu_check.py build-gpu/bundle --only tests,kernels --out -

Every stage has a time limit; one that fails or runs out of time is reported as such, and the others still run, as long as
--minutes allow. Run it from the top of the source tree. Exit code: 0 all stages ended well (a target that was missed is in
the report), 1 some did not, 77 no GPU: nothing is run and no report is written.
"""
import argparse
import datetime
import glob
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time

from few_bits_targets import few_bits_targets
from gpu_answers import check_answers, check_bytes

# (prompt tokens, output tokens, requests, output tokens/s that 75 % of the no-overlap roofline make on an H200)
WHOLE_RUNS = [(128, 128, 1536, 17600), (1000, 1000, 256, 9100), (128, 2048, 256, 13600), (2048, 128, 384, 2000)]
NANO_VLLM, NANO_VLLM_TARGET = "Qwen3-0.6B, nano-vllm's workload", 27000
# Batch size: output tokens/s that 80 % of the no-overlap roofline make on an H200 at 1,024 tokens of context.
DECODE_STEPS = {1: 230, 32: 5700, 128: 13700, 256: 15900}
CONTEXT, STEPS = 1024, 32
NO_GPU = 77


def report_path():
    query = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    named = subprocess.run(query, stdout=subprocess.PIPE, text=True).stdout.split("\n")[0] if shutil.which(query[0]) else ""
    return "data/measurements/" + (re.sub(r"[^a-z0-9]+", "-", named.lower()).strip("-") or "gpu") + ".md"


def why_no_gpu():
    """One line, or None where there is a GPU."""
    if shutil.which("nvidia-smi"):
        found = subprocess.run(["nvidia-smi", "--list-gpus"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if found.returncode == 0 and found.stdout.strip():
            return None
    elif glob.glob("/dev/nvidia[0-9]*"):
        return None
    return "gpu_check: there is no NVIDIA GPU on this machine: nothing was run, and no figure was written"


class Check:
    def __init__(self, bundle, out, minutes):
        self.bundle = os.path.abspath(bundle)
        self.out = out
        self.end = time.monotonic() + 60 * minutes
        self.kernel_rows = []  # of bench_kernels_cuda --json
        self.step_rows = {}    # batch size: row of bench_engine
        self.run_rates = {}    # name of a whole run: output tokens/s
        self.failed = []
        self.sections = []
        self.scratch = tempfile.mkdtemp(prefix="gpu-check-")
        libraries = [os.path.join(self.bundle, "lib"), os.environ.get("LD_LIBRARY_PATH", "")]
        self.env = dict(os.environ, LD_LIBRARY_PATH=":".join(p for p in libraries if p), LLMB_SOURCE_DIR=os.getcwd())

    def program(self, name):
        return os.path.join(self.bundle, name)

    def run(self, command, limit_s):
        """(exit code, output, seconds); 124 where the limit was reached."""
        begin = time.monotonic()
        limit_s = min(limit_s, self.end - begin)
        if limit_s <= 1:
            return 124, "not started: the time for all stages is over", 0
        try:
            done = subprocess.run(command, env=self.env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=limit_s,
                                  text=True, errors="replace")
            code, output = done.returncode, done.stdout
        except subprocess.TimeoutExpired as e:
            code, output = 124, (e.stdout or b"").decode(errors="replace") + f"\nended after {limit_s} s"
        except OSError as e:
            code, output = 127, str(e)
        return code, output, time.monotonic() - begin

    def section(self, title, command, code, output, seconds):
        shown = " ".join(os.path.basename(part) if i == 0 else part.replace(self.scratch + "/", "") for i, part in enumerate(command))
        state = "" if code == 0 else f" **exit code {code}**"
        if code != 0:
            self.failed.append(title)
        text = output.strip()
        if len(text) > 160000:  # more than all kernels take
            text = text[:32000] + "\n[…]\n" + text[-128000:]
        self.sections.append(f"## {title}\n\n`{shown}` ({seconds:.0f} s){state}\n\n```\n{text}\n```\n")
        print(f"{title}: exit code {code}, {seconds:.0f} s", flush=True)
        if code != 0:
            print(text[-3000:], flush=True)
        self.write()

    def write(self):
        today = datetime.date.today().isoformat()
        if self.out == "-":
            return
        query = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
        gpu = subprocess.run(query, stdout=subprocess.PIPE, text=True).stdout.strip() if shutil.which(query[0]) else "a GPU"
        text = f"# Results of `make gpu-check`\n\n{today}, {gpu}\n\n{self.targets()}\n" + "\n".join(self.sections)
        with open(self.out, "w", encoding="utf-8") as file:
            file.write(text)

    # ---- stages

    def tests(self):
        command = [self.program("gpu_tests"), "--duration=true", "--no-path-filenames=true"]
        code, output, seconds = self.run(command, 180)
        if code == NO_GPU:
            print("gpu_check: the tests found no GPU that they can use: nothing else was run, and no figure was written")
            sys.exit(NO_GPU)
        lines = [line for line in output.splitlines() if " s: " in line]
        slowest = sorted(lines, key=lambda line: -float(line.split(" s: ")[0] or 0))[:5]
        kept = [line for line in output.splitlines() if " s: " not in line]
        self.section("Device tests", command, code, "\n".join(kept + ["slowest:"] + slowest), seconds)

    def answers(self):
        code, table, seconds = check_answers(self.program("llm-batch"), self.run, self.scratch)
        self.section("The bundled model's answers", ["llm-batch", "-m", "data/model", "data/eval/heldout.jsonl", "…"], code, table,
                     seconds)

    def bytes(self):
        code, table, seconds = check_bytes(self.program("llm-batch"), self.env, self.scratch)
        self.section("The same bytes under every schedule", ["llm-batch", "-m", "data/model", "--deterministic", "…"], code, table,
                     seconds)

    def kernels(self):
        path = os.path.join(self.scratch, "kernels.jsonl")
        command = [self.program("bench_kernels_cuda"), "--json", path]
        code, output, seconds = self.run(command, 240)
        result = code, output.replace(self.scratch + "/", "").replace(self.bundle + "/", ""), seconds
        if os.path.exists(path):
            with open(path, encoding="utf-8") as file:
                self.kernel_rows = [json.loads(line) for line in file if line.endswith("\n")]
        self.section("Kernels", command, *result)

    def steps(self):
        command = [self.program("bench_engine"), "--shape", "llama-3.1-8b", "--device", "cuda", "--context", str(CONTEXT),
                   "--steps", str(STEPS), "--repeats", "3", "--batch", "1,32,64,128,256"]
        code, output, seconds = self.run(command, 120)
        lines = [line.split() for line in output.splitlines()]
        header = next((line for line in lines if line[:2] == ["case", "batch"]), [])
        for line in lines:
            if line[:1] == ["decode"]:
                row = dict(zip(header, line))
                self.step_rows[int(row["batch"])] = row
        self.section("Steps, Llama-3.1-8B shape", command, code, output, seconds)

    def halves(self):
        """Steps in two halves (--enable-dbo) beside the same steps whole: whether, and from how many rows on, they gain."""
        command = [self.program("bench_engine"), "--shape", "llama-3.1-8b", "--device", "cuda", "--context", str(CONTEXT),
                   "--steps", str(STEPS), "--repeats", "3", "--batch", "128,256,512"]
        texts, worst, seconds = [], 0, 0
        for flags in ([], ["--in-halves"]):
            code, output, taken = self.run(command + flags, 120)
            texts.append(" ".join(flags or ["whole"]) + "\n" + output)
            worst, seconds = worst or code, seconds + taken
        self.section("Steps in two halves, Llama-3.1-8B shape", command + ["[--in-halves]"], worst, "\n".join(texts), seconds)

    def collectives(self):
        """The calls in which ranks meet, over NCCL and what joins the GPUs; on one GPU there is nothing to time."""
        command = [self.program("bench_collectives_cuda")]
        code, output, seconds = self.run(command, 60)
        self.section("Ranks that meet", command, 0 if code == NO_GPU else code, output, seconds)

    def whole_run(self, shape, vocab, name, arguments, flags, target):
        path = os.path.join(self.scratch, "prompts.jsonl")
        with open(path, "w", encoding="utf-8") as file:
            subprocess.run([sys.executable, "tools/make_workload.py", "--vocab", str(vocab), *arguments], stdout=file, check=True)
        metrics = os.path.join(self.scratch, "metrics.jsonl")
        if os.path.exists(metrics):
            os.remove(metrics)
        command = [self.program("llm-batch"), "-m", shape, "--load-format", "dummy", "--device", "cuda", path, "-o",
                   os.path.join(self.scratch, "out.jsonl"), "--restart", "--metrics", metrics, "--max-num-seqs", "256",
                   "--progress", "plain", *flags]
        code, output, _ = self.run(command, 120)
        if code != 0:
            return code, f"{name:34} exit code {code}\n{output[-2000:]}"
        summary = json.loads(open(metrics, encoding="utf-8").read().splitlines()[-1])
        rate = self.run_rates[name] = summary["output_throughput"]
        return 0, (f"{name:34} {rate:10.0f} {target or 0:10} {rate / target if target else 0:8.2f} "
                   f"{summary['model_load_time_s']:7.1f} {summary['mean_batch_size']:9.1f} {summary['mfu'] or 0:7.3f} {summary['mbu'] or 0:7.3f}")

    def runs(self):
        begin = time.monotonic()
        header = f"{'run':34} {'out tok/s':>10} {'target':>10} {'ratio':>8} {'load s':>7} {'batch':>9} {'MFU':>7} {'MBU':>7}"
        rows, worst = [header], 0
        cases = [("data/shapes/llama-3.1-8b", 128256, run_name(i, o, n),
                  ["--requests", str(n), "--input", str(i), "--output", str(o)], ["--max-model-len", "4096"], target)
                 for i, o, n, target in WHOLE_RUNS]
        nano = ["--requests", "256", "--input", "100-1024", "--output", "100-1024", "--seed", "0"]
        cases.append(("data/shapes/qwen3-0.6b", 151936, NANO_VLLM, nano, ["--max-model-len", "4096"],
                      NANO_VLLM_TARGET))
        cases.append(("data/shapes/llama-3.1-8b", 128256, "8B, 128 in, 128 out, deterministic",
                      ["--requests", "512", "--input", "128", "--output", "128"], ["--max-model-len", "4096", "--deterministic"],
                      WHOLE_RUNS[0][3]))
        for shape, vocab, name, arguments, flags, target in cases:
            code, row = self.whole_run(shape, vocab, name, arguments, flags + ["--max-num-batched-tokens", "8192"], target)
            rows.append(row)
            print(row, flush=True)
            worst = worst or code
        self.section("Whole runs on random weights", ["llm-batch", "--load-format", "dummy", "--max-num-seqs", "256", "…"], worst,
                     "\n".join(rows), time.monotonic() - begin)

    # ---- targets

    def targets(self):
        """What was measured of what is wanted, as a table."""
        lines = ["| what | command | value | limit | share | wanted | |", "|---|---|---|---|---|---|---|"]

        def add(what, command, value, unit, limit, share, wanted, is_met):
            value, limit = number(value), "" if limit is None else f"{number(limit)} {unit}"
            share = "" if share is None else f"{100 * share:.1f} %"
            lines.append(f"| {what} | {command} | {value} {unit} | {limit} | {share} | {wanted} | "
                         f"{'met' if is_met else '**missed**'} |")

        def missing(what, command, wanted):
            lines.append(f"| {what} | {command} | not measured | | | {wanted} | |")

        self.kernel_targets(add, missing)
        self.step_targets(add, missing)
        for prompt, output, requests, target in WHOLE_RUNS:
            name = run_name(prompt, output, requests)
            if name in self.run_rates:  # the target is 75 % of the roofline
                share = 0.75 * self.run_rates[name] / target
                add(name, "llm-batch", self.run_rates[name], "tokens/s", target / 0.75, share, "75 %", share >= 0.75)
            else:
                missing(name, "llm-batch", "75 %")
        nano = self.run_rates.get(NANO_VLLM)
        if nano is None:
            missing(NANO_VLLM, "llm-batch", f"{NANO_VLLM_TARGET:,} tokens/s")
        else:
            add(NANO_VLLM, "llm-batch", nano, "tokens/s", None, None, f"{NANO_VLLM_TARGET:,} tokens/s", nano >= NANO_VLLM_TARGET)
        return "\n".join(lines) + "\n"

    def kernel_targets(self, add, missing):
        rows = {(row["op"], row["shape"]): row for row in self.kernel_rows}
        bench, model = "bench_kernels_cuda", "llama-3.1-8b"

        def worst(what, wanted, chosen):
            """The row with the least share of those chosen."""
            found = [row for row in chosen if row]
            if not found or len(found) < len(chosen):
                return missing(what, bench, f"{100 * wanted:.0f} %")
            row = min(found, key=lambda row: row["share"])
            add(what, bench, row["value"], row["unit"], row["limit"], row["share"], f"{100 * wanted:.0f} %", row["share"] >= wanted)

        def attention(case):
            return rows.get(("paged_attention", f"{model} {case}"))

        for context, wanted in [(1024, 0.7), (4096, 0.9), (8192, 0.9)]:
            worst(f"paged decode attention, 64 × {context:,}", wanted, [attention(f"decode 64 x {context}, mma")])
        for context in (1024, 4096):
            skewed, even = attention(f"decode 64 skewed, mean {context}, mma"), attention(f"decode 64 x {context}, mma")
            what = f"the same, skewed, mean {context:,}"
            if skewed and even:
                share = skewed["value"] / even["value"]
                add(what, bench, skewed["value"], skewed["unit"], even["value"], share, "85 % of even", share >= 0.85)
            else:
                missing(what, bench, "85 % of even")
        for path in ("mma", "Hopper"):
            for beginning, what in [("same blocks", "row by row over the same blocks"), ("own", "over blocks of their own")]:
                case = "decode 64 x 2048 + 64"
                shared, apart = attention(f"{case} shared, {path}"), attention(f"{case} {beginning}, {path}")
                what = f"64 rows over 2,048 shared and 64 own positions, {what}, {path}"
                if shared and apart:
                    times = apart["us"] / shared["us"]
                    add(what, bench, times, "× the time", None, None, "≥ 4 ×", times >= 4)
                else:
                    missing(what, bench, "≥ 4 ×")
        case, what = "decode 64 x 2048 + 64 window 1024", "the same within a window of 1,024, row by row over the same blocks, mma"
        shared, apart = attention(f"{case} shared, mma"), attention(f"{case} same blocks, mma")
        if shared and apart:
            times = apart["us"] / shared["us"]
            add(what, bench, times, "× the time", None, None, "≥ 1 ×", times >= 1)
        else:
            missing(what, bench, "≥ 1 ×")
        worst("decode, 64 × 8,192, a window of 1,024", 0.7, [attention("decode 64 x 8192 window 1024, mma")])
        worst("block_copy, 64 blocks within the pool", 0.8, [rows.get(("block_copy", "64 blocks within the pool"))])
        for path, wanted in [("mma", 350), ("Hopper", 500)]:
            for length in (2048, 4096, 8192, 16384):
                row, what = attention(f"prefill {length}, {path}"), f"prefill attention, {length:,}, {path}"
                if row:
                    add(what, bench, row["value"], row["unit"], row["limit"], row["share"], f"{wanted} TFLOP/s",
                        row["value"] >= wanted)
                else:
                    missing(what, bench, f"{wanted} TFLOP/s")

        def linear(m):
            return [row for (op, shape), row in rows.items() if op == "linear" and f" {m}x" in shape and row["unit"] == "GB/s"]

        for m, wanted in [(1, 0.9), (8, 0.9), (16, 0.9), (32, 0.85), (64, 0.85), (128, 0.85)]:
            worst(f"skinny GEMM, M = {m}, the worst shape", wanted, linear(m))
        few_bits_targets(rows, attention, add, missing)
        for num in (1, 64):
            worst(f"lora of q, k and v, 64 rows, {num} of rank 16", 0.6 if num == 64 else 0,
                  [rows.get(("lora", f"{model} qkv, 64 rows, {num} of rank 16"))])
        for op in ("add_rms_norm", "rope_and_kv_write"):
            worst(f"{op}, 2,048 and 8,192 rows", 0.9, [rows.get((op, f"{model} {n} rows")) for n in (2048, 8192)])

    def step_targets(self, add, missing):
        limits = {row["shape"].split()[0]: row["value"] for row in self.kernel_rows if row["op"] == "limit"}
        for batch, about in DECODE_STEPS.items():
            what, row = f"decode step, 8B, 1k context, B = {batch}", self.step_rows.get(batch)
            if row is None or "read" not in limits or "bf16" not in limits:
                missing(what, "bench_engine", "80 %")
                continue
            limit = batch / no_overlap_step_s(batch, limits["read"] * 1e9, limits["bf16"] * 1e12)
            rate = float(row["tokens/s"])
            add(what, "bench_engine", rate, "tokens/s", limit, rate / limit, f"80 % (about {about:,})", rate >= 0.8 * limit)
        for batch in (64, 128, 256):
            what, row = f"GPU idle between steps, B = {batch}", self.step_rows.get(batch)
            if row is None or not row["idle"].endswith("%"):
                missing(what, "bench_engine", "≤ 1 %")
            else:
                idle = float(row["idle"][:-1])
                add(what, "bench_engine", idle, "%", None, None, "≤ 1 %", idle <= 1)
        row = self.step_rows.get(256)
        if row is None:
            missing("host work per step, B = 256", "bench_engine", "≤ 0.25 ms")
        else:
            host_ms = float(row["host_ms"])
            add("host work per step, B = 256", "bench_engine", host_ms, "ms", None, None, "≤ 0.25 ms", host_ms <= 0.25)
        for kernel in self.kernel_rows:
            if kernel["op"] != "sample" or " 256 rows, " not in kernel["shape"] or row is None:
                continue
            ms, step_ms = kernel["us"] / 1e3, float(row["ms/step"])
            kind = kernel["shape"].split(" rows, ")[1]
            add(f"sampling 256 × 128k, {kind}", "bench_kernels_cuda", ms, "ms", step_ms, ms / step_ms, "≤ 3 % of the step",
                ms <= 0.03 * step_ms)
        for kernel in self.kernel_rows:
            if kernel["op"] not in ("resolve_step", "give_tokens") or "256 sequences of 1 " not in kernel["shape"] or row is None:
                continue
            ms, step_ms = kernel["us"] / 1e3, float(row["ms/step"])
            add(f"{kernel['op']}, B = 256", "bench_kernels_cuda", ms, "ms", step_ms, ms / step_ms, "≤ 0.1 % of the step",
                ms <= 0.001 * step_ms)


def number(value):
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def run_name(prompt, output, requests):
    return f"8B, {prompt} in, {output} out, {requests} requests"


def no_overlap_step_s(batch, read_bytes_per_s, flops_per_s):
    """max(W / BW, 2 · P · B / F) + KV / BW of a decode step of the 8B shape, in the middle of the measured ones."""
    with open("data/shapes/llama-3.1-8b/config.json", encoding="utf-8") as file:
        c = json.load(file)
    hidden, layers, head_dim = c["hidden_size"], c["num_hidden_layers"], c["hidden_size"] // c["num_attention_heads"]
    kv = c["num_key_value_heads"] * head_dim
    params = layers * hidden * (2 * hidden + 2 * kv + 3 * c["intermediate_size"]) + c["vocab_size"] * hidden
    kv_bytes = batch * (CONTEXT + (STEPS + 1) / 2) * layers * 2 * kv * 2
    return max(2 * params / read_bytes_per_s, 2 * params * batch / flops_per_s) + kv_bytes / read_bytes_per_s


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", nargs="?", default="build-gpu/bundle")
    parser.add_argument("--out", help="default: data/measurements/<name of the GPU>.md; '-': nowhere")
    parser.add_argument("--only", help="stages, separated by commas: tests,answers,bytes,kernels,steps,runs,halves,collectives")
    parser.add_argument("--minutes", type=float, default=8, help="for all stages together")
    parser.add_argument("--find-gpu", action="store_true", help="only say whether there is a GPU")
    args = parser.parse_args()
    stages = ["tests", "answers", "bytes", "kernels", "steps", "runs", "halves", "collectives"]
    chosen = args.only.split(",") if args.only else stages
    if unknown := [stage for stage in chosen if stage not in stages]:
        parser.error(f"there is no stage {unknown[0]!r}")
    if reason := why_no_gpu():
        print(reason)
        return NO_GPU
    if args.find_gpu:
        return 0
    check = Check(args.bundle, args.out or report_path(), args.minutes)
    for stage in chosen:
        getattr(check, stage)()
    for title in check.failed:
        print(f"FAILED: {title}")
    return 1 if check.failed else 0


if __name__ == "__main__":
    sys.exit(main())
