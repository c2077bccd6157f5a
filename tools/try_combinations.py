#!/usr/bin/env python3
"""Runs the whole program with everything at once, at random: rows of every kind, models of every kind, and flags that may
change nothing of any answer, drawn together; some runs are killed and continued with other flags, some are cut into
shards and merged. The records must be, byte for byte, those of one row at a time without cache and drafts.

    tools/try_combinations.py [PROGRAM] [--seed N] [--seconds 600] [--device cpu]
    # CUDA's code on the host layer, which has four GPUs here: small models only
    LLMB_SIMT_DEVICES=4 tools/try_combinations.py build/tests/gpu_program --device cuda --golden
    tools/try_combinations.py [PROGRAM] --case N     # one case again, as its message says

Combinations that the program refuses (exit codes 2 and 4) are counted by their message. Exit code: 0 all records are the
same, 1 some differ, or a run did not end as it should; the files of such a case stay where its message says.
"""
import argparse
import glob
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
FIXTURES = "data/fixtures"
RUN_SECONDS = 170
INSTRUCTION = "You are a careful assistant. Answer briefly, keep to the facts, and say so where you do not know. "
FORMS = [{"json": {"type": "object", "properties": {"name": {"type": "string", "maxLength": 20}, "age": {"type": "integer"}},
                   "required": ["name", "age"], "additionalProperties": False}},
         {"json": {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "minItems": 1, "maxItems": 4}},
         {"regex": "[a-z]{3,9} [0-9]+"}, {"regex": "(- .+\n){2,4}"}, {"choice": ["yes", "no", "perhaps"]},
         {"grammar": 'root ::= item ("," item)*\nitem ::= "(" root ")" | [a-z]+'}]


class Model:
    """Where a model is, and what its rows may ask for."""

    def __init__(self, rng, golden_only):
        self.flags, self.adapters, self.formats, self.drafts = [], [], [[]], ["none", "lookup", "lookahead", "lookup,lookahead"]
        self.vocab_size = 0  # 0: rows are text
        self.task = "generate"
        kind = 1 if golden_only else rng.random()
        if kind < 0.1:
            self.choose_task(rng)
        elif kind < 0.55:
            self.path, self.adapters = "data/model", ["french", "roman", "letters"]
            self.flags = ["--adapter-dir", "data/adapters"]
            draft = "draft:data/draft-model"
            self.drafts += ["layers:2", draft, f"{draft},lookup", f"tree,{draft}"]
            self.formats = [["--dtype", "float32"], ["--dtype", "bfloat16"], ["--quantization", "int8"], ["--quantization", "int4"],
                            ["--quantization", "w4a8"],
                            ["--quantization", "int8", "--kv-cache-dtype", "int8"], ["--kv-cache-dtype", "fp8"],
                            ["--kv-cache-dtype", "int4"], ["--tensor-parallel-size", "2"]]
        else:
            self.choose_golden(rng)

    def choose_task(self, rng):
        self.task, self.drafts = rng.choice(["score", "embed", "classify"]), ["none"]
        folders = glob.glob(f"{FIXTURES}/{'classifiers' if self.task == 'classify' else 'encoders'}/*")
        self.path = "data/model" if self.task == "score" else rng.choice(sorted(folders))
        self.flags = ["--task", self.task]

    def choose_golden(self, rng):
        golden = sorted(glob.glob(f"{FIXTURES}/models/*/golden.jsonl") + glob.glob(f"{FIXTURES}/quantized/*/golden.jsonl") +
                        glob.glob(f"{FIXTURES}/mtp/*/golden.jsonl") + glob.glob(f"{FIXTURES}/gguf/*.golden.jsonl"))
        found = rng.choice(golden)
        self.path = found.replace(".golden.jsonl", ".gguf") if "/gguf/" in found else os.path.dirname(found)
        if self.path.endswith("split.gguf"):
            self.path = self.path.replace("split", "split-00001-of-00003")
        self.flags = ["--tokenizer", "data/model", "--ignore-eos"]
        with open(found, encoding="utf-8") as file:
            self.vocab_size = 1 + max(max(json.loads(line).get("token_ids") or [9]) for line in file)
        name = os.path.basename(self.path)
        if "/models/" in found and os.path.isdir(f"{FIXTURES}/adapters/{name}"):
            self.flags += ["--adapter-dir", f"{FIXTURES}/adapters/{name}"]
            self.adapters = sorted(os.listdir(f"{FIXTURES}/adapters/{name}"))
        if "/mtp/" in found:
            self.drafts += ["mtp", "mtp,lookup"]
        self.drafts += [f"eagle:{folder}" for folder in sorted(glob.glob(f"{FIXTURES}/eagle/{name}*")) if "/models/" in found]
        self.formats = [[], [], ["--kv-cache-dtype", "int8"], ["--kv-cache-dtype", "fp8"], ["--kv-cache-dtype", "int4"],
                        ["--tensor-parallel-size", "2"]]
        if "/models/" in found:
            self.formats += [["--quantization", "int8"], ["--quantization", "w4a8"]]


