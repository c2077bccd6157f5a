#!/usr/bin/env python3
"""Times jobs that score or embed, in pairs that take turns, over a shape of data/shapes with random weights:

    make && make tools && tools/time_jobs.py [--build build] [--shape smollm2-135m] [--pairs 5] [--only embed,options]

embed:     tokens a second of texts of 40 tokens by those of bench_engine's prompt of 512 (bar 0.95)
options:   a prompt of 1,000 words with four options by the same with one (bar 1.1); over data/model, which has a tokenizer
truncate:  texts of 2,000 tokens of which 100 are kept by texts of 100 (1.0 where truncation costs what it keeps)
memory:    peak memory of scoring 4,000 tokens less that of embedding them, in MiB, with 1,024 rows a step; the logits of
           such a step would be `rows × vocabulary × 4` bytes

Each run's time is without loading. Quiet machines only. 2026-11-26, two cores of an AMD EPYC 7003, --pairs 3 --rows 100: embed
1.187 [1.067, 1.352], options 1.019 [1.001, 1.022], truncate 1.124 [0.923, 1.246], memory 440 MiB for scoring and 484 for embedding.
"""
import argparse
import json
import os
import random
import re
import subprocess
import tempfile

from time_workers import ROOT, median_of_ratios, metrics_of_run


class Jobs:
    """Files of rows, and runs over them."""

    def __init__(self, options, directory):
        self.options, self.directory, self.rng = options, directory, random.Random(1)

    def tokens(self, count):
        return [self.rng.randrange(1000, 40000) for _ in range(count)]

    def rows(self, name, rows):
        path = os.path.join(self.directory, name)
        with open(path, "w") as file:
            for row in rows:
                file.write(json.dumps(row) + "\n")
        return path

    def over_model(self, model, path, *flags):
        return [os.path.join(self.options.build, "llm-batch"), "-m", os.path.join(ROOT, "data", model), path, "-o",
                os.path.join(self.directory, "out.jsonl"), *flags]

    def command(self, path, *flags):
        return self.over_model("shapes/" + self.options.shape, path, "--load-format", "dummy", *flags)

    def run(self, command):
        return metrics_of_run(command, self.directory)

    def embed(self, path):
        return self.command(path, "--task", "embed", "--pooling", "mean")

    def prefill_rate(self):
        command = [os.path.join(self.options.build, "tools/bench_engine"), "--shape", self.options.shape, "--repeats", "1",
                   "--batch", "1", "--steps", "1"]
        lines = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
        return float(re.search(r"^prefill.*", lines, re.M).group().split()[3])


def time_embed(jobs):
    path = jobs.rows("texts.jsonl", ({"input": jobs.tokens(40)} for _ in range(jobs.options.rows)))
    metrics = jobs.run(jobs.embed(path))
    return metrics["total_input_tokens"] / metrics["duration"], jobs.prefill_rate()


def time_options(jobs):
    words = ["cat", "dog", "tree", "house", "boy", "girl", "sun", "park", "ball", "friend", "day", "bird", "mom", "dad"]
    prompts = [" ".join(jobs.rng.choices(words, k=1000)) for _ in range(jobs.options.rows)]
    seconds = []
    for count in (4, 1):
        rows = [{"prompt": p, "options": [" " + " ".join(w) for w in zip(words[:count], words[4:], words[8:])]} for p in prompts]
        path = jobs.rows("options.jsonl", rows)
        seconds.append(jobs.run(jobs.over_model("model", path, "--task", "score"))["duration"])
    return seconds


def time_truncation(jobs):
    texts = [jobs.tokens(2000) for _ in range(max(1, jobs.options.rows // 4))]
    long = jobs.rows("long.jsonl", ({"input": t, "truncate_prompt_tokens": 100} for t in texts))
    short = jobs.rows("short.jsonl", ({"input": t[-100:]} for t in texts))
    return [jobs.run(jobs.embed(path))["duration"] for path in (long, short)]


def peak_mib(command):
    metrics = ["--restart", "--progress", "none", "--max-num-batched-tokens", "1024"]
    with subprocess.Popen(command + metrics, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise SystemExit(f"exit code {process.returncode}: " + " ".join(command))
    return usage.ru_maxrss / 1024


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", default="build")
    parser.add_argument("--shape", default="smollm2-135m")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--rows", type=int, default=200)
    parser.add_argument("--only", default="embed,options,truncate,memory")
    options = parser.parse_args()
    only = options.only.split(",")
    with tempfile.TemporaryDirectory() as directory:
        jobs = Jobs(options, directory)
        ways = [("embed", time_embed, "texts / prefill, tokens a second"), ("options", time_options, "four options / one"),
                ("truncate", time_truncation, "truncated / short")]
        for name, time, title in ways:
            if name not in only:
                continue
            ratios = []
            for _ in range(options.pairs):
                first, second = time(jobs)
                ratios.append(first / second)
                print(f"{name}: {first:.4g} / {second:.4g} = {ratios[-1]:.3f}", flush=True)
            print(f"{title}: {median_of_ratios(ratios)}", flush=True)
        if "memory" in only:
            text = jobs.tokens(4000)
            score = jobs.command(jobs.rows("score.jsonl", [{"prompt_token_ids": text}]), "--task", "score")
            embed = jobs.embed(jobs.rows("embed.jsonl", [{"input": text}]))
            print(f"memory: scoring {peak_mib(score):.0f} MiB, embedding {peak_mib(embed):.0f} MiB")


if __name__ == "__main__":
    main()
