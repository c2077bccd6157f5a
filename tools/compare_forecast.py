#!/usr/bin/env python3
"""Forecasts of --dry-run beside what runs take on this machine, over several files whose lengths are given.

    tools/compare_forecast.py                    # the bundled model, two minutes
    tools/compare_forecast.py -m MODEL --scale 4 # four times as many rows, as short runs are mostly start-up

Two runs of files with rows of many lengths measure steps, which are kept beside the packed weights. Then each file is
forecast and run, in turn, so many times (--runs); printed are medians. Other work on the machine slows runs down and not the
forecast: have nothing else run. On the ledger, where time is exact, the same is a test
(tests/scheduler/forecast_accuracy_test).
"""
import argparse
import json
import os
import random
import re
import statistics
import subprocess
import tempfile


def tokens(rng, count, vocab):
    return [rng.randrange(3, vocab) for _ in range(count)]


def line(prompt, length):
    return {"prompt_token_ids": prompt, "max_tokens": length, "ignore_eos": True}


def make_files(scale, vocab, seed):
    rng = random.Random(seed)
    shared = [tokens(rng, 400, vocab) for _ in range(5)]
    return {
        "any length": [line(tokens(rng, rng.randint(20, 100), vocab), rng.randint(1, 200)) for _ in range(300 * scale)],
        "few very long": [line(tokens(rng, int(10 * 40 ** rng.random()), vocab), int(4 * 150 ** rng.random()))
                          for _ in range(200 * scale)],
        "documents": [line(shared[i * 3 % 5] + tokens(rng, 20, vocab), rng.randint(10, 60)) for i in range(150 * scale)],
        "long prompts": [line(tokens(rng, rng.randint(300, 1200), vocab), rng.randint(1, 20)) for _ in range(40 * scale)],
        "fewer than seats": [line(tokens(rng, rng.randint(20, 100), vocab), rng.randint(100, 200)) for _ in range(20)],
    }


def seconds_of(text):
    clock = re.search(r"; (?:at most )?(\d+):(\d+):(\d+) h", text)
    if clock:
        return int(clock[1]) * 3600 + int(clock[2]) * 60 + int(clock[3])
    plain = re.search(r"; (?:at most )?([\d.]+) s", text)
    return float(plain[1]) if plain else None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default="build/llm-batch")
    parser.add_argument("-m", "--model", default="data/model")
    parser.add_argument("--vocab", type=int, default=1500)
    parser.add_argument("--scale", type=int, default=1)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("flags", nargs="*", help="more flags of llm-batch, after --")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        base = [args.program, "-m", args.model, "--weight-cache", os.path.join(folder, "cache")] + args.flags

        def run(name, lines):
            path, metrics = os.path.join(folder, "in.jsonl"), os.path.join(folder, "metrics.jsonl")
            with open(path, "w", encoding="utf-8") as file:
                file.writelines(json.dumps(item) + "\n" for item in lines)
            if os.path.exists(metrics):
                os.remove(metrics)
            dry = subprocess.run(base + ["--dry-run", path], capture_output=True, text=True, check=True)
            subprocess.run(base + [path, "-o", os.path.join(folder, "out.jsonl"), "--restart", "--progress", "none",
                                   "--metrics", metrics], check=True, stderr=subprocess.DEVNULL)
            with open(metrics, encoding="utf-8") as file:
                measured = json.loads(file.readline())
            return seconds_of(dry.stderr), measured["duration"]

        for lines in make_files(args.scale, args.vocab, seed=1).values():
            run("before", lines)
        print(f"{'file':18} {'rows':>6} {'forecast':>9} {'run':>9} {'off':>7}")
        for name, lines in make_files(args.scale, args.vocab, seed=2).items():
            pairs = [run(name, lines) for _ in range(args.runs)]
            forecast, took = (statistics.median(values) for values in zip(*pairs))
            print(f"{name:18} {len(lines):6} {forecast:7.2f} s {took:7.2f} s {100 * (forecast / took - 1):+6.1f} %", flush=True)


if __name__ == "__main__":
    main()
