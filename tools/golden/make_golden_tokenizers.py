#!/usr/bin/env python3
"""Writes data/fixtures/tokenizers: small tokenizers of every kind, and what Hugging Face tokenizers makes of awkward text.

    python tools/golden/make_golden_tokenizers.py

Folders hold a tokenizer.json or the files of an older format, trained here on a few sentences (training is not
repeatable: a file that is there stays), and golden.jsonl with one text per line (text, ids, ids without special tokens,
decoded with and without them) and random ids with what they decode to. normalizers.jsonl, pre_tokenizers.jsonl and
decoders.jsonl test one component each, long.jsonl has texts of 1 MiB, continuations.jsonl the text of ids that follow
others. Needs the packages of
tools/golden/requirements.txt."""
import json
import random

from tokenizers import Tokenizer

import golden_slow_tokenizers as slow
import golden_trained_tokenizers as trained
from golden_continuations import decode_after, decode_stream
from golden_tokenizer_texts import CHARSMAP, LLAMA3, O200K, ROOT, TEXTS

TRAINED = (trained.gpt2, trained.llama3, trained.o200k, trained.falcon, trained.llama2, trained.llama2_partial_bytes,
           trained.affixes, trained.unigram, trained.unigram_bytes, trained.bert, trained.word_level)
SLOW = (slow.spm_bpe, slow.spm_unigram, slow.spm_unigram_bytes, slow.tiktoken, slow.gpt2_files, slow.qwen2_files)


def write_jsonl(path, rows):
    path.write_text("".join(json.dumps(row, ensure_ascii=True) + "\n" for row in rows), encoding="utf-8")


def fnv1a(ids):
    value = 14695981039346656037
    for i in ids:
        value = (value ^ i) * 1099511628211 & 0xFFFFFFFFFFFFFFFF
    return value


def long_rows():
    """1 MiB of one thing: number of ids and their hash."""
    for name in ("llama3", "llama2", "unigram", "bert"):
        tokenizer = Tokenizer.from_file(str(ROOT / name / "tokenizer.json"))
        for unit in ("a", " ", "\n", "\u0301", "中", "the ", "ab1 "):
            text = unit * ((1 << 20) // len(unit.encode()))
            ids = tokenizer.encode(text, add_special_tokens=False).ids
            yield {"tokenizer": name, "unit": unit, "num_ids": len(ids), "fnv1a": f"{fnv1a(ids):016x}"}


def save(tokenizer, path, name):
    state = json.loads(tokenizer.to_str())
    if "merges" in state["model"] and name != "llama3":  # both spellings of merges occur
        if not any(" " in part for pair in state["model"]["merges"] for part in pair):
            state["model"]["merges"] = [" ".join(pair) for pair in state["model"]["merges"]]
    path.write_text(json.dumps(state, ensure_ascii=False, separators=(",", ":")) + "\n", encoding="utf-8")


def write_tokenizer(make, rng):
    folder = ROOT / make.__name__
    path = folder / "tokenizer.json"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        save(make(), path, make.__name__)
    write_golden(Tokenizer.from_file(str(path)), folder, rng)


def write_slow_format(make, rng):
    tokenizer, files = make()
    folder = ROOT / make.__name__
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    write_golden(tokenizer, folder, rng)


def write_golden(tokenizer, folder, rng):
    rows = []
    for text in TEXTS:
        ids = tokenizer.encode(text).ids
        rows.append({
            "text": text, "ids": ids, "ids_no_special": tokenizer.encode(text, add_special_tokens=False).ids, "decoded":
            tokenizer.decode(ids, skip_special_tokens=False), "decoded_skip": tokenizer.decode(ids,
                                                                                               skip_special_tokens=True)
        })
    for _ in range(60):
        ids = [rng.randrange(tokenizer.get_vocab_size()) for _ in range(rng.randrange(1, 25))]
        rows.append({
            "ids": ids, "decoded": tokenizer.decode(ids, skip_special_tokens=False), "decoded_skip":
            tokenizer.decode(ids, skip_special_tokens=True)
        })
    write_jsonl(folder / "golden.jsonl", rows)


def with_component(kind, spec):
    return Tokenizer.from_str(
        json.dumps({
            "version": "1.0", "added_tokens": [], "normalizer": None, "pre_tokenizer": None, "post_processor": None,
            "decoder": None, "model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"}, kind: spec
        }))


