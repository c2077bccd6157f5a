#!/usr/bin/env python3
"""Times steps of rows whose answers have a form against the same rows without one, in pairs that take turns:

    make && tools/time_forms.py TOKENIZER_DIR [--build build] [--pairs 7] [--rows 64] [--schemas 64]

Prints how long a step takes with a form, by how long it takes without (the median gap between the tokens of a row; bar: 1.05).
The model is a shape of data/shapes with random weights, in int8, with the vocabulary of TOKENIZER_DIR (Qwen2.5's, for
instance). All rows run at once and end together: a form's text is longer than what may be answered. Quiet machines only.

2026-11-26, two cores of an AMD EPYC 7003, 64 schemas with a string of at least 480 characters each: 1.085 [1.028, 1.259] of 5
(1.702 [1.489, 1.994] of 7 while each number of missing characters had its masks worked out anew). A longer series the same
day, while the machine was slow: 1.224 [1.101, 1.430] of 11.
"""
import argparse
import json
import os
import shutil
import tempfile

from time_workers import ROOT, median_of_ratios, metric_of_run


def write_rows(path, options, num_schemas):
    """num_schemas: 0: no forms."""
    with open(path, "w") as file:
        for i in range(options.rows):
            line = {"prompt": f"Row {i}: describe one thing.", "max_tokens": options.tokens, "seed": i}
            if num_schemas == 0:
                line["ignore_eos"] = True
            else:
                name = f"field_{i % num_schemas}"
                text = {"type": "string", "minLength": 20 * options.tokens}
                line["response_format"] = {"type": "json_schema", "json_schema": {"name": "row", "schema": {
                    "type": "object", "properties": {name: text}, "required": [name]}}}
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
    ratios = []
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
            times = {}
            for which in (0, 1) if i % 2 == 0 else (1, 0):
                times[which] = metric_of_run("p50_itl_ms", commands[which], directory)
            ratios.append(times[1] / times[0])
            print(f"{times[0]:.1f} ms, with forms {times[1]:.1f} ms: {ratios[-1]:.3f}", flush=True)
    print("with forms / without:", median_of_ratios(ratios))


if __name__ == "__main__":
    main()
