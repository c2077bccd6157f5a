#!/usr/bin/env python3
"""Compares the built `tokenize` tool with Hugging Face tokenizers on generated mixed text: ids, decoded text, and the
text of ids that follow others, as a completion follows its prompt.

    python tools/golden/compare_tokenizers.py --tool build/tools/tokenize --megabytes 8 ../shared/data/tokenizers/*

Needs the packages of tools/golden/requirements.txt. Prints one line per tokenizer and the first differences; exit code 1
where there are any."""
import argparse
import glob
import json
import os
import random
import subprocess
import sys
import time

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from golden_continuations import decode_after, decode_stream

QWEN2 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
         r"|\s*[\r\n]+|\s+(?!\S)|\s+")
SCRIPTS = [(0x20, 0x7E), (0xA0, 0x24F), (0x250, 0x2AF), (0x300, 0x36F), (0x370, 0x3FF), (0x400, 0x52F), (0x530, 0x58F),
           (0x590, 0x5FF), (0x600, 0x6FF), (0x900, 0x97F), (0x980, 0x9FF), (0xB80, 0xBFF), (0xE00, 0xE7F),
           (0xF00, 0xFFF), (0x10A0, 0x10FF), (0x1100, 0x11FF), (0x1200, 0x137F), (0x1E00, 0x1EFF), (0x1F00, 0x1FFF),
           (0x2000, 0x206F), (0x2070, 0x20CF), (0x2100, 0x23FF), (0x2460, 0x24FF), (0x2500, 0x27BF), (0x3000, 0x30FF),
           (0x3400, 0x4DB5), (0x4E00, 0x9FA5), (0xAC00, 0xD7A3), (0xF900, 0xFAFF), (0xFB00, 0xFDFF), (0xFE00, 0xFFFF),
           (0x10000, 0x103FF), (0x1D400, 0x1D7FF), (0x1F300, 0x1FAFF), (0x20000, 0x2A6D6), (0xE0000, 0xE01FF)]
EMOJI = ["👍", "👍🏽", "👨‍👩‍👧‍👦", "🏳️‍🌈", "🇩🇪", "1️⃣", "❤️", "☺", "🤷🏻‍♀️", "🫠", "‼️", "🧑🏿‍🚀"]
SPACES = [" ", "  ", "   ", "\n", "\n\n", "\r\n", "\t", "\t\t", " \n", "\n ", "\u00a0", "\u3000", "\u2009", "\u200b",
          "\u2028", "\u0085", "\v", "\f", "\u180e", "        ", "\ufeff"]
WORDS = ("the of and to in is that it was for on are as with they at be this have from don't we'll it's I'm you're he'd "
         "DON'T can't over-the-top e.g. U.S.A. naïve café Straße İstanbul ﬁne 12345 3.14159 1,000,000 0x1F v1.2.3 "
         "http://example.com/a?b=c#d user@example.org #include <vector> std::vector<int>{1,2}; def f(x): return x**2 "
         "_private __init__ camelCaseWord SHOUTING ... --- ___ *** ==> != <= && || ½ ²³ ٣٤٥ Ⅷ ①").split(" ")


def local_text():
    """Real text and code that every machine with Python has."""
    paths = sorted(glob.glob(os.path.join(os.path.dirname(os.__file__), "*.py")))
    return "".join(open(p, encoding="utf-8", errors="replace").read() for p in paths[:120])


