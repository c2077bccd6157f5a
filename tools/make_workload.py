#!/usr/bin/env python3
"""Writes a prompt file of random tokens with given lengths, for whole runs with --load-format dummy.

    tools/make_workload.py --requests 256 --input 100-1024 --output 100-1024 --seed 0 --vocab 151936 > prompts.jsonl

Lengths are uniform over their range, or one number. No request ends early. The same arguments give the same file.
"""
import argparse
import json
import random


def length_range(text):
    low, _, high = text.partition("-")
    low, high = int(low), int(high or low)
    if not 1 <= low <= high:
        raise argparse.ArgumentTypeError(f"{text!r} is not N or N-M with 1 <= N <= M")
    return low, high


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, required=True)
    parser.add_argument("--input", type=length_range, required=True, metavar="N[-M]", help="prompt tokens")
    parser.add_argument("--output", type=length_range, required=True, metavar="N[-M]", help="output tokens")
    parser.add_argument("--vocab", type=int, required=True, help="token ids are below this")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    rng = random.Random(args.seed)
    for i in range(args.requests):
        prompt = [rng.randrange(args.vocab) for _ in range(rng.randint(*args.input))]
        line = {"id": str(i), "prompt_token_ids": prompt, "max_tokens": rng.randint(*args.output), "ignore_eos": True,
                "temperature": 0}
        print(json.dumps(line, separators=(",", ":")))


if __name__ == "__main__":
    main()