def make_prompt(rng, model, texts):
    if model.vocab_size:
        shared = [7 * i % model.vocab_size for i in range(rng.choice([0, 0, 8, 16, 33]))]
        return {"prompt_token_ids": shared + [rng.randrange(model.vocab_size) for _ in range(rng.choice([1, 3, 8, 15, 16, 17, 30, 66]))]}
    text = (INSTRUCTION * rng.randint(1, 3) if rng.random() < 0.4 else "") + rng.choice(texts)
    return {"messages": [{"role": "user", "content": text}]} if rng.random() < 0.4 else {"prompt": text}


def make_row(rng, model, texts):
    if model.task != "generate":
        text = " ".join(rng.choice(texts).split()[:rng.choice([1, 3, 8, 40])])
        return {"prompt" if model.task == "score" else "input": text}
    row = make_prompt(rng, model, texts)
    is_text = "prompt" in row
    if is_text and rng.random() < 0.1:
        return {**row, "options": [" yes", " no", " perhaps so"][:rng.randint(1, 3)]}
    row["max_tokens"] = rng.choice([1, 2, 3, 8, 15, 16, 17, 33, 60] if not model.vocab_size else [1, 2, 3, 8, 15, 16, 17, 30])
    if model.adapters and rng.random() < 0.25:
        row["adapter"] = rng.choice(model.adapters)
    kind = rng.random()
    if kind < 0.15:
        return {**row, "use_beam_search": True, "n": rng.randint(1, 4)}
    if kind < 0.4:
        row["temperature"] = 0
    else:
        row["temperature"] = rng.choice([0.3, 0.8, 1.2])
        for field, value in [("top_p", 0.9), ("top_k", rng.choice([1, 5, 40])), ("min_p", 0.05), ("seed", rng.randrange(10))]:
            if rng.random() < 0.25:
                row[field] = value
        if rng.random() < 0.3:
            row["n"] = rng.randint(2, 5)
        elif rng.random() < 0.2:
            row["best_of"] = rng.randint(2, 4)
    fields = [("repetition_penalty", 1.2), ("frequency_penalty", 0.4), ("logprobs", rng.randint(1, 4)), ("min_tokens", 1),
              ("logit_bias", {"7": 3, "9": -100}), ("return_token_ids", True)]
    if "messages" not in row:
        fields += [("prompt_logprobs", rng.randint(0, 2))]
    if is_text:
        fields += [("stop", rng.choice([["."], [" a"], ["e", "\n"]])), ("bad_words", ["the"])]
    for field, value in fields:
        if rng.random() < 0.15:
            row[field] = value
    if not model.vocab_size and rng.random() < 0.3:
        row["structured_outputs"] = rng.choice(FORMS)
    return row


