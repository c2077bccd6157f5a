#!/usr/bin/env python3
"""Times steps of rows whose answers have a form against the same rows without one, in pairs that take turns:

    make && tools/time_forms.py TOKENIZER_DIR [--build build] [--pairs 7] [--rows 64] [--schemas 64]

Prints how long a step takes with a form, by how long it takes without (the median gap between the tokens of a row;
bar: 1.05), and the same of all steps behind the prompts with what the device waits for in between, which are fewer
with a form. The model is a shape of data/shapes with random weights, in int8, with the vocabulary of TOKENIZER_DIR
(Qwen2.5's, for instance). All rows run at once and end together: a form's text is longer than what may be answered.
It begins with few tokens that the form leaves no choice of: these are computed with others, so steps that have some
are wider, which is no cost of forms. Quiet machines only.

2026-11-26, two cores of an AMD EPYC 7003 whose speed changed between runs: a step 0.978 [0.894, 1.114], all steps
0.991 [0.903, 1.110] of 11 pairs, so 1.05 is not resolved from noise. By count: the device waits 3.9 ms between two
steps of 545 (median of 11), and of 9,000 samples of the processor in steps 16 are in masks. Before strings of
different schemas shared what they allow, it waited some 50 ms: rows of 64 schemas on the ledger device, 24 tokens
each, needed 1.47 s between steps and need 0.18, with 96 tokens 3.09 and 0.58 (other work beside it; same records).
"""
import argparse
import json
import os
import shutil
import tempfile

from time_workers import ROOT, median_of_ratios, metrics_of_run


def write_rows(path, options, num_schemas):
    """num_schemas: 0: no forms."""
    with open(path, "w") as file:
        for i in range(options.rows):
            line = {"prompt": f"Row {i}: describe one thing.", "max_tokens": options.tokens, "seed": i}
            if num_schemas == 0:
                line["ignore_eos"] = True
            else:
                text = {"type": "string", "minLength": 20 * options.tokens + i % num_schemas}
                line["response_format"] = {"type": "json_schema", "json_schema": {"name": "row", "schema": {
                    "type": "array", "items": text, "minItems": 1}}}
            file.write(json.dumps(line) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tokenizer")
    parser.add_argument("--build", default="build")
    parser.add_argument("--shape", default="qwen2.5-0.5b")
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--schemas", type=int, default=64, help="different ones among the rows")
    parser.add_argument("--tokens", type=int, default=24)
    options = parser.parse_args()
    steps, sums = [], []
    with tempfile.TemporaryDirectory() as directory:
        model = os.path.join(directory, "model")
        shutil.copytree(os.path.join(ROOT, "data/shapes", options.shape), model)
        for name in os.listdir(options.tokenizer):
            if "token" in name or name in ("vocab.json", "merges.txt"):
                shutil.copy(os.path.join(options.tokenizer, name), model)
        commands = []
        for name, num_schemas in (("plain", 0), ("forms", options.schemas)):
            rows = os.path.join(directory, name + ".jsonl")
            write_rows(rows, options, num_schemas)
            commands.append([os.path.join(options.build, "llm-batch"), "-m", model, "--load-format", "dummy",
                             "--quantization", "int8", rows, "-o", os.path.join(directory, name + ".out.jsonl"),
                             "--speculative", "none", "--max-model-len", "512"])
        for i in range(options.pairs):
            step, total, gap = {}, {}, {}
            for which in (0, 1) if i % 2 == 0 else (1, 0):
                metrics = metrics_of_run(commands[which], directory)
                step[which] = metrics["p50_itl_ms"]
                total[which] = sum(metrics["time"][part] for part in ("decode_s", "tail_s", "gap_s"))
                gap[which] = 1000 * metrics["time"]["gap_s"] / metrics["num_steps"]
            steps.append(step[1] / step[0])
            sums.append(total[1] / total[0])
            print(f"{step[0]:.1f} ms, with forms {step[1]:.1f} ms: {steps[-1]:.3f}, all steps {sums[-1]:.3f}; "
                  f"between two {gap[1]:.1f} ms", flush=True)
    print("with forms / without: a step", median_of_ratios(steps), "all steps", median_of_ratios(sums))


if __name__ == "__main__":
    main()
