#!/usr/bin/env python3
"""Times workers, or ranks, of one core each against one process of as many cores, in pairs that take turns:

    make && tools/time_workers.py [--build build] [--pairs 11] [--workers 2] [--rows 192]
    make && tools/time_workers.py --flag tensor-parallel-size --rows 64 [--max-tokens 24]

Prints one process's seconds by theirs, each run's without loading: above 1 they are faster. Bars: 0.98 for workers, 0.9 for ranks.
The rows are groups of prompts with a beginning in common and answers of uneven length, over a shape of data/shapes with random weights.
Quiet machines only. 7 pairs of 192 rows on two cores: a Xeon (Emerald Rapids), 2026-11-24: 1.100 [0.850, 1.253]; an AMD EPYC
7003, 2026-11-26: 1.033 [1.001, 1.246]. Two tensor-parallel ranks there, 64 rows: SmolLM2-135M, 24 tokens a row, 9 pairs: 0.870
[0.789, 0.978], 7 pairs later that day: 0.890 [0.832, 0.932] (beside a program of far lower priority, 7 pairs: 0.955 [0.782, 1.007]); Qwen2.5-0.5B, 10 tokens a row, beside the
same, 2 pairs: 0.911 and 1.121.
"""
import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def median_of_ratios(ratios):
    """The median, with the ranks between which it lies with 95 % (binomial, by its normal approximation)."""
    values, n = sorted(ratios), len(ratios)
    half = 0.98 * n**0.5
    low, high = max(0, int(n / 2 - half)), min(n - 1, int(n / 2 + half + 0.999))
    return f"{statistics.median(values):.3f} [{values[low]:.3f}, {values[high]:.3f}] of {n}"


def write_rows(path, count, max_tokens=0):
    rng = random.Random(1)
    tokens = lambda n: [rng.randrange(1000, 40000) for _ in range(n)]
    with open(path, "w") as file:
        for i in range(count):
            if i % 12 == 0:
                beginning = tokens(120)
            prompt, length = beginning + tokens(40), rng.randrange(16, 96)
            line = {"prompt_token_ids": prompt, "max_tokens": max_tokens or length, "ignore_eos": True, "temperature": 0}
            file.write(json.dumps(line) + "\n")


def metrics_of_run(command, directory):
    metrics = os.path.join(directory, "metrics.jsonl")
    if os.path.exists(metrics):
        os.remove(metrics)
    result = subprocess.run(command + ["--restart", "--progress", "none", "--metrics", metrics], stderr=subprocess.PIPE,
                            text=True)
    if result.returncode != 0:
        sys.exit(" ".join(command) + "\n" + result.stderr)
    with open(metrics) as file:
        return json.loads(file.read())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", default="build")
    parser.add_argument("--shape", default="smollm2-135m")
    parser.add_argument("--pairs", type=int, default=11)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--flag", default="workers", help="or tensor-parallel-size or pipeline-parallel-size")
    parser.add_argument("--rows", type=int, default=192)
    parser.add_argument("--max-tokens", type=int, default=0, help="of every answer; 0: 16 to 95")
    options = parser.parse_args()
    ratios = []
    with tempfile.TemporaryDirectory() as directory:
        rows, output = os.path.join(directory, "in.jsonl"), os.path.join(directory, "out.jsonl")
        write_rows(rows, options.rows, options.max_tokens)
        command = [os.path.join(options.build, "llm-batch"), "-m", os.path.join(ROOT, "data/shapes", options.shape),
                   "--load-format", "dummy", rows, "-o", output, "--threads", str(options.workers)]
        divided = command + ["--" + options.flag, str(options.workers)]
        for i in range(options.pairs):
            order = [command, divided] if i % 2 == 0 else [divided, command]
            times = {len(run): metrics_of_run(run, directory)["duration"] for run in order}
            ratios.append(times[len(command)] / times[len(divided)])
            print(f"{times[len(command)]:.2f} s, {options.flag} {times[len(divided)]:.2f} s: {ratios[-1]:.3f}", flush=True)
    print(f"one process / {options.flag}:", median_of_ratios(ratios))


if __name__ == "__main__":
    main()
