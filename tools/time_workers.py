#!/usr/bin/env python3
"""Times workers, or ranks, of one core each against one process of as many cores, in pairs that take turns:

    make && tools/time_workers.py [--build build] [--pairs 11] [--workers 2] [--rows 192]
    make && tools/time_workers.py --flag tensor-parallel-size --rows 64 [--max-tokens 24]

Prints one process's seconds by theirs, each run's without loading: above 1 they are faster. Bars: 0.98 for workers, 0.9 for ranks.
The rows are groups of prompts with a beginning in common and answers of uneven length, over a shape of data/shapes with random weights.
Quiet machines only, and even cores: what is divided evenly beforehand waits for its slowest core, where threads of one process take
work from each other, so ranks reach about the cores' evenness at most, which is measured around each run and printed.
7 pairs of 192 rows on two cores: a Xeon (Emerald Rapids), 2026-11-24: 1.100 [0.850, 1.253]; an AMD EPYC
7003, 2026-11-26: 1.033 [1.001, 1.246]. Two tensor-parallel ranks there, 64 rows: SmolLM2-135M, 24 tokens a row, 9 pairs: 0.870
[0.789, 0.978], 7 pairs later that day: 0.890 [0.832, 0.932] (beside a program of far lower priority, 7 pairs: 0.955 [0.782, 1.007]);
Qwen2.5-0.5B, 10 tokens a row, beside the same, 2 pairs: 0.911 and 1.121. Again on 2026-11-27, with all else stopped but for 1 to 2 % of
the cores, which were even to 0.90 on average (0.75 to 1.00): SmolLM2-135M, 5 pairs: 0.877 [0.792, 0.966]; Qwen2.5-0.5B, 2 pairs:
0.837 and 0.854. 0.9 is not resolved there. On two cores of an AMD EPYC (Zen 5), even to 0.99, 2026-11-28, the same rows:
SmolLM2-135M, 24 pairs: 0.983 [0.926, 1.033]; Qwen2.5-0.5B, 13 pairs: 1.010 [0.953, 1.081]. 0.9 is met there.
"""
import argparse
import json
import multiprocessing
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time

EVEN = 0.95  # what pairs must have before, between and behind their runs to count as even
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def median_of_ratios(ratios):
    """The median, with the ranks between which it lies with 95 % (binomial, by its normal approximation)."""
    values, n = sorted(ratios), len(ratios)
    half = 0.98 * n**0.5
    low, high = max(0, int(n / 2 - half)), min(n - 1, int(n / 2 + half + 0.999))
    return f"{statistics.median(values):.3f} [{values[low]:.3f}, {values[high]:.3f}] of {n}"


def count_turns(core, seconds=0.4):
    os.sched_setaffinity(0, {core})
    turns, end = 0, time.monotonic() + seconds
    while time.monotonic() < end:
        turns += 1
    return turns


def evenness(num_cores):
    """The slowest of so many cores beside their mean, while all of them work. Nothing that is divided evenly and waits for
    its slowest part does better than this. On a shared machine it may be anything: a core's other thread has other guests."""
    cores = sorted(os.sched_getaffinity(0))[:num_cores]
    with multiprocessing.Pool(len(cores)) as pool:
        turns = pool.map(count_turns, cores, chunksize=1)
    return min(turns) * len(turns) / sum(turns)


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
    ratios, even_ratios = [], []
    with tempfile.TemporaryDirectory() as directory:
        rows, output = os.path.join(directory, "in.jsonl"), os.path.join(directory, "out.jsonl")
        write_rows(rows, options.rows, options.max_tokens)
        command = [os.path.join(options.build, "llm-batch"), "-m", os.path.join(ROOT, "data/shapes", options.shape),
                   "--load-format", "dummy", rows, "-o", output, "--threads", str(options.workers)]
        divided = command + ["--" + options.flag, str(options.workers)]
        for i in range(options.pairs):
            order = [command, divided] if i % 2 == 0 else [divided, command]
            even, metrics = [evenness(options.workers)], {}
            for run in order:
                metrics[len(run)] = metrics_of_run(run, directory)
                even.append(evenness(options.workers))
            one, theirs = metrics[len(command)], metrics[len(divided)]
            ratios.append(one["duration"] / theirs["duration"])
            if min(even) >= EVEN:
                even_ratios.append(ratios[-1])
            idle = "".join(f" {s / theirs['ranks']['step_s']:.3f}" for s in theirs.get("ranks", {}).get("idle_s", []))
            print(f"{one['duration']:.2f} s, {options.flag} {theirs['duration']:.2f} s: {ratios[-1]:.3f}; cores are even to "
                  + " ".join(f"{e:.3f}" for e in even) + (f"; ranks are idle{idle}" if idle else ""), flush=True)
    print(f"one process / {options.flag}:", median_of_ratios(ratios))
    if len(even_ratios) >= 2:
        print(f"pairs whose cores were even to {EVEN}:", median_of_ratios(even_ratios))


if __name__ == "__main__":
    main()
