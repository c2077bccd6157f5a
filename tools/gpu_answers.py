"""The bundled model's answers on a device (gpu_check.py): beside the CPU's, and, for rows of every kind, under schedules of
every kind with --deterministic, where the records are to be the same bytes."""
import json
import os
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor

SCHEMA = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 20}, "age": {"type": "integer"}},
          "required": ["name", "age"], "additionalProperties": False}
FORMS = [{"response_format": {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA}}},
         {"structured_outputs": {"regex": "[a-z]{3,9} [0-9]+"}},
         {"structured_outputs": {"choice": ["yes", "no", "perhaps"]}}]
SAMPLING = [{"temperature": 0}, {"temperature": 0.9, "top_p": 0.9, "n": 3}, {"temperature": 0.8, "top_k": 20, "logprobs": 3},
            {"use_beam_search": True, "n": 4}, {"temperature": 0, "repetition_penalty": 1.2, "stop": ["."]},
            {"temperature": 0.7, "min_p": 0.05, "best_of": 4}, {"adapter": "french"}, {"adapter": "roman", "temperature": 0.5}]
FORMATS = [["--dtype", "bfloat16"], ["--dtype", "float32"], ["--dtype", "bfloat16", "--quantization", "int8"],
           ["--dtype", "bfloat16", "--quantization", "fp8"], ["--dtype", "bfloat16", "--quantization", "w4a8"],
           ["--dtype", "bfloat16", "--kv-cache-dtype", "int8"], ["--dtype", "bfloat16", "--kv-cache-dtype", "fp8"]]
SCHEDULES = [[], ["--max-num-seqs", "5", "--max-num-batched-tokens", "37"], ["--no-enable-prefix-caching"],
             ["--num-gpu-blocks-override", "48", "--preemption", "recompute"],
             ["--num-gpu-blocks-override", "48", "--preemption", "swap"], ["--batching", "static", "--max-num-seqs", "16"],
             ["--speculative", "lookup"], ["--speculative", "draft:data/draft-model,lookup", "--max-num-seqs", "9"],
             ["--speculative", "tree,draft:data/draft-model", "--max-num-seqs", "7"], ["--speculative", "lookahead"],
             ["--speculative", "layers:2", "--num-gpu-blocks-override", "64"], ["--block-size", "64", "--schedule", "file"]]
NUM_PROCESSES = 6


def write_rows(path):
    asked = "You are a careful assistant. Answer briefly, keep to the facts, and say so where you do not know. "
    with open("data/eval/heldout.jsonl", encoding="utf-8") as file:
        prompts = [json.loads(line)["messages"][0]["content"] for line in file][::7]
    with open(path, "w", encoding="utf-8") as file:
        for i, prompt in enumerate(prompts):
            line = {"id": f"row-{i}", "prompt": (asked if i % 2 else "") + prompt, "max_tokens": 8 + 5 * i % 56}
            line.update(SAMPLING[i % len(SAMPLING)])
            if i % 9 == 4 and "use_beam_search" not in line:
                line.update(FORMS[i // 9 % len(FORMS)])
            file.write(json.dumps(line) + "\n")


def check_bytes(program, env, scratch, formats=FORMATS, device="cuda"):
    """(exit code, table, seconds): a row for each format and schedule. device: "cpu" tries the rows without a GPU."""
    begin = time.monotonic()
    prompts = os.path.join(scratch, "kinds.jsonl")
    write_rows(prompts)

    def records(number, flags):
        """(lines, or None; what the program said)"""
        out = os.path.join(scratch, f"kinds.{number}.jsonl")
        command = [program, "-m", "data/model", prompts, "-o", out, "--order", "input", "--no-metrics", "--progress", "none",
                   "--restart", "--metrics", "none", "--device", device, "--deterministic", "--adapter-dir", "data/adapters", *flags]
        try:
            done = subprocess.run(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=90)
        except subprocess.TimeoutExpired:
            return None, "no end within 90 s"
        if done.returncode not in (0, 2) or not os.path.exists(out):
            return None, f"exit code {done.returncode}\n{done.stdout[-1000:]}"
        with open(out, encoding="utf-8") as file:
            return file.read().splitlines(), ""

    cases = [(form, schedule) for form in formats for schedule in SCHEDULES]
    with ThreadPoolExecutor(NUM_PROCESSES) as pool:
        results = list(pool.map(lambda i: records(i, cases[i][0] + cases[i][1]), range(len(cases))))
    rows, code = [], 0
    for i, (form, schedule) in enumerate(cases):
        lines, said = results[i]
        expected = results[i - i % len(SCHEDULES)][0] or []
        if lines is not None:
            num_errors = sum(json.loads(line).get("error") is not None for line in lines)
            num_different = sum(a != b for a, b in zip(lines, expected)) + abs(len(lines) - len(expected))
            said = f"{len(lines)} records, {num_errors} errors, {num_different} differ"
        code = code or int(lines is None or num_different > 0 or num_errors > 0)
        rows.append(f"{' '.join(form[1::2]):14} {' '.join(schedule) or 'by default':64} {said}")
    return code, "\n".join(rows), time.monotonic() - begin


def check_answers(program, run, scratch):
    """(exit code, table, seconds): greedy texts on the GPU beside the CPU's; with --deterministic whatever the batch.
    run(command, limit_s): (exit code, output, seconds)."""
    lines = [json.loads(line) for line in open("data/eval/heldout.jsonl", encoding="utf-8")]

    def texts(*flags):
        path = os.path.join(scratch, "answers.jsonl")
        command = [program, "-m", "data/model", "data/eval/heldout.jsonl", "-o", path, "--order", "input",
                   "--no-metrics", "--progress", "none", "--restart", "--metrics", "none", *flags]
        code, output, _ = run(command, 60)
        if code != 0:
            raise RuntimeError(f"{' '.join(command)}: exit code {code}\n{output}")
        return [json.loads(line)["text"] for line in open(path, encoding="utf-8")]

    begin = time.monotonic()
    rows, code = [], 0
    try:
        cpu = texts("--device", "cpu")
        for name, flags in [("float32", ["--dtype", "float32"]), ("bfloat16", ["--dtype", "bfloat16"]),
                            ("bfloat16, deterministic", ["--deterministic"]),
                            ("bfloat16, deterministic, 7 sequences",
                             ["--deterministic", "--max-num-seqs", "7", "--max-num-batched-tokens", "50"])]:
            gpu = texts("--device", "cuda", *flags)
            right = sum(text == line["metadata"]["expected"] for text, line in zip(gpu, lines))
            same = sum(a == b for a, b in zip(gpu, cpu))
            rows.append(f"{name:40} {right} of {len(lines)} right, {same} equal to the CPU's")
            if name == "float32" and same != len(lines):
                code = 1
            if "deterministic" in name:
                if name.endswith("sequences") and gpu != deterministic:
                    rows.append("deterministic runs DIFFER")
                    code = 1
                deterministic = gpu
    except RuntimeError as e:
        rows.append(str(e))
        code = 1
    return code, "\n".join(rows), time.monotonic() - begin
