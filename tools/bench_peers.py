#!/usr/bin/env python3
"""Measures bench_engine against other programs, in turn on one machine, and prints the ratios.

Give it a build of each program, and one model file for each format that is to be compared, of the same shape:

    tools/bench_peers.py --shape smollm2-135m --gguf none=smollm2-bf16.gguf --gguf int8=smollm2-q8_0.gguf \\
        --llama-batched-bench 'llama.cpp=…/llama-batched-bench -fa on' \\
        --llama-batched-bench 'ik=…/llama-batched-bench -fa on -rtr -ctk q8_0 -ctv q8_0' --batch 1,8,64

--gguf names bench_engine's --quantization first, or "blocks": then ours runs the peers' file, too, with
--gguf-activations int8. --openvino and --ctranslate2 name models of these programs for a format in the same way (how to make
them: tools/time_python_peers.py, which runs them). Every call measures one format and batch size by one program; a round
is all of them in turn, programs innermost; the median over rounds counts. The machine's speed may drift from call to
call, so keep the ratios. Decode is the mean of --steps steps behind --context tokens (ours samples greedily, peers do
not sample); prefill is one prompt of --context tokens, with batch 1, its second run. Prompts are independent, or one
shared by all sequences with --shared (add -kvu to llama.cpp's options then, which copies the prompt otherwise). Run it
from the top of the source tree, with OMP_WAIT_POLICY=active, which makes peers built with GNU OpenMP faster.
"""
import argparse
import itertools
import pathlib
import re
import shlex
import statistics
import subprocess
import sys

OURS = "ours"
BLOCKS = "blocks"  # of the peers' own file, with activations rounded to int8 as theirs


