#!/usr/bin/env python3
"""Two CPU workers under arrivals: whole rows in each with chunked prefill, or prompts in one and answers in the other.

    make && tools/time_apart.py [--build build] [--rates 2,4,8] [--seconds 5] [--slo ttft=2s,tpot=20ms]

For each rate it prints the share of requests within both objectives of --slo, and times, for `--workers 2` at two sizes of
a step and for `--prefill-workers 1 --decode-workers 1`. Prompts of 200 to 1,600 tokens, answers of 20 to 120, over
data/model; arrivals are --request-rate's. Quiet machines only.

2026-11-26, two cores of an AMD EPYC 7003, one run each of 4 s of arrivals, --rates 8,16,24 --seconds 4 --slo ttft=1s,tpot=3ms:
    requests/s   way                    within   mean TTFT ms   p90 TPOT ms   p99 TPOT ms
    8            2 workers, 128 rows      59 %            214          13.1          26.4
    8            2 workers, 1024 rows     50 %            203          13.8          23.6
    8            apart, 1 + 1             78 %            613           1.3           1.6
    16           2 workers, 128 rows       2 %            851          23.3          24.8
    16           2 workers, 1024 rows      3 %            753          95.3         145.9
    16           apart, 1 + 1             20 %          2,199           1.5           2.0
    24           2 workers, 128 rows       1 %          2,255          25.8          27.2
    24           2 workers, 1024 rows      1 %          2,015         194.3         226.2
    24           apart, 1 + 1              8 %          4,635           1.8           2.4
Apart, answers keep their pace at any rate; the one worker for prompts is what runs short from some 8 requests a second on.
"""
import argparse
import json
import os
import random
import tempfile

from time_workers import ROOT, metrics_of_run

WAYS = [
    ("2 workers, 128 rows", ["--workers", "2", "--max-num-batched-tokens", "128"]),
    ("2 workers, 1024 rows", ["--workers", "2", "--max-num-batched-tokens", "1024"]),
    ("apart, 1 + 1", ["--prefill-workers", "1", "--decode-workers", "1", "--max-num-batched-tokens", "1024"]),
]


def write_rows(path, count):
    rng = random.Random(1)
    with open(path, "w") as file:
        for _ in range(count):
            prompt = [rng.randrange(10, 1500) for _ in range(rng.randrange(200, 1600))]
            file.write(json.dumps({"prompt_token_ids": prompt, "max_tokens": rng.randrange(20, 121), "ignore_eos": True}) + "\n")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", default="build")
    parser.add_argument("--rates", default="2,4,8")
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--slo", default="ttft=2s,tpot=20ms")
    args = parser.parse_args()
    print("| requests/s | way | within the objectives | mean TTFT ms | p90 TPOT ms | p99 TPOT ms |\n|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as directory:
        rows, out = os.path.join(directory, "in.jsonl"), os.path.join(directory, "out.jsonl")
        for rate in args.rates.split(","):
            count = max(1, round(float(rate) * args.seconds))
            write_rows(rows, count)
            for name, flags in WAYS:
                command = [os.path.join(ROOT, args.build, "llm-batch"), "-m", os.path.join(ROOT, "data/model"), rows, "-o", out,
                           "--request-rate", rate, "--slo", args.slo, "--speculative", "none"] + flags
                m = metrics_of_run(command, directory)
                share = m["request_goodput"] * m["duration"] / count
                print(f"| {rate} | {name} | {100 * share:.0f} % | {m['mean_ttft_ms']:.0f} | {m['p90_tpot_ms']:.1f} | "
                      f"{m['p99_tpot_ms']:.1f} |", flush=True)


if __name__ == "__main__":
    main()
