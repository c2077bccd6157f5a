#!/usr/bin/env python3
"""Compares the answers of two builds of llm-batch, byte for byte, over every schedule:

    tools/compare_answers.py OLD_PROGRAM NEW_PROGRAM [--lines 300] [--seed 1] [--models 46] [--resume]

The lines are made here: prompts, conversations, token ids and OpenAI batch lines; greedy and sampled; penalties, stop
strings, log probabilities, biases, min_tokens, truncation, and a few lines that are errors. The old build answers them
once; the new one answers them in every batching mode, with small steps, small KV pools and one thread; with --resume it
also continues an output that the old build was stopped in. Then every golden model under data/fixtures/models that
the old build runs answers its own prompts in both. Records are compared by index, without `metrics`, `created` and OpenAI's ids.
Exit code: 0 no record differs, 1 some do.
"""
import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
MODEL = os.path.join(ROOT, "data/model")
REFUSED = 4  # the exit code where a program does not run a model
SCHEDULES = [
    [],
    ["--batching", "static", "--max-num-seqs", "7"],
    ["--batching", "dynamic", "--max-num-seqs", "5", "--batch-window-ms", "1"],
    ["--batching", "none"],
    ["--max-num-seqs", "32", "--max-num-batched-tokens", "33"],
    ["--max-num-seqs", "16", "--block-size", "8", "--num-gpu-blocks-override", "80"],
    ["--max-num-seqs", "3", "--threads", "1", "--block-size", "32"],
]


def prompt_fields(rng, words):
    text = " ".join(rng.choice(words) for _ in range(rng.randint(1, 60)))
    kind = rng.randrange(4)
    if kind == 0:
        return {"prompt": text}
    if kind == 1:
        return {"messages": [{"role": "user", "content": text}]}
    if kind == 2:
        return {"prompt_token_ids": [rng.randrange(300, 1500) for _ in range(rng.choice([1, 15, 16, 17, 63, 64, 65, 200]))]}
    return {"messages": [{"role": "system", "content": "Answer briefly."}, {"role": "user", "content": text}]}


def sampling_fields(rng):
    fields = {"max_tokens": rng.randint(1, 60)}
    if rng.random() < 0.6:
        fields.update(temperature=rng.choice([0.3, 1, 1.7]), seed=rng.randrange(1000))
        if rng.random() < 0.5:
            fields["top_p"] = rng.choice([0.5, 0.95])
        if rng.random() < 0.3:
            fields["top_k"] = rng.choice([1, 5, 50])
        if rng.random() < 0.3:
            fields["min_p"] = 0.05
    else:
        fields["temperature"] = 0
    if rng.random() < 0.3:
        fields.update(presence_penalty=0.7, frequency_penalty=-0.3)
    if rng.random() < 0.2:
        fields["stop"] = [rng.choice(["e", "the", ". ", "and", "\n"])]
    if rng.random() < 0.15:
        fields["logit_bias"] = {str(rng.randrange(300, 1500)): rng.choice([-100, 3, 8])}
    return fields


def native_fields(rng):
    fields = {}
    if rng.random() < 0.2:
        fields["repetition_penalty"] = 1.2
    if rng.random() < 0.2:
        fields["min_tokens"] = 1
    if rng.random() < 0.2:
        fields["logprobs"] = rng.randrange(5)
    if rng.random() < 0.2:
        fields["return_token_ids"] = True
    if rng.random() < 0.1:
        fields["ignore_eos"] = True
    if rng.random() < 0.1:
        fields.update(truncate_prompt_tokens=20)
    return fields


def make_lines(count, seed):
    rng = random.Random(seed)
    words = "once upon a time there was little girl named Lily who wanted to play with 17 plus 25 café 東京 😀 is".split()
    for i in range(count):
        fields = {**prompt_fields(rng, words), **sampling_fields(rng)}
        if i % 50 == 49:
            yield json.dumps({"id": i, "prompt": 5})
        elif "prompt_token_ids" not in fields and rng.random() < 0.3:
            url = "/v1/chat/completions" if "messages" in fields else "/v1/completions"
            fields.pop("top_k", None)
            fields.pop("min_p", None)
            yield json.dumps({"custom_id": f"c{i}", "method": "POST", "url": url, "body": {"model": "m", **fields}})
        else:
            yield json.dumps({"id": i, **fields, **native_fields(rng)}, ensure_ascii=False)


