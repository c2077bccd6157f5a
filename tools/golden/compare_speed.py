#!/usr/bin/env python3
"""Encoding speed of Hugging Face tokenizers on one thread, on the pieces that tools/bench_tokenizer cuts.

    python tools/golden/compare_speed.py MODEL_DIR FILE…

Prints MB per second of processor time, best of three. Needs the packages of tools/golden/requirements.txt."""
import os
import sys
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["RAYON_NUM_THREADS"] = "1"

from compare_tokenizers import load_reference  # noqa: E402


def main():
    tokenizer, _ = load_reference(sys.argv[1])
    data = b"".join(open(path, "rb").read() for path in sys.argv[2:])
    pieces, begin = [], 0
    while begin < len(data):
        end = min(len(data), begin + 2000)
        while end < len(data) and data[end:end + 1] not in (b" ", b"\n"):
            end += 1
        pieces.append(data[begin:end].decode("utf-8", "replace"))
        begin = end
    best = 1e9
    for _ in range(3):
        start = time.process_time()
        num_ids = sum(len(e.ids) for e in tokenizer.encode_batch_fast(pieces, add_special_tokens=False))
        best = min(best, time.process_time() - start)
    print(f"encode {len(data) / best / 1e6:.2f} MB/s ({len(data)} bytes, {num_ids} ids)")


if __name__ == "__main__":
    main()