def samples(rng, real, specials, total_bytes):
    made = 0
    while made < total_bytes:
        kind = rng.randrange(9)
        if kind <= 1:
            at = rng.randrange(len(real))
            text = real[at:at + rng.randrange(1, 4000)]
        elif kind == 2:
            low, high = rng.choice(SCRIPTS)
            text = "".join(chr(rng.randint(low, high)) if rng.random() < 0.85 else rng.choice(SPACES)
                           for _ in range(rng.randrange(1, 300)))
        elif kind == 3:
            text = "".join(rng.choice(rng.choice([WORDS, SPACES, EMOJI, WORDS])) + rng.choice(["", " "])
                           for _ in range(rng.randrange(1, 200)))
        elif kind == 4:
            text = bytes(rng.randrange(256) for _ in range(rng.randrange(1, 400))).decode("utf-8", "replace")
        elif kind == 5:
            unit = rng.choice(["a", "A", " ", "\n", "=", "ab", "é", "中", "😀", "\u0301", "0", "'", "aB1 ", "\r\n", "▁"])
            text = unit * rng.randrange(1, 600)
        elif kind == 6:
            text = "".join(rng.choice(SPACES) for _ in range(rng.randrange(1, 60)))
        elif kind == 7:
            text = "".join(chr(c) for c in (rng.randrange(0x110000) for _ in range(rng.randrange(1, 100)))
                           if not 0xD800 <= c < 0xE000)
        else:
            parts = [rng.choice(WORDS), rng.choice(SPACES), rng.choice(specials or ["x"]), rng.choice(EMOJI), "▁"]
            text = "".join(rng.choice(parts) for _ in range(rng.randrange(1, 40)))
        made += len(text.encode("utf-8"))
        yield text


def byte_level_bpe(vocab, merges, split=None, normalizer=None):
    pairs = [tuple(line.split(" ")) for line in open(merges, encoding="utf-8").read().split("\n")
             if line and not line.startswith("#version")]
    tokenizer = Tokenizer(models.BPE(vocab=json.load(open(vocab, encoding="utf-8")), merges=pairs))
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=split is None)
    tokenizer.pre_tokenizer = level if split is None else pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(split), "isolated"), level])
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def load_reference(path):
    """The reference tokenizer and whether its special tokens can be compared when decoding."""
    if os.path.exists(f"{path}/tokenizer.json"):
        spec = json.load(open(f"{path}/tokenizer.json", encoding="utf-8"))
        merges = spec["model"].get("merges", [])
        vocab = spec["model"]["vocab"]
        for i, merge in enumerate(merges):  # Hugging Face refuses a merge with several spaces; we find its one reading
            if isinstance(merge, str) and merge.count(" ") > 1:
                cuts = [(merge[:j], merge[j + 1:]) for j in range(1, len(merge) - 1) if merge[j] == " "]
                merges[i] = next(c for c in cuts if c[0] in vocab and c[1] in vocab and c[0] + c[1] in vocab)
        if any(not isinstance(m, str) for m in merges):
            spec["model"]["merges"] = [m.split(" ") if isinstance(m, str) else list(m) for m in merges]
        tokenizer = Tokenizer.from_str(json.dumps(spec))
        # tokenizers 0.23 decodes a token with normalized=true as its normalised text, and does not skip it.
        return tokenizer, not any(t["normalized"] for t in spec["added_tokens"])
    if os.path.exists(f"{path}/encoder.json"):
        tokenizer = byte_level_bpe(f"{path}/encoder.json", f"{path}/vocab.bpe")
        tokenizer.add_special_tokens(["<|endoftext|>"])
        return tokenizer, True
    tokenizer = byte_level_bpe(f"{path}/vocab.json", f"{path}/merges.txt", QWEN2, normalizers.NFC())
    config = json.load(open(f"{path}/tokenizer_config.json", encoding="utf-8"))
    for _, token in sorted(config["added_tokens_decoder"].items(), key=lambda item: int(item[0])):
        tokenizer.add_tokens([AddedToken(**token)])
    return tokenizer, True


def run_tool(arguments, lines):
    started = time.time()
    result = subprocess.run(arguments, input="".join(json.dumps(line) + "\n" for line in lines), capture_output=True, text=True)
    if result.returncode != 0:
        sys.exit(f"{' '.join(arguments)}: {result.stderr}")
    return [json.loads(line) for line in result.stdout.split("\n")[:-1]], time.time() - started


def splits(rng, sequences, specials):
    """(context, ids): nothing, one token, special tokens or any part of a sequence in front."""
    for sequence in sequences:
        if not sequence:
            continue
        at = rng.choice([0, 1, len(sequence) - 1, rng.randrange(len(sequence)), rng.randrange(len(sequence))])
        context = sequence[max(0, at - 400):at]
        kind = rng.randrange(6)
        if specials and kind == 0:
            context = context + [rng.choice(specials)]
        elif specials and kind == 1:
            context = [rng.choice(specials)]
        yield context, sequence[at:at + 60]


