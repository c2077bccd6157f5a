#!/usr/bin/env python3
"""Runs the device tests and then all GPU benches of a bundle (tools/gpu_bundle.sh), and writes what came out as Markdown:

    tools/gpu_check.py build-gpu/bundle --out kernels/gpu_check.md          # what `make gpu-check` does, about 8 minutes
    tools/gpu_check.py build-gpu/bundle --only tests,kernels --out -

Every stage has a time limit; one that fails or runs out of time is reported as such, and the others still run. Run it
from the top of the source tree. Exit code: 0 all stages ended well, 1 some did not.
"""
import argparse
import datetime
import json
import os
import subprocess
import sys
import tempfile
import time

# (prompt tokens, output tokens, requests, output tokens/s that 75 % of the no-overlap roofline make on an H200)
WHOLE_RUNS = [(128, 128, 1536, 17600), (1000, 1000, 256, 9100), (128, 2048, 256, 13600), (2048, 128, 384, 2000)]
NANO_VLLM_TARGET = 27000


class Check:
    def __init__(self, bundle, out):
        self.bundle = os.path.abspath(bundle)
        self.out = out
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
        shown = " ".join(os.path.basename(part) if i == 0 else part for i, part in enumerate(command))
        state = "" if code == 0 else f" **exit code {code}**"
        if code != 0:
            self.failed.append(title)
        text = output.strip()
        if len(text) > 12000:
            text = text[:4000] + "\n[…]\n" + text[-8000:]
        self.sections.append(f"## {title}\n\n`{shown}` ({seconds:.0f} s){state}\n\n```\n{text}\n```\n")
        print(f"{title}: exit code {code}, {seconds:.0f} s", flush=True)
        if code != 0:
            print(text[-3000:], flush=True)
        self.write()

    def write(self):
        today = datetime.date.today().isoformat()
        gpu = self.run(["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"], 30)[1].strip()
        text = f"# What `make gpu-check` last saw\n\n{today}, {gpu}\n\n" + "\n".join(self.sections)
        if self.out == "-":
            return
        with open(self.out, "w", encoding="utf-8") as file:
            file.write(text)

    # ---- stages

    def tests(self):
        command = [self.program("gpu_tests"), "--duration=true", "--no-path-filenames=true"]
        code, output, seconds = self.run(command, 180)
        lines = [line for line in output.splitlines() if " s: " in line]
        slowest = sorted(lines, key=lambda line: -float(line.split(" s: ")[0] or 0))[:5]
        kept = [line for line in output.splitlines() if " s: " not in line]
        self.section("Device tests", command, code, "\n".join(kept + ["slowest:"] + slowest), seconds)

    def answers(self):
        """The bundled model: greedy texts on the GPU equal the CPU's; with --deterministic whatever the batch."""
        lines = [json.loads(line) for line in open("data/eval/heldout.jsonl", encoding="utf-8")]

        def texts(*flags):
            path = os.path.join(self.scratch, "answers.jsonl")
            command = [self.program("llm-batch"), "-m", "data/model", "data/eval/heldout.jsonl", "-o", path, "--order", "input",
                       "--no-metrics", "--progress", "none", "--restart", "--metrics", "none", *flags]
            code, output, _ = self.run(command, 60)
            if code != 0:
                raise RuntimeError(f"{' '.join(command)}: exit code {code}\n{output}")
            return [json.loads(line)["text"] for line in open(path, encoding="utf-8")]

        begin = time.monotonic()
        rows, code = [], 0
        try:
            cpu = texts("--device", "cpu")
            for name, flags in [("float32", ["--dtype", "float32"]), ("bfloat16", ["--dtype", "bfloat16"]),
                                ("bfloat16, deterministic", ["--deterministic"]),
                                ("bfloat16, deterministic, 7 sequences",
                                 ["--deterministic", "--max-num-seqs", "7", "--max-num-batched-tokens", "50"])]:
                gpu = texts("--device", "cuda", *flags)
                right = sum(text == line["metadata"]["expected"] for text, line in zip(gpu, lines))
                same = sum(a == b for a, b in zip(gpu, cpu))
                rows.append(f"{name:40} {right} of {len(lines)} right, {same} equal to the CPU's")
                if name == "float32" and same != len(lines):
                    code = 1
                if "deterministic" in name:
                    if name.endswith("sequences") and gpu != deterministic:
                        rows.append("deterministic runs DIFFER")
                        code = 1
                    deterministic = gpu
        except RuntimeError as e:
            rows.append(str(e))
            code = 1
        self.section("The bundled model's answers", ["llm-batch", "-m", "data/model", "data/eval/heldout.jsonl", "…"], code,
                     "\n".join(rows), time.monotonic() - begin)

    def kernels(self):
        command = [self.program("bench_kernels_cuda"), "--json", os.path.join(self.scratch, "kernels.jsonl")]
        self.section("Kernels", command, *self.run(command, 150))

    def steps(self):
        command = [self.program("bench_engine"), "--shape", "llama-3.1-8b", "--device", "cuda", "--context", "1024", "--steps", "32",
                   "--repeats", "3", "--batch", "1,32,64,128,256"]
        self.section("Steps, Llama-3.1-8B shape", command, *self.run(command, 120))

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
        rate = summary["output_throughput"]
        return 0, (f"{name:34} {rate:10.0f} {target or 0:10} {rate / target if target else 0:8.2f} {summary['model_load_time_s']:7.1f} "
                   f"{summary['mean_batch_size']:9.1f} {summary['mfu'] or 0:7.3f} {summary['mbu'] or 0:7.3f}")

    def runs(self):
        begin = time.monotonic()
        header = f"{'run':34} {'out tok/s':>10} {'target':>10} {'ratio':>8} {'load s':>7} {'batch':>9} {'MFU':>7} {'MBU':>7}"
        rows, worst = [header], 0
        cases = [("data/shapes/llama-3.1-8b", 128256, f"8B, {i} in, {o} out, {n} requests",
                  ["--requests", str(n), "--input", str(i), "--output", str(o)], ["--max-model-len", "4096"], target)
                 for i, o, n, target in WHOLE_RUNS]
        nano = ["--requests", "256", "--input", "100-1024", "--output", "100-1024", "--seed", "0"]
        cases.append(("data/shapes/qwen3-0.6b", 151936, "Qwen3-0.6B, nano-vllm's workload", nano, ["--max-model-len", "4096"],
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


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle")
    parser.add_argument("--out", default="kernels/gpu_check.md", help="'-': nowhere")
    parser.add_argument("--only", help="stages, separated by commas: tests,answers,kernels,steps,runs")
    args = parser.parse_args()
    check = Check(args.bundle, args.out)
    stages = ["tests", "answers", "kernels", "steps", "runs"]
    for stage in args.only.split(",") if args.only else stages:
        if stage not in stages:
            parser.error(f"there is no stage {stage!r}")
        getattr(check, stage)()
    for title in check.failed:
        print(f"FAILED: {title}")
    return 1 if check.failed else 0


if __name__ == "__main__":
    sys.exit(main())
