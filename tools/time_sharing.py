#!/usr/bin/env python3
"""Times what sharing prefixes gains and costs on this machine, in pairs that take turns; takes about five minutes:

    make tools && tools/time_sharing.py [--build build] [--only steps,documents,nothing] [--rounds N]

steps      bench_sharing_steps: 64 rows over 2,048 shared and 64 own tokens, together against one by one (SmolLM2-135M; bar:
           1.6 x, which holds against rows with blocks of their own: one by one, the shared blocks stay in a cache); 128
           rows against 64 (SmolLM2-135M, and Qwen2.5-0.5B in int8; a default of 128 seats asks for < 2 x).
documents  questions about documents, Qwen2.5-0.5B in int8: the whole run's time by (prompt tokens that must be computed /
           prefill rate + decode), bar: 1.1. The prefill rate is that of a run over as many tokens without anything in
           common and with one token to answer; decode is by how much longer twice the answers take.
nothing    prompts that have nothing in common, with the prefix cache and without, bar: 1.01.

2026-11-23, 2 cores of an Intel Xeon (Emerald Rapids, AVX-512), nothing beside it. SmolLM2-135M, one by one / together: 1.22 of
processor time; with blocks of their own / together (bench_sharing_steps --unshared --pairs 9): 1.84 [1.78, 2.09]. 128 rows /
64 rows: SmolLM2-135M 1.98, Qwen2.5-0.5B 2.03 (an AMD EPYC of family 25: 1.63 to 1.69). documents: 0.96 [0.95, 1.21] of 3.
nothing: 0.995 [0.987, 1.043] of 31 (--rounds 31).

Runs are timed by their metrics file (without loading) and by the processor's time (with it). Quiet machines only: beside other work
the processor's time is the better guide.
"""
import argparse
import json
import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
NUM_DOCUMENTS, NUM_QUESTIONS, DOCUMENT_TOKENS, QUESTION_TOKENS, ANSWER_TOKENS = 4, 10, 800, 30, 24


def median_of_ratios(ratios):
    """The median, with the ranks between which it lies with 95 % (binomial, by its normal approximation)."""
    values, n = sorted(ratios), len(ratios)
    half = 0.98 * n**0.5
    low, high = max(0, int(n / 2 - half)), min(n - 1, int(n / 2 + half + 0.999))
    return f"{statistics.median(values):.3f} [{values[low]:.3f}, {values[high]:.3f}] of {n}"


class Runs:
    def __init__(self, program, directory):
        self.program, self.directory, self.rng = program, directory, random.Random(1)

    def write(self, name, prompts, max_tokens):
        path = os.path.join(self.directory, name)
        with open(path, "w") as file:
            for tokens in prompts:
                line = {"prompt_token_ids": tokens, "max_tokens": max_tokens, "ignore_eos": True, "temperature": 0}
                file.write(json.dumps(line) + "\n")
        return path

    def tokens(self, count):
        return [self.rng.randrange(1000, 40000) for _ in range(count)]

    def run(self, shape, path, flags):
        """(seconds, seconds of the processor, metrics)"""
        metrics = os.path.join(self.directory, "metrics.jsonl")
        if os.path.exists(metrics):
            os.remove(metrics)
        command = [self.program, "-m", os.path.join(ROOT, "data/shapes", shape), "--load-format", "dummy", path, "-o",
                   os.path.join(self.directory, "out.jsonl"), "--restart", "--progress", "none", "--metrics", metrics]
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        result = subprocess.run(command + flags, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        if result.returncode != 0:
            sys.exit(" ".join(command + flags) + "\n" + result.stderr)
        processor = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        with open(metrics) as file:
            found = json.loads(file.read())
        return found["duration"], processor, found


def documents(runs, rounds):
    flags = ["--quantization", "int8", "--max-model-len", "1024"]
    texts = [runs.tokens(DOCUMENT_TOKENS) for _ in range(NUM_DOCUMENTS)]
    rows = [text + runs.tokens(QUESTION_TOKENS) for text in texts for _ in range(NUM_QUESTIONS)]
    once = runs.write("once.jsonl", rows, ANSWER_TOKENS)
    twice = runs.write("twice.jsonl", rows, 2 * ANSWER_TOKENS)
    alone = [runs.tokens(DOCUMENT_TOKENS + QUESTION_TOKENS) for _ in range(NUM_DOCUMENTS)]
    prefill = runs.write("prefill.jsonl", alone, 1)
    ratios = []
    for round in range(rounds):
        files = {"once": once, "twice": twice, "prefill": prefill}
        order = sorted(files, reverse=round % 2 == 1)
        times = {name: runs.run("qwen2.5-0.5b", files[name], flags) for name in order}
        must = NUM_DOCUMENTS * (DOCUMENT_TOKENS + NUM_QUESTIONS * QUESTION_TOKENS)
        found = times["once"][2]
        rate = times["prefill"][2]["prompt_tokens_computed"] / times["prefill"][0]
        decode = times["twice"][0] - times["once"][0]
        ratios.append(times["once"][0] / (must / rate + decode))
        print(f"  once {times['once'][0]:.2f} s, twice {times['twice'][0]:.2f} s, prefill {rate:.0f} tokens/s; computed "
              f"{found['prompt_tokens_computed']} of {found['prompt_tokens_asked']} prompt tokens, {must} must be; "
              f"ratio {ratios[-1]:.3f}", flush=True)
    print("documents: time / (must be computed / prefill rate + decode) =", median_of_ratios(ratios), flush=True)


def nothing(runs, rounds):
    path = runs.write("nothing.jsonl", [runs.tokens(runs.rng.randrange(20, 90)) for _ in range(128)], 16)
    wall, processor = [], []
    for round in range(rounds):
        times = {}
        for flag in ["--enable-prefix-caching", "--no-enable-prefix-caching"][:: 1 if round % 2 else -1]:
            times[flag] = runs.run("smollm2-135m", path, [flag, "--max-model-len", "256"])
        with_cache, without = times["--enable-prefix-caching"], times["--no-enable-prefix-caching"]
        if with_cache[2]["prompt_tokens_computed"] != without[2]["prompt_tokens_computed"]:
            sys.exit("these prompts do have something in common")
        wall.append(with_cache[0] / without[0])
        processor.append(with_cache[1] / without[1])
    print("nothing shared: with the cache / without, wall", median_of_ratios(wall), flush=True)
    print("nothing shared: with the cache / without, processor", median_of_ratios(processor), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default=os.path.join(ROOT, "build"))
    parser.add_argument("--only", default="steps,documents,nothing")
    parser.add_argument("--rounds", type=int, default=0, help="of documents (3 by default) and nothing (11)")
    args = parser.parse_args()
    os.chdir(ROOT)
    parts = args.only.split(",")
    if "steps" in parts:
        bench = os.path.join(args.build, "tools/bench_sharing_steps")
        subprocess.run([bench, "--shape", "smollm2-135m"], check=True)
        subprocess.run([bench, "--shape", "qwen2.5-0.5b", "--quantization", "int8", "--shared", "512", "--pairs", "11"],
                       check=True)
    with tempfile.TemporaryDirectory() as directory:
        runs = Runs(os.path.join(args.build, "llm-batch"), directory)
        if "documents" in parts:
            documents(runs, args.rounds or 3)
        if "nothing" in parts:
            nothing(runs, args.rounds or 11)


if __name__ == "__main__":
    main()