def compare_continuations(tool, path, tokenizer, pairs, skip):
    """How many differ from decoding as a whole, and how many of those that DecodeStream can do from that."""
    lines = [{"context": context, "ids": ids} for context, ids in pairs]
    ours, _ = run_tool([tool, path, "--decode"] + (["--skip-special"] if skip else []), lines)
    bad, bad_stream, streamed = 0, 0, 0
    for (context, ids), text in zip(pairs, ours):
        want, stream = decode_after(tokenizer, context, ids, skip), decode_stream(tokenizer, context, ids, skip)
        bad += text != want
        streamed += stream is not None
        bad_stream += stream is not None and text != stream
        if (text != want or stream not in (None, text)) and bad + bad_stream <= 5:
            print(f"  after {context[-8:]} {ids[:12]}…: ours {text[:60]!r}, decode {want[:60]!r}, "
                  f"DecodeStream {stream and stream[:60]!r}")
    print(f"  {len(pairs)} continuations: {bad} differ; {streamed} by DecodeStream: {bad_stream} differ", flush=True)
    return bad == 0 and bad_stream == 0


def compare(tool, path, megabytes, seed, decodes):
    tokenizer, compare_specials = load_reference(path)
    rng = random.Random(seed)
    specials = [t.content for t in tokenizer.get_added_tokens_decoder().values()][:40]
    texts = list(samples(rng, local_text(), specials, int(megabytes * 1e6)))
    num_bytes = sum(len(t.encode("utf-8")) for t in texts)
    expected = [e.ids for at in range(0, len(texts), 1000) for e in tokenizer.encode_batch_fast(texts[at:at + 1000])]
    ids, _ = run_tool([tool, path], texts)
    differences = [i for i in range(len(texts)) if ids[i] != expected[i]]
    for i in differences[:5]:
        at = next((k for k, (a, b) in enumerate(zip(ids[i], expected[i])) if a != b), min(len(ids[i]), len(expected[i])))
        window = slice(max(0, at - 3), at + 5)
        print(f"  text {i}: at token {at}: ours {ids[i][window]}, expected {expected[i][window]} "
              f"{[tokenizer.id_to_token(t) for t in expected[i][window]]!r}")
    num_ids = tokenizer.get_vocab_size()
    sequences = [] if not decodes else expected + [[rng.randrange(num_ids) for _ in range(rng.randrange(40))] for _ in range(20000)]
    if not compare_specials:
        special = {i for i, t in tokenizer.get_added_tokens_decoder().items()}
        sequences = [[i for i in s if i not in special] for s in sequences]
    bad_decodes = 0
    for skip in (False, True) if decodes else ():
        decoded, _ = run_tool([tool, path, "--decode"] + (["--skip-special"] if skip else []), sequences)
        for sequence, text in zip(sequences, decoded):
            want = tokenizer.decode(sequence, skip_special_tokens=skip)
            if text != want:
                bad_decodes += 1
                if bad_decodes <= 5:
                    print(f"  decode {sequence[:12]}…: ours {text[:80]!r}, expected {want[:80]!r}")
    print(f"{os.path.basename(path.rstrip('/'))}: {num_bytes / 1e6:.1f} MB in {len(texts)} texts, "
          f"{sum(map(len, expected))} ids: {len(differences)} texts differ; "
          f"{2 * len(sequences)} decodes: {bad_decodes} differ", flush=True)
    is_equal = not differences and not bad_decodes
    specials = [i for i in tokenizer.get_added_tokens_decoder()] if compare_specials else []
    for skip in (False, True) if decodes else ():
        is_equal &= compare_continuations(tool, path, tokenizer, list(splits(rng, sequences, specials)), skip)
    return is_equal


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tool", required=True)
    parser.add_argument("--megabytes", type=float, default=4)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--no-decode", action="store_true", help="compare ids only")
    parser.add_argument("paths", nargs="+")
    args = parser.parse_args()
    results = [compare(args.tool, path, args.megabytes, args.seed, not args.no_decode) for path in args.paths]
    sys.exit(0 if all(results) else 1)


if __name__ == "__main__":
    main()
