#!/usr/bin/env python3
"""Whole runs on real kernels: the planned order with shared prefixes beside the order of the file.

    tools/bench_schedule.py                                  # Qwen2.5-0.5B in int8 with random weights, about four minutes
    tools/bench_schedule.py --gsm8k gsm8k_test.jsonl         # and the questions of that file
    tools/bench_schedule.py --pairs 5 --rows 96              # more of them

documents: 6 documents of some 700 tokens, 10 questions to each, shuffled: the defaults beside --schedule file
--no-enable-prefix-caching. gsm8k: rows that share nothing: the defaults beside --schedule file. Runs alternate; prints what
each pair took, the median of their ratios, and whether the records are the same. Have nothing else run on the machine.

Planning itself, 2026-11-23, an Intel Xeon (Emerald Rapids), processor time: rows of 502 tokens of the bundled model, one token to
answer, all words of gsm8k's questions in other orders; llm-batch -m data/model --device ledger --max-model-len 2048 --no-metrics:

    1,000,000 rows                          102.7 s, 363 MiB; with --schedule file 89.7 s, 190 MiB
    1,000,000 rows, --dry-run                50.1 s, 361 MiB; with --schedule file 47.2 s, 245 MiB
    100,000 rows                             14.0 s, 173 MiB
    100,000 rows, half equal to the others    7.1 s, 168 MiB: 0.51 x

Exit code: 0 the records are the same, 1 they are not.
"""
import argparse
import json
import os
import random
import statistics
import subprocess
import tempfile

WORDS = ["once", "upon", "a", "time", "little", "girl", "went", "to", "the", "park", "and", "saw", "big", "dog", "happy", "tree"]


def documents(count, questions, words):
    rng = random.Random(1)
    texts = [" ".join(rng.choice(WORDS) for _ in range(words)) for _ in range(count)]
    lines = [{"prompt": f"{text} Question {q}: who was there?", "max_tokens": 16, "ignore_eos": True}
             for text in texts for q in range(questions)]
    rng.shuffle(lines)
    return lines


def gsm8k(path, rows):
    with open(path, encoding="utf-8") as file:
        questions = [json.loads(line)["question"] for line, _ in zip(file, range(rows))]
    rng = random.Random(2)
    return [{"prompt": q, "max_tokens": rng.randint(8, 40), "ignore_eos": True} for q in questions]


def run(args, path, folder, flags):
    out, metrics = os.path.join(folder, "out.jsonl"), os.path.join(folder, "metrics.jsonl")
    if os.path.exists(metrics):
        os.remove(metrics)
    command = [args.program, "-m", args.model, "--tokenizer", args.tokenizer, "--load-format", "dummy", "--quantization",
               "int8", "--temperature", "0", "--progress", "none", "--no-metrics", "--restart", path, "-o", out, "--metrics",
               metrics] + flags
    subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
    with open(out, encoding="utf-8") as file:
        records = sorted(file)
    with open(metrics, encoding="utf-8") as file:
        return json.loads(file.readline())["duration"], records


def compare(args, name, lines, flags, pairs):
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "in.jsonl")
        with open(path, "w", encoding="utf-8") as file:
            file.writelines(json.dumps(line) + "\n" for line in lines)
        ratios, same = [], True
        for i in range(pairs):
            runs = {}
            for planned in ((True, False) if i % 2 else (False, True)):
                runs[planned] = run(args, path, folder, [] if planned else flags)
            same = same and runs[True][1] == runs[False][1]
            ratios.append(runs[False][0] / runs[True][0])
            print(f"{name}: {runs[False][0]:.1f} s with {' '.join(flags)}, {runs[True][0]:.1f} s planned, "
                  f"{ratios[-1]:.2f} x", flush=True)
        print(f"{name}: {len(lines)} rows, {pairs} pairs, median {statistics.median(ratios):.2f} x "
              f"({min(ratios):.2f} to {max(ratios):.2f}), records {'the same' if same else 'DIFFER'}", flush=True)
        return same


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default="build/llm-batch")
    parser.add_argument("--model", default="data/shapes/qwen2.5-0.5b")
    parser.add_argument("--tokenizer", default="data/model")
    parser.add_argument("--gsm8k", help="JSON lines with a member question")
    parser.add_argument("--pairs", type=int, default=3, help="of gsm8k; documents have a third of them")
    parser.add_argument("--rows", type=int, default=48, help="of gsm8k")
    args = parser.parse_args()
    same = compare(args, "documents", documents(6, 10, 600), ["--schedule", "file", "--no-enable-prefix-caching"],
                   max(1, args.pairs // 3))
    if args.gsm8k:
        same = compare(args, "gsm8k", gsm8k(args.gsm8k, args.rows), ["--schedule", "file"], args.pairs) and same
    raise SystemExit(0 if same else 1)


if __name__ == "__main__":
    main()