def normalizer_rows():

    def pattern(kind, text, content):
        return {"type": "Replace", "pattern": {kind: text}, "content": content}

    specs = [{"type": t} for t in ("NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents", "Nmt", "ByteLevel")]
    specs += [{"type": "Strip", "strip_left": l, "strip_right": r} for l in (True, False) for r in (True, False)]
    specs += [{"type": "Prepend", "prepend": "▁"},
              pattern("String", " ", "▁"),
              pattern("String", "the", ""),
              pattern("Regex", " {2,}", " "),
              pattern("Regex", "[aeiou]", "<>"),
              pattern("Regex", "\\p{M}", ""),
              pattern("Regex", "x*", "-"), {"type": "Precompiled", "precompiled_charsmap": CHARSMAP},
              {"type": "Sequence", "normalizers": [{"type": "NFKD"}, {"type": "StripAccents"}, {"type": "Lowercase"}]}]
    for clean in (True, False):
        for chinese in (True, False):
            for accents in (None, True, False):
                specs.append({
                    "type": "BertNormalizer", "clean_text": clean, "handle_chinese_chars": chinese, "strip_accents":
                    accents, "lowercase": accents is not False
                })
    for spec in specs:
        normalizer = with_component("normalizer", spec).normalizer
        yield {"spec": spec, "cases": [[t, normalizer.normalize_str(t)] for t in TEXTS if t]}