def without_run_details(record):
    for name in ("metrics", "created"):
        record.pop(name, None)
    response = record.get("response")
    if response:
        record.pop("id", None)
        response.pop("request_id", None)
        for name in ("id", "created", "metrics"):
            if response.get("body"):
                response["body"].pop(name, None)
    return json.dumps(record, ensure_ascii=False)


def records_of(path):
    """The records of a file written with --order input, without what may differ between runs."""
    with open(path, encoding="utf-8") as file:
        return [without_run_details(json.loads(line)) for line in file]


def run(program, model, lines, out, flags, may_refuse=False):
    """The records; None where the model is refused and may be."""
    command = [program, "-m", model, lines, "-o", out, "--order", "input", "--metrics", "none", "--progress", "none", *flags]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True)
    if may_refuse and done.returncode == REFUSED:
        return None
    if done.returncode not in (0, 3):
        sys.exit(f"{' '.join(command)}: exit code {done.returncode}\n{done.stderr}")
    return records_of(out)


def begin_and_stop(program, lines, out):
    """Leaves an output that was stopped in the middle."""
    command = [program, "-m", MODEL, lines, "-o", out, "--order", "input", "--metrics", "none", "--progress", "none",
               "--max-num-seqs", "2", "--grace", "0"]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    while process.poll() is None:
        time.sleep(0.02)
        if os.path.exists(out + ".partial") and os.path.getsize(out + ".partial") > 20000:
            process.terminate()
            break
    process.wait()
    if os.path.exists(out):
        sys.exit("the old build was not stopped in time")


def report(name, old, new):
    different = [i for i, (a, b) in enumerate(zip(old, new)) if a != b]
    if len(old) != len(new):
        print(f"{name}: {len(old)} records and {len(new)}")
        return False
    print(f"{name}: {len(old)} records, {len(different)} differ")
    for i in different[:3]:
        print("  old", old[i][:400])
        print("  new", new[i][:400])
    return not different


def compare_golden(args, folder):
    directory = os.path.join(ROOT, "data/fixtures/models")
    same = True
    for name in sorted(os.listdir(directory))[:args.models]:
        lines = os.path.join(folder, name + ".jsonl")
        with open(os.path.join(directory, name, "golden.jsonl"), encoding="utf-8") as golden, open(lines, "w") as file:
            for i, case in enumerate(map(json.loads, golden)):
                prompt = case.get("prompt_ids") or case.get("prompt_token_ids") or case.get("prompt")
                for temperature in (0, 1):
                    print(json.dumps({"prompt_token_ids": prompt, "max_tokens": 24, "temperature": temperature, "seed": i,
                                      "logprobs": 3, "ignore_eos": True, "return_token_ids": True}), file=file)
        flags = ["--tokenizer", MODEL, "--block-size", "8", "--restart"]
        old, new = (run(program, os.path.join(directory, name), lines, os.path.join(folder, "golden.out"), flags,
                        may_refuse=program == args.old) for program in (args.old, args.new))
        if old is None:
            print(f"{name}: the old program does not run it", flush=True)
            continue
        same = report(name, old, new) and same
    return same


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old")
    parser.add_argument("new")
    parser.add_argument("--lines", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--models", type=int, default=1000, help="golden models at most")
    parser.add_argument("--resume", action="store_true", help="the new build also continues what the old one began")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        lines = os.path.join(folder, "lines.jsonl")
        with open(lines, "w", encoding="utf-8") as file:
            file.writelines(line + "\n" for line in make_lines(args.lines, args.seed))
        old = run(args.old, MODEL, lines, os.path.join(folder, "old.jsonl"), [])
        same = True
        for i, flags in enumerate(SCHEDULES):
            new = run(args.new, MODEL, lines, os.path.join(folder, f"new{i}.jsonl"), flags)
            same = report(" ".join(flags) or "default", old, new) and same
        if args.resume:
            out = os.path.join(folder, "resumed.jsonl")
            begin_and_stop(args.old, lines, out)
            same = report("continued", old, run(args.new, MODEL, lines, out, [])) and same
        same = compare_golden(args, folder) and same
    sys.exit(0 if same else 1)


if __name__ == "__main__":
    main()