def draw_schedule(rng, model, form):
    """Flags that may change no record."""
    flags = []

    def maybe(chance, *words):
        if rng.random() < chance:
            flags.extend(map(str, words))

    is_int4 = "int4" in form and "--kv-cache-dtype" in form
    block_size = rng.choice([32, 64] if is_int4 else [8, 16, 32, 64, 128])
    maybe(0.5, "--max-num-seqs", rng.choice([1, 2, 3, 5, 9, 17, 64]))
    maybe(0.4, "--max-num-batched-tokens", rng.choice([16, 37, 64, 129, 400]))
    maybe(0.3, "--batching", rng.choice(["none", "static", "dynamic"]))
    maybe(0.3, "--schedule", rng.choice(["file", "prefix", "longest-first"]))
    maybe(0.3, "--policy", rng.choice(["sjf", "mlfq"]))
    maybe(0.15, "--request-rate", rng.choice([200, 1000]))
    maybe(0.3, "--threads", rng.choice([1, 2, 3]))
    maybe(0.1, "--plan-memory", "1M")
    maybe(0.8, "--speculative", rng.choice(model.drafts))
    maybe(0.3, "--num-speculative-tokens", rng.choice([1, 3, 8, 16]))
    divides_kv = rng.random() < 0.05
    if not divides_kv and rng.random() < 0.6:
        positions = rng.choice([1100, 1500, 2500]) if not model.vocab_size else rng.choice([300, 500, 1000])
        flags += ["--block-size", str(block_size), "--num-gpu-blocks-override", str(max(4, positions // block_size))]
    kind = rng.random()
    if "--tensor-parallel-size" in form and kind > 0.2:
        kind = 1
    if divides_kv:
        flags += ["--decode-context-parallel-size", "2"]
        kind = 1
    if kind < 0.1:
        flags += ["--workers", "2"]
    elif kind < 0.2:
        flags += ["--pipeline-parallel-size", "2"]
    elif kind < 0.25:
        flags += ["--prefill-workers", "1", "--decode-workers", "1"]
    elif kind < 0.3:
        flags += ["--prefill-context-parallel-size", "2"]
    if "--prefill-workers" in flags:
        maybe(0.3, "--preemption", "swap")
    elif rng.random() < 0.3:
        flags.append("--no-enable-prefix-caching")
    else:
        maybe(0.5, "--preemption", rng.choice(["recompute", "swap"]))
    return flags


def records_of(path):
    """In one order, without the time at which they were made."""
    with open(path, encoding="utf-8") as file:
        return sorted(re.sub('"created":[0-9]+', '"created":0', line) for line in file.read().splitlines())


class Trial:
    def __init__(self, args, number, folder):
        self.args, self.number, self.folder = args, number, folder
        self.rng = random.Random(number)
        self.model = Model(self.rng, args.golden)
        self.form = self.rng.choice(self.model.formats)
        with open("data/eval/heldout.jsonl", encoding="utf-8") as file:
            texts = [json.loads(line)["messages"][0]["content"] for line in file]
        self.rows = os.path.join(folder, "rows.jsonl")
        self.ids = [f"r{i}" for i in range(self.rng.choice([5, 20, 40]))]
        with open(self.rows, "w", encoding="utf-8") as file:
            for name in self.ids:
                row = make_row(self.rng, self.model, texts)
                is_chat = "messages" in row and "adapter" not in row and "use_beam_search" not in row and "best_of" not in row
                line = {"id": name, **row}
                if is_chat and self.rng.random() < 0.3:
                    row = {"model": "m", **row, **({"logprobs": True} if "logprobs" in row else {})}
                    line = {"custom_id": name, "method": "POST", "url": "/v1/chat/completions", "body": row}
                file.write(json.dumps(line) + "\n")
        self.log = []

    def command(self, out, flags):
        return [self.args.program, "-m", self.model.path, self.rows, "-o", out, "--no-metrics", "--progress", "none", "--metrics",
                "none", "--device", self.args.device, "--deterministic", *self.model.flags, *self.form, *flags]

    def run(self, out, flags, seconds=None):
        """The exit code, or None where the run was killed after so many seconds."""
        command = self.command(out, flags)
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True)
        try:
            said = process.communicate(timeout=seconds or RUN_SECONDS)[1]
            code = process.returncode
        except subprocess.TimeoutExpired:
            how = self.rng.choice([signal.SIGKILL, signal.SIGTERM]) if seconds else signal.SIGABRT
            (os.killpg if self.rng.random() < 0.7 or not seconds else os.kill)(process.pid, how)
            try:
                said, code = process.communicate(timeout=60)[1], None if seconds else "no end"
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                said, code = process.communicate()[1], "no end after a signal"
        self.log.append((" ".join(command), code, said.strip()[-600:]))
        return code

    def schedule(self):
        flags = draw_schedule(self.rng, self.model, self.form)
        if self.args.device == "cpu" and self.rng.random() < 0.15:
            flags += ["--weight-cache", self.args.weights]
        return flags

    def answer(self, out):
        """The exit code of a run, of a killed run that was continued, or of shards that were merged."""
        order = ["--order", self.rng.choice(["input", "completion"])]
        if self.rng.random() < 0.1:
            shards = [f"{out}.{i}" for i in range(2)]
            flags = self.schedule()
            codes = [self.run(shard, flags + ["--shard", f"{i}/2"]) for i, shard in enumerate(shards)]
            if any(code not in (0, 3) for code in codes):
                return next(code for code in codes if code not in (0, 3))
            merge = subprocess.run([self.args.program, "merge", out, *shards, *order], capture_output=True, text=True)
            self.log.append(("merge", merge.returncode, merge.stderr.strip()[-600:]))
            return merge.returncode
        for _ in range(self.rng.choice([0, 0, 1, 3])):
            code = self.run(out, self.schedule() + order, seconds=self.rng.uniform(0.1, 2))
            if code is not None and code not in (5, 130, 143):
                return code
        return self.run(out, self.schedule() + order)

    def problem(self, refusals):
        """What is wrong, or None."""
        expected = os.path.join(self.folder, "expected.jsonl")
        plain = ["--order", "input", "--batching", "none", "--speculative", "none", "--no-enable-prefix-caching", "--schedule", "file",
                 "--threads", "1"]
        code = self.run(expected, plain)
        if code in (2, 4):
            refusals[self.log[-1][2].splitlines()[0]] += 1
            return None
        if code not in (0, 3):
            return f"exit code {code}"
        want = records_of(expected)
        if len(want) != len(self.ids):
            return f"{len(want)} records of {len(self.ids)} lines"
        for i in range(3):
            self.log = self.log[:1]
            out = os.path.join(self.folder, f"out{i}.jsonl")
            code = self.answer(out)
            if code in (2, 4):
                refusals[self.log[-1][2].splitlines()[0]] += 1
                continue
            if code not in (0, 3):
                return f"exit code {code}"
            got = records_of(out)
            if any('"code":"kv_too_small"' in record for record in got):
                refusals["a pool too small for some line"] += 1
                continue
            if got != want:
                first = next((pair for pair in zip(got, want) if pair[0] != pair[1]), ("", ""))
                return f"{len(got)} and {len(want)} records, {sum(a != b for a, b in zip(got, want))} differ\n  " + "\n  ".join(first)
            self.args.num_same += 1
        return None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", nargs="?", default="build/llm-batch")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--golden", action="store_true", help="only the small models that tests have")
    parser.add_argument("--case", type=int)
    args = parser.parse_args()
    args.program, args.num_same = os.path.abspath(args.program), 0
    os.chdir(ROOT)
    args.weights = tempfile.mkdtemp(prefix="weights-")
    end, numbers, refusals, num_cases, num_wrong = time.monotonic() + args.seconds, random.Random(args.seed), Counter(), 0, 0
    while num_cases == 0 or (args.case is None and time.monotonic() < end):
        number = args.case if args.case is not None else numbers.randrange(10**9)
        folder = tempfile.mkdtemp(prefix=f"case-{number}-")
        trial = Trial(args, number, folder)
        problem = trial.problem(refusals)
        num_cases += 1
        if problem is None:
            shutil.rmtree(folder)
            continue
        num_wrong += 1
        print(f"case {number}, {folder}: {problem}")
        for command, code, said in trial.log:
            print(f"  {command}\n    exit code {code}: {said}", flush=True)
    shutil.rmtree(args.weights)
    for said, count in refusals.most_common():
        print(f"refused {count} times: {said}")
    print(f"{num_cases} cases, {args.num_same} answers with equal records, {sum(refusals.values())} refused, {num_wrong} cases wrong")
    sys.exit(num_wrong > 0)


if __name__ == "__main__":
    main()
