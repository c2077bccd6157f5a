#!/usr/bin/env python3
"""Compares llm-batch's log probabilities with those of Hugging Face transformers, on random weights of a published shape:

    tools/compare_transformers.py --program build/llm-batch --shape data/shapes/qwen3-0.6b --device cuda --dtype bfloat16

Both read the same checkpoint, which is made here (--keep DIR keeps it, for speeds side by side with
tools/bench_transformers.py --model DIR). The reference is transformers in float32; llm-batch passes where its worst
error is at most twice that of transformers in the same dtype, plus 1e-4. Needs torch and transformers. Exit code: 0 it
passes, 1 it does not, 77 they are not installed.
"""
import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile

NUM_LOGPROBS = 20


def make_checkpoint(args, directory, torch, transformers):
    """Norms are 1, the rest is normal with the deviation that config.json names; bfloat16 holds all of it exactly."""
    config = transformers.AutoConfig.from_pretrained(args.shape)
    torch.manual_seed(args.seed)
    torch.set_default_dtype(torch.bfloat16)
    with torch.device(args.device):
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    torch.set_default_dtype(torch.float32)
    model.save_pretrained(directory)
    shutil.copy(os.path.join(args.shape, "config.json"), directory)


def make_requests(args, vocab, path):
    rng = random.Random(args.seed)
    with open(path, "w", encoding="utf-8") as file:
        for i, length in enumerate(args.prompt_tokens):
            request = {"id": str(i), "prompt_token_ids": [rng.randrange(vocab) for _ in range(length)],
                       "max_tokens": args.output_tokens, "logprobs": NUM_LOGPROBS, "seed": i, "temperature": 1,
                       "ignore_eos": True, "return_token_ids": True}
            file.write(json.dumps(request) + "\n")


def run_program(args, directory, requests, out):
    command = [args.program, "-m", directory, "--tokenizer", "data/model", "--device", args.device, "--dtype", args.dtype,
               "--kv-cache-dtype", args.dtype,
               requests, "-o", out, "--restart", "--order", "input", "--metrics", "none", "--progress", "none",
               *args.flags.split()]
    done = subprocess.run(command)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}: exit code {done.returncode}")
    with open(out, encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def transformers_logprobs(directory, dtype, args, requests, answers, torch, transformers):
    """[request][output token][vocabulary], of the tokens that llm-batch drew."""
    model = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=dtype, attn_implementation="sdpa")
    model = model.to(args.device).eval()
    results = []
    with torch.inference_mode():
        for request, answer in zip(requests, answers):
            ids = torch.tensor([request["prompt_token_ids"] + answer["token_ids"]], device=args.device)
            logits = model(ids).logits[0, len(request["prompt_token_ids"]) - 1:-1].float()
            results.append(torch.log_softmax(logits.double(), dim=-1).cpu())
    return results


def worst_errors(reference, naive, answers):
    """Of llm-batch and of transformers in the same dtype, over the tokens that llm-batch names."""
    ours = theirs = 0.0
    for exact, rounded, answer in zip(reference, naive, answers):
        for position, entry in enumerate(answer["logprobs"]):
            for named in [entry, *entry["top_logprobs"]]:
                expected = exact[position, named["token_id"]].item()
                ours = max(ours, abs(named["logprob"] - expected))
                theirs = max(theirs, abs(rounded[position, named["token_id"]].item() - expected))
    return ours, theirs


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default="build/llm-batch")
    parser.add_argument("--shape", required=True, help="directory with a config.json")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--dtype", choices=["float32", "bfloat16", "float16"], default="bfloat16")
    parser.add_argument("--prompt-tokens", type=int, nargs="+", default=[1, 16, 17, 100, 513])
    parser.add_argument("--output-tokens", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", help="directory for the checkpoint")
    parser.add_argument("--flags", default="", help="more flags for llm-batch, in one string")
    args = parser.parse_args()
    try:
        import torch
        import transformers
    except ImportError as e:
        print(f"skipped: {e}")
        return 77
    with tempfile.TemporaryDirectory(prefix="compare-transformers-") as scratch:
        directory = args.keep or os.path.join(scratch, "model")
        os.makedirs(directory, exist_ok=True)
        make_checkpoint(args, directory, torch, transformers)
        path = os.path.join(scratch, "requests.jsonl")
        make_requests(args, transformers.AutoConfig.from_pretrained(args.shape).vocab_size, path)
        with open(path, encoding="utf-8") as file:
            requests = [json.loads(line) for line in file]
        answers = run_program(args, directory, path, os.path.join(scratch, "out.jsonl"))
        compared = [transformers_logprobs(directory, dtype, args, requests, answers, torch, transformers)
                    for dtype in (torch.float32, getattr(torch, args.dtype))]
    ours, theirs = worst_errors(*compared, answers)
    passes = ours <= 2 * theirs + 1e-4
    print(f"{args.shape}, {args.dtype}, {args.device}, transformers {transformers.__version__}: worst error of a log probability "
          f"{ours:.2e}, of transformers in {args.dtype} {theirs:.2e}: {'passes' if passes else 'FAILS'}")
    return 0 if passes else 1


if __name__ == "__main__":
    sys.exit(main())