def call(command, timeout):
    """The program's standard output and error."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=timeout, text=True)
    if done.returncode:
        sys.exit(f"{done.stdout}\nbench_peers: {shlex.join(command)} ended with {done.returncode}")
    return done.stdout


def our_command(args, quantization, gguf, batch):
    model = ["--shape", args.shape, "--quantization", quantization]
    if quantization == BLOCKS:
        model = ["--model", gguf, "--gguf-activations", "int8"]
    command = [args.bench_engine, *model, "--threads", args.threads]
    command += ["--batch", batch, "--context", args.context, "--steps", args.steps, "--repeats", args.repeats]
    return command + (["--shared-prompt"] if args.shared else [])


def peer_command(args, program, gguf, batch):
    cells = args.context + batch * args.steps if args.shared else batch * (args.context + args.steps)
    command = [*program, "-m", gguf, "-t", args.threads, "-npp", args.context, "-ntg", args.steps, "-c", cells]
    command += ["-npl", "1,1" if batch == 1 else batch]  # the first run touches memory for the first time
    return command + (["-pps"] if args.shared else [])


def python_command(args, engine, model, batch):
    command = [args.python, pathlib.Path(__file__).with_name("time_python_peers.py"), engine, model]
    return command + ["--batch", batch, "--context", args.context, "--steps", args.steps, "--threads", args.threads]


def our_rates(text):
    """Tokens/s of prefill and decode."""
    rate = {m[1]: float(m[2]) for m in re.finditer(r"^(prefill|decode) +\d+ +\d+ +([\d.]+)", text, re.M)}
    return rate["prefill"], rate["decode"]


def peer_rates(text):
    # | PP | TG | B | N_KV | T_PP s | S_PP t/s | T_TG s | S_TG t/s | …
    rows = re.findall(r"^\| *\d+ \|.*", text, re.M)
    if not rows:
        sys.exit(f"{text}\nbench_peers: no measurement in the output of a peer")
    columns = rows[-1].split("|")
    return float(columns[6]), float(columns[8])


def python_rates(text):
    found = re.search(r"^prefill ([\d.]+) decode ([\d.]+)", text, re.M)
    if not found:
        sys.exit(f"{text}\nbench_peers: no measurement in the output of a peer")
    return float(found[1]), float(found[2])


def programs(args, quantization, gguf, batch):
    """Of each program its name, its command and what reads its output."""
    yield OURS, our_command(args, quantization, gguf, batch), our_rates
    for name, command in args.llama_batched_bench:
        yield name, peer_command(args, shlex.split(command), gguf, batch), peer_rates
    for name, models in (("openvino", args.openvino), ("ctranslate2", args.ctranslate2)):
        if quantization in dict(models):
            yield name, python_command(args, name, dict(models)[quantization], batch), python_rates


def named(text):
    name, _, value = text.partition("=")
    if not value:
        raise argparse.ArgumentTypeError("expected NAME=VALUE")
    return name, value


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bench-engine", default="build/tools/bench_engine", help="ours")
    parser.add_argument("--llama-batched-bench", type=named, action="append", default=[], metavar="NAME=COMMAND",
                        help="a peer's program with its own options; may be repeated")
    parser.add_argument("--gguf", type=named, action="append", required=True, metavar="QUANTIZATION=FILE",
                        help="none=, int8=, int4=, w4a8= or blocks=, and the file that peers take for it; may be repeated")
    for program in ("openvino", "ctranslate2"):
        parser.add_argument(f"--{program}", type=named, action="append", default=[], metavar="QUANTIZATION=MODEL",
                            help="a model of this program beside --gguf's of the same name; may be repeated")
    parser.add_argument("--python", default=sys.executable, help="has the packages of these two")
    parser.add_argument("--shape", required=True, help="a shape of data/shapes")
    parser.add_argument("--batch", default="1,8,64", help="batch sizes of decode (%(default)s)")
    parser.add_argument("--context", type=int, default=512, help="tokens of a prompt (%(default)s)")
    parser.add_argument("--steps", type=int, default=32, help="decode steps (%(default)s)")
    parser.add_argument("--repeats", type=int, default=1, help="of our measurement in a call (%(default)s)")
    parser.add_argument("--threads", type=int, default=2, help="(%(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="(%(default)s)")
    parser.add_argument("--shared", action="store_true", help="one prompt for all sequences of a batch")
    parser.add_argument("--prefix", default="", help="a command to run every program with, such as 'taskset -c 0,1'")
    parser.add_argument("--timeout", type=float, default=900, help="seconds of a call (%(default)s)")
    args = parser.parse_args()

    if args.shared and (args.openvino or args.ctranslate2):
        parser.error("--shared is not measured with --openvino and --ctranslate2")
    batches = [int(b) for b in args.batch.split(",")]
    rates = {}  # (case, quantization, program) -> tokens/s of every round
    peers = {}  # names, in the order of columns
    for round_, (quantization, gguf), batch in itertools.product(range(args.rounds), args.gguf, batches):
        label = pathlib.Path(gguf).stem if quantization == BLOCKS else quantization
        for program, command, read in programs(args, quantization, gguf, batch):
            if program != OURS:
                peers[program] = None
            prefill, decode = read(call(shlex.split(args.prefix) + [str(word) for word in command], args.timeout))
            rates.setdefault((f"decode {batch}", label, program), []).append(decode)
            if batch == 1:
                rates.setdefault(("prefill", label, program), []).append(prefill)
            print(f"round {round_ + 1}, {label}, batch {batch}, {program}: {prefill:.1f}, {decode:.1f}",
                  file=sys.stderr, flush=True)

    prompts = "one prompt shared" if args.shared else "independent prompts"
    print(f"{args.shape}, context {args.context}, {prompts}, {args.threads} threads, "
          f"median tokens/s of {args.rounds} rounds\n")
    print("| case | weights | ours |" + "".join(f" {p} | ours / {p} |" for p in peers))
    print("|---|---|---|" + "---|---|" * len(peers))
    for case, quantization in dict.fromkeys((case, quantization) for case, quantization, _ in rates):
        ours = statistics.median(rates[case, quantization, OURS])
        row = f"| {case} | {quantization} | {ours:.1f} |"
        for peer in peers:
            theirs = rates.get((case, quantization, peer))
            row += f" {statistics.median(theirs):.1f} | {ours / statistics.median(theirs):.2f} |" if theirs else " | |"
        print(row)


if __name__ == "__main__":
    main()