def pre_tokenizer_rows():
    behaviors = ["Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"]
    specs = [{"type": "ByteLevel", "add_prefix_space": p, "trim_offsets": True, "use_regex": r} for p in (True, False)
             for r in (True, False)]
    specs += [{"type": "Split", "pattern": p, "behavior": b, "invert": i} for b in behaviors for i in (True, False)
              for p in ({"Regex": "\\s+"}, {"String": "a"}, {"Regex": "\\w+|[^\\w\\s]+"})]
    specs += [{"type": "Split", "pattern": {"Regex": p}, "behavior": "Isolated", "invert": False}
              for p in (LLAMA3, O200K, "^.", "a|", "\\h+", "[a-z&&[^aeiou]]+", "[^(\\s|[.,!?…。，、।۔،])]+", "(?<=o)\\b",
                        "\\p{Han}+|\\p{^L}", "(?i)THE", "[[:alpha:]]+", "\\u0065|\\x{4eca}", "[^\\S\\n]+",
                        "\\d{1,3}(?=(?:\\d{3})*\\b)", "x{,2}y|o{2}", "(?m:e.)", "[\\]\\-a-c]", "\\p{L}++\\d*+")]
    specs += [{"type": "Punctuation", "behavior": b} for b in behaviors]
    specs += [{"type": "Digits", "individual_digits": d} for d in (True, False)]
    specs += [{"type": "Metaspace", "replacement": "▁", "prepend_scheme": s, "split": d}
              for s in ("first", "always", "never") for d in (True, False)]
    specs += [{"type": t} for t in ("Whitespace", "WhitespaceSplit", "BertPreTokenizer")]
    specs += [{"type": "CharDelimiterSplit", "delimiter": "o"}, {"type": "FixedLength", "length": 3}]
    specs += [{
        "type":
        "Sequence", "pretokenizers":
        [{"type": "Digits", "individual_digits":
          True}, {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
         {"type": "Punctuation", "behavior": "Isolated"}]
    }]
    for spec in specs:
        pre_tokenizer = with_component("pre_tokenizer", spec).pre_tokenizer
        yield {
            "spec": spec, "cases": [[t, [piece for piece, _ in pre_tokenizer.pre_tokenize_str(t)]] for t in TEXTS if t]
        }


def decoder_rows(rng):

    def replace(kind, text, content):
        return {"type": "Replace", "pattern": {kind: text}, "content": content}

    fuse, fallback, strip = {"type":
                             "Fuse"}, {"type":
                                       "ByteFallback"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}
    specs = [
        None, {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex":
               True}, fallback, fuse, strip, {"type": "Strip", "content": "a", "start": 2, "stop": 0},
        {"type": "Strip", "content": "b", "start": 0, "stop": 1}, {"type": "BPEDecoder", "suffix": "</w>"},
        {"type": "WordPiece", "prefix": "##", "cleanup": True}, {"type": "WordPiece", "prefix": "##", "cleanup": False},
        replace("String", "▁", " "),
        replace("String", "##", ""),
        replace("Regex", "[ab]+", "-")
    ]
    specs += [{"type": "Metaspace", "replacement": "▁", "prepend_scheme": s, "split": True}
              for s in ("first", "always", "never")]
    specs += [{
        "type": "Sequence", "decoders": d
    } for d in ([replace("String", "▁", " "), fallback, fuse, strip],
                [fallback, fuse, {"type": "Strip", "content": " ", "start": 0, "stop": 1}],
                [fuse, replace("Regex", "a\\s", "!")],
                [{"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}, strip])]
    pieces = [
        "a", "b", "ab", " ", "  ", "▁", "▁a", "▁the", "##s", "##ing", "o</w>", "</w>", "Ġa", "Ġ", "Ċ", "Ã", "©", "â",
        "ĤĤ", "<0xE4>", "<0xBD>", "<0xA0>", "<0xf0>", "<0x41>", "<0x4G>", "é", "日", ".", "!", "n't", "'s", " a ", "aa",
        "<s>", "do not", "a b", "�"
    ]
    for spec in specs:
        decoder = with_component("decoder", spec).decoder
        cases = []
        for _ in range(60):
            tokens = [rng.choice(pieces) for _ in range(rng.randrange(1, 12))]
            cases.append([tokens, decoder.decode(tokens) if decoder is not None else " ".join(tokens)])
        yield {"spec": spec, "cases": cases}


def continuation_rows(rng):
    for name in (make.__name__ for make in TRAINED):
        tokenizer = Tokenizer.from_file(str(ROOT / name / "tokenizer.json"))
        specials = sorted(tokenizer.get_added_tokens_decoder())
        num_ids = tokenizer.get_vocab_size()
        for n in range(36):
            ids = tokenizer.encode(rng.choice(TEXTS[12:])).ids if n % 3 else [rng.randrange(num_ids) for _ in range(30)]
            at = [0, 1, len(ids) - 1, rng.randrange(len(ids))][n % 4] if ids else 0
            context, rest = ids[:at], ids[at:at + 12]
            if specials and n % 5 == 0:
                context.append(rng.choice(specials))
            texts = []
            for skip in (False, True):
                texts.append(decode_after(tokenizer, context, rest, skip))
                assert decode_stream(tokenizer, context, rest, skip) in (None, texts[-1])
            yield {"tokenizer": name, "context": context, "ids": rest, "text": texts[0], "text_skip": texts[1]}


def main():
    rng = random.Random(7)
    for make in TRAINED:
        write_tokenizer(make, rng)
    for make in SLOW:
        write_slow_format(make, rng)
    write_jsonl(ROOT / "long.jsonl", long_rows())
    write_jsonl(ROOT / "normalizers.jsonl", normalizer_rows())
    write_jsonl(ROOT / "pre_tokenizers.jsonl", pre_tokenizer_rows())
    write_jsonl(ROOT / "decoders.jsonl", decoder_rows(rng))
    write_jsonl(ROOT / "continuations.jsonl", continuation_rows(random.Random(8)))


if __name__ == "__main__":
    main()
