#!/usr/bin/env python3
"""Answers one file, or every file of a directory, by tasks of Ray: one llm-batch run a task.

  python3 shards.py --model M --shards 64 in.jsonl out.jsonl [-- FLAGS OF LLM-BATCH]
  python3 shards.py --model M in_folder out_folder [-- FLAGS OF LLM-BATCH]

Names of files are those of a file system that all nodes share.
"""
import argparse
import os
import subprocess
import sys

import ray


class Stopped(Exception):
    """The run ended early; the same command continues it."""


def run(command):
    code = subprocess.run(command, check=False).returncode
    if code < 0 or code == 9 or code > 128:  # killed, a device that failed, asked to end
        raise Stopped(f"exit code {code}: {' '.join(command)}")
    if code not in (0, 3):  # 3: some rows are error records
        sys.exit(f"exit code {code}: {' '.join(command)}")  # trying again would not help
    return code


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--shards", type=int, default=8)
    parser.add_argument("--cpus", type=float, default=1, help="of a task")
    parser.add_argument("--gpus", type=float, default=0, help="of a task")
    parser.add_argument("--program", default="llm-batch")
    parser.add_argument("input")
    parser.add_argument("output")
    parser.add_argument("flags", nargs="*", help="behind --, for llm-batch")
    o = parser.parse_args()
    base = [o.program, "-m", o.model, "--progress", "none", *o.flags]
    task = ray.remote(num_cpus=o.cpus, num_gpus=o.gpus, max_retries=20, retry_exceptions=[Stopped])(run)
    if os.path.isdir(o.input):  # a task a file; Ray Data would cut files into rows and lose where they stood
        os.makedirs(o.output, exist_ok=True)
        names = sorted(n for n in os.listdir(o.input) if os.path.isfile(os.path.join(o.input, n)))
        ray.get([task.remote([*base, os.path.join(o.input, n), "-o", os.path.join(o.output, n)]) for n in names])
        return 0
    shards = [f"{o.output}.shard{i}" for i in range(o.shards)]
    ray.get([task.remote([*base, o.input, "--shard", f"{i}/{o.shards}", "-o", shard]) for i, shard in enumerate(shards)])
    return subprocess.run([o.program, "merge", o.output, *shards, "--order", "input"], check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
