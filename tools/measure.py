#!/usr/bin/env python3
"""Runs the CPU benches on this machine and writes what they print to data/measurements/, one file a machine:

    tools/measure.py                         # all of them, about 30 minutes; build the benches first: make bench
    tools/measure.py --only steps,host       # these anew; the file's other sections stay
    tools/measure.py --only build            # BUILD/times.jsonl as a table: make measure-build
    tools/measure.py --list                  # the sections and their commands

Have nothing else run on the machine. Run it from the top of the source tree. Exit code: 0 all benches ended well, 1 some
did not.
"""
import argparse
import datetime
import json
import os
import re
import subprocess
import sys

SHAPES = ["smollm2-135m", "qwen2.5-0.5b", "llama-3.2-1b"]
FORMATS = ["none", "int8", "int4", "w4a8"]


def commands():
    """(section, command) in the order in which they are run."""
    for op, more in (("linear", "--rows 1,8,64,512 --max-weight-mib 60"), ("paged_attention", "--context 512,544,4096")):
        for dtype in ("bfloat16", "int8", "int4", "w4a8") if op == "linear" else ("",):
            weights = f" --dtype {dtype}" if dtype else ""
            for shape in SHAPES[:2]:
                yield op, f"bench_kernels --shape {shape}{weights} --ops {op} {more} --repeats 7"
    yield "ops", ("bench_kernels --threads 1 --shape qwen2.5-0.5b --ops sample,add_rms_norm,silu_mul,rope_and_kv_write,embedding"
                  " --rows 1,64,512 --repeats 51")
    for shape in SHAPES:
        for quantization in FORMATS:
            repeats = 3 if shape == SHAPES[-1] else 5
            yield "steps", (f"bench_engine --shape {shape} --quantization {quantization} --batch 1,8,64 --context 512"
                            f" --repeats {repeats} --steps 8")
    yield "host", "bench_host"
    yield "tokenizer", "bench_tokenizer data/model"


def machine():
    """(file name, lines that say what it is)."""
    fields = {}
    for line in subprocess.run(["lscpu"], stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines():
        name, _, value = line.partition(":")
        fields[name.strip()] = value.strip()
    flags = fields.get("Flags", "").split()
    sets = [name for name, flag in (("AMX", "amx_tile"), ("AVX-512-BF16", "avx512_bf16"), ("AVX-512-VNNI", "avx512_vnni"),
                                    ("AVX-512", "avx512f"), ("AVX2", "avx2")) if flag in flags]
    name = fields.get("Model name", fields.get("Architecture", "processor"))
    family = f"family {fields.get('CPU family', '?')}, model {fields.get('Model', '?')}"
    cores = os.cpu_count()
    key = f"{name} {fields.get('CPU family', '')}-{fields.get('Model', '')} {cores} cores"
    file = re.sub(r"[^a-z0-9]+", "-", key.lower()).strip("-") + ".md"
    caches = ", ".join(f"{c} {fields[c + ' cache']}" for c in ("L1d", "L2", "L3") if c + " cache" in fields)
    return file, [f"# {name}", "", f"{family}; {cores} cores; {', '.join(sets)}; {caches}."]


def read_sections(path):
    """Name of a section: its text, in the file's order."""
    if not os.path.exists(path):
        return {}
    with open(path, encoding="utf-8") as file:
        parts = re.split(r"(?m)^## ", file.read())[1:]
    return {part.split("\n", 1)[0]: part.split("\n", 1)[1].strip("\n") for part in parts}


def write(path, heading, sections):
    order = list(dict.fromkeys(name for name, _ in commands()))
    with open(path + ".tmp", "w", encoding="utf-8") as file:
        file.write("\n".join(heading) + "\n\nWritten by tools/measure.py.\n")
        for name in order + [name for name in sections if name not in order]:
            if name in sections:
                file.write(f"\n## {name}\n\n{sections[name]}\n")
    os.replace(path + ".tmp", path)


def commit():
    state = subprocess.run(["git", "describe", "--always", "--dirty"], stdout=subprocess.PIPE, text=True)
    return state.stdout.strip() or "an unknown version"


def build_times(build):
    """Section "build": the last time of each phase that tools/timed.sh noted."""
    last = {}
    with open(os.path.join(build, "times.jsonl"), encoding="utf-8") as file:
        for line in file:
            phase = json.loads(line)
            if phase["exit_code"] == 0:
                last[phase["phase"]] = phase
    rows = [f"{datetime.date.today().isoformat()}, {commit()}. Seconds; compile and link: summed over steps side by side.", "",
            "| phase | wall | processor | steps | compile | link | load | compiler cache |", "|---|---|---|---|---|---|---|---|"]
    for name, phase in last.items():
        rows.append(f"| {name} | {phase['wall_s']:.0f} | {phase['cpu_s']:.0f} | {phase['steps']} | {phase['compile_s']:.0f} |"
                    f" {phase['link_s']:.0f} | {phase['load']:.0f} | {phase['compiler_cache'] or 'none'} |")
    return "\n".join(rows)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build", help="where the benches are: BUILD/tools")
    parser.add_argument("--dir", default="data/measurements")
    parser.add_argument("--only", default="", help="sections, comma-separated")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--limit-s", type=float, default=600, help="for each command")
    options = parser.parse_args()
    wanted = [name for name in options.only.split(",") if name]
    known = {name for name, _ in commands()} | {"build"}
    if set(wanted) - known:
        parser.error(f"no section is named {', '.join(sorted(set(wanted) - known))}; there are {', '.join(sorted(known))}")
    chosen = [(name, command) for name, command in commands() if not wanted or name in wanted]
    if options.list:
        for name, command in chosen:
            print(f"{name:16} {command}")
        return 0
    file, heading = machine()
    path = os.path.join(options.dir, file)
    os.makedirs(options.dir, exist_ok=True)
    sections = read_sections(path)
    if "build" in wanted:
        sections["build"] = build_times(options.build)
        write(path, heading, sections)
    fresh = {}
    failed = False
    for name, command in chosen:
        print(command, flush=True)
        words = command.split()
        words[0] = os.path.join(options.build, "tools", words[0])
        try:
            done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                  timeout=options.limit_s)
            code, output = done.returncode, done.stdout.rstrip()
        except (OSError, subprocess.TimeoutExpired) as e:
            code, output = 1, str(e)
        if code != 0:
            failed = True
            print(f"measure: exit code {code}: {output[-500:]}", file=sys.stderr)
            continue
        fresh.setdefault(name, f"{datetime.date.today().isoformat()}, {commit()}.")
        fresh[name] += f"\n\n    {command}\n\n```\n{output}\n```"
        sections[name] = fresh[name]
        write(path, heading, sections)
    print(path)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
