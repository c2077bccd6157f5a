#!/usr/bin/env python3
"""Runs every device test of a bundle (tools/gpu_bundle.sh) under compute-sanitizer's tools, several tests at a time:

    tools/gpu_sanitize.py build-gpu/bundle [--tools memcheck,racecheck,initcheck] [--files sample,norm] [--seconds 900]
                          [--each 240] [--log FILE]

Prints a line for each test that failed or did not end, and a count for each tool. Exit code: 0 every test ended clean, 1 not,
77 no GPU.
"""
import argparse
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from xml.etree import ElementTree

from gpu_check import NO_GPU, why_no_gpu


def test_cases(program, env):
    listed = subprocess.run([program, "--list-test-cases", "--reporters=xml"], env=env, stdout=subprocess.PIPE, check=True)
    return [(case.get("filename"), case.get("name")) for case in ElementTree.fromstring(listed.stdout).iter("TestCase")]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", nargs="?", default="build-gpu/bundle")
    parser.add_argument("--tools", default="memcheck,racecheck,initcheck")
    parser.add_argument("--files", default="", help="only test files whose names contain one of these")
    parser.add_argument("--seconds", type=float, default=900, help="for everything")
    parser.add_argument("--each", type=float, default=240, help="for one test under one tool")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--log", help="file for what failing tests print")
    args = parser.parse_args()
    if reason := why_no_gpu():
        print(reason.replace("gpu_check", "gpu_sanitize"))
        return NO_GPU
    bundle, end = os.path.abspath(args.bundle), time.monotonic() + args.seconds
    libraries = [os.path.join(bundle, "lib"), os.environ.get("LD_LIBRARY_PATH", "")]
    env = dict(os.environ, LD_LIBRARY_PATH=":".join(p for p in libraries if p), LLMB_SOURCE_DIR=os.getcwd())
    program = os.path.join(bundle, "gpu_tests")
    chosen_files = args.files.split(",")
    cases = [case for case in test_cases(program, env) if any(part in os.path.basename(case[0]) for part in chosen_files)]

    def run(job):
        tool, (file, name) = job
        chosen = name.replace("\\", "\\\\").replace(",", "\\,")
        begin = time.monotonic()
        limit = min(args.each, end - begin)
        if limit < 2:
            return job, "not started", 0, ""
        command = ["compute-sanitizer", "--tool", tool, "--error-exitcode", "3", program, f"--source-file=*{os.path.basename(file)}",
                   f"--test-case={chosen}", "--no-skipped-summary"]
        # compute-sanitizer's child would go on by itself where only compute-sanitizer is ended.
        process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                   errors="replace", start_new_session=True)
        try:
            output, _ = process.communicate(timeout=limit)
            state = {0: "clean", 77: "skipped"}.get(process.returncode, f"exit code {process.returncode}")
            if process.returncode == 0 and "test cases: 1 | 1 passed" not in " ".join(output.split()):
                state = "no test ran"
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            output, _ = process.communicate()
            state = "no end"
        return job, state, time.monotonic() - begin, output

    with ThreadPoolExecutor(args.jobs) as pool:
        results = list(pool.map(run, [(tool, case) for tool in args.tools.split(",") for case in cases]))
    for (tool, (file, name)), state, seconds, output in results:
        if state in ("clean", "skipped"):
            continue
        print(f"{tool}: {os.path.basename(file)}: {name}: {state} after {seconds:.0f} s")
        if args.log and state != "not started":
            with open(args.log, "a", encoding="utf-8") as log:
                log.write(f"==== {tool}: {file}: {name}: {state}\n{output[-20000:]}\n")
    for tool in args.tools.split(","):
        of_tool = [state for (of, _), state, _, _ in results if of == tool]
        counts = {state: of_tool.count(state) for state in sorted(set(of_tool))}
        print(f"{tool}: {len(of_tool)} tests: " + ", ".join(f"{count} {state}" for state, count in counts.items()))
    return 0 if all(state in ("clean", "skipped") for _, state, _, _ in results) else 1


if __name__ == "__main__":
    sys.exit(main())
