#!/usr/bin/env python3
"""llguidance and xgrammar over MaskBench's files, for figures beside those of bench_grammar --maskbench on the same.

    pip install llguidance xgrammar triton
    tools/compare_forms.py MASKBENCH_DIR TOKENIZER.json [--engines llguidance,xgrammar] [--every 8]

Instances are followed token by token as they are written, with their own order of members. A schema passes where it is
compiled, each valid instance is reached to its end, and no invalid one is. Times are processor time of one thread. Each
schema has a process of its own, which may take 20 s and 4 GiB.

2026-11-23, AMD EPYC family 25 model 17, 2 cores, much other work beside it; 159 files (each 64th but BFCL's and JME's),
Qwen2.5's vocabulary: llguidance 1.9.1 passed 135 and refused 24; masks mean 81, p99 1791, p99.9 3968 us.
bench_grammar on the same: 148 passed, 11 refused, 0 wrong; on an Intel Xeon family 6 model 207, 2 cores, with ten times as
much work as cores beside it: mean 13, p99 380, p99.9 835 us; there llguidance, on each fourth of these files: 31 of 40 passed,
9 refused; mean 172, p99 2536, p99.9 7634 us.
2026-11-26, AMD EPYC 7003, 2 cores, four times as much work as cores beside it, the same 159 files: llguidance 1.9.1
passed 135 and refused 24; masks mean 132, p99 2629, p99.9 4825 us; bench_grammar at the same time: 148 passed, 11
refused, 0 wrong; 23, 459, 1593. Six files, all passed by all: llguidance 1.9.1 96, 374, 953, compiled p50 8.8 ms;
xgrammar 0.2.8 30, 176, 427, 608 ms; bench_grammar 42, 859, 1418, 6.2 ms.
"""
import argparse
import glob
import json
import os
import resource
import time

SECONDS, BYTES = 20, 4 << 30


class Llguidance:
    def __init__(self, tokenizer_json):
        import llguidance
        import llguidance.numpy
        self.lib = llguidance
        self.tokenizer = llguidance.LLTokenizer(tokenizer_json)
        self.mask = llguidance.numpy.allocate_token_bitmask(1, self.tokenizer.vocab_size)

    def compile(self, schema):
        matcher = self.lib.LLMatcher(self.tokenizer, self.lib.LLMatcher.grammar_from_json_schema(schema))
        return None if matcher.is_error() else matcher

    def start(self, compiled):
        return compiled.deep_copy()

    def fill(self, matcher):
        self.lib.numpy.fill_next_token_bitmask(matcher, self.mask, 0)

    def accept(self, matcher, token):
        return matcher.try_consume_tokens([token]) == 1

    def is_complete(self, matcher):
        return matcher.is_accepting()


class Xgrammar:
    def __init__(self, tokenizer_json):
        import llguidance
        import xgrammar
        self.lib = xgrammar
        tokenizer = llguidance.LLTokenizer(tokenizer_json)
        words = [tokenizer.decode_bytes([token]) for token in range(tokenizer.vocab_size)]
        info = xgrammar.TokenizerInfo(words, xgrammar.VocabType.RAW, stop_token_ids=[tokenizer.eos_token])
        self.compiler = xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)
        self.mask = xgrammar.allocate_token_bitmask(1, info.vocab_size)

    def compile(self, schema):
        try:
            return self.compiler.compile_json_schema(schema, strict_mode=False)
        except Exception:  # of several kinds, as its versions have them
            return None

    def start(self, compiled):
        return self.lib.GrammarMatcher(compiled, terminate_without_stop_token=True)

    def fill(self, matcher):
        matcher.fill_next_token_bitmask(self.mask)

    def accept(self, matcher, token):
        return matcher.accept_token(token)

    def is_complete(self, matcher):
        return matcher.is_completed()


def run_file(engine, tokenize, path):
    with open(path, encoding="utf-8") as file:
        case = json.load(file)
    begin = time.thread_time()
    compiled = engine.compile(json.dumps(case["schema"]))
    result = {"compile_ms": (time.thread_time() - begin) * 1e3, "refused": compiled is None, "first_us": [], "us": []}
    if compiled is None:
        return result
    result["not_reached"] = result["accepted"] = 0
    for test in case.get("tests", []):
        matcher, is_reached = engine.start(compiled), True
        for i, token in enumerate(tokenize(json.dumps(test["data"], ensure_ascii=False))):
            begin = time.thread_time()
            engine.fill(matcher)
            result["first_us" if i == 0 else "us"].append((time.thread_time() - begin) * 1e6)
            is_reached = engine.accept(matcher, token)
            if not is_reached:
                break
        is_reached = is_reached and engine.is_complete(matcher)
        result["not_reached"] += test["valid"] and not is_reached
        result["accepted"] += not test["valid"] and is_reached
    return result


def run_apart(engine, tokenize, path):
    """None: it died, or took too long."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
        resource.setrlimit(resource.RLIMIT_DATA, (BYTES, BYTES))
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        with os.fdopen(writing, "w") as out:
            json.dump(run_file(engine, tokenize, path), out)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as file:
        text = file.read()
    os.waitpid(child, 0)
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return None


def at(values, share):
    values = sorted(values)
    return values[min(len(values) - 1, int(share * len(values)))] if values else 0


def report(name, results):
    done = [r for r in results if r and not r["refused"]]
    masks = [us for r in done for us in r["first_us"] + r["us"]]
    firsts = [us for r in done for us in r["first_us"]]
    compiled = [r["compile_ms"] for r in done]
    print(f"{name}: {len(results)} schemas: {sum(r['not_reached'] + r['accepted'] == 0 for r in done)} passed, "
          f"{sum(r is not None and r['refused'] for r in results)} refused, {results.count(None)} died or took more "
          f"than {SECONDS} s; {sum(r['not_reached'] for r in done)} valid instances not reached, "
          f"{sum(r['accepted'] for r in done)} invalid ones accepted")
    print(f"  compiled p50 {at(compiled, 0.5):.2f} p99 {at(compiled, 0.99):.2f} ms   first p99 {at(firsts, 0.99):.1f} us"
          f"   {len(masks)} masks: mean {sum(masks) / max(1, len(masks)):.1f}   p50 {at(masks, 0.5):.1f}   "
          f"p99 {at(masks, 0.99):.1f}   p99.9 {at(masks, 0.999):.1f}   most {at(masks, 1):.1f} us", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("maskbench", help="maskbench/data of guidance-ai/jsonschemabench")
    parser.add_argument("tokenizer", help="a tokenizer.json")
    parser.add_argument("--engines", default="llguidance,xgrammar")
    parser.add_argument("--every", type=int, default=1, help="take each so many-th file")
    args = parser.parse_args()
    paths = sorted(glob.glob(os.path.join(args.maskbench, "*.json")))[::args.every]
    with open(args.tokenizer, encoding="utf-8") as file:
        tokenizer_json = file.read()
    import llguidance
    tokenize = llguidance.LLTokenizer(tokenizer_json).tokenize_str
    for name in args.engines.split(","):
        engine = {"llguidance": Llguidance, "xgrammar": Xgrammar}[name](tokenizer_json)
        report(name, [run_apart(engine, tokenize, path) for path in paths])


if __name__ == "__main__":
    main()
