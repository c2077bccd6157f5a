"""The same in the files of older formats, and what transformers makes of these: sentencepiece, tiktoken, vocab and merges."""
import base64
import json
import struct

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from golden_tokenizer_texts import CHARSMAP, LLAMA3, ROOT


def varint(n):
    out = b""
    while n >= 0x80:
        out += bytes([n & 0x7F | 0x80])
        n >>= 7
    return out + bytes([n])


def proto(*fields):
    """A protocol buffer message: (number, int | float | bytes | str)."""
    out = b""
    for number, value in fields:
        if isinstance(value, float):
            out += varint(number << 3 | 5) + struct.pack("<f", value)
        elif isinstance(value, int):
            out += varint(number << 3) + varint(value & 0xFFFFFFFFFFFFFFFF)
        else:
            data = value.encode() if isinstance(value, str) else value
            out += varint(number << 3 | 2) + varint(len(data)) + data
    return out


def f32(x):
    return struct.unpack("<f", struct.pack("<f", x))[0]


def piece_kind(token):
    return {"<unk>": 2, "<s>": 3, "</s>": 3, "<pad>": 3, "▁▁▁": 4}.get(token, 6 if token.startswith("<0x") else 1)


def sentencepiece_file(pieces, trainer, normalizer):
    return b"".join(proto((1, proto((1, token), (2, score), (3, piece_kind(token)))))
                    for token, score in pieces) + proto((2, proto(*trainer)), (3, proto(*normalizer)))


def merges_of_scores(pieces):
    """All pairs that make up a piece, best piece first, as transformers derives them from a sentencepiece model."""
    ids = {token: i for i, (token, _) in enumerate(pieces) if piece_kind(token) in (1, 4)}
    merges = []
    for token, score in pieces:
        if token in ids:
            local = [(token[:k], token[k:], score) for k in range(1, len(token))
                     if token[:k] in ids and token[k:] in ids]
            merges += sorted(local, key=lambda m: (ids[m[0]], ids[m[1]]))
    return [m[:2] for m in sorted(merges, key=lambda m: (m[2], len(m[0]), len(m[1])), reverse=True)]


def spm_bpe():
    vocab = json.load(open(ROOT / "llama2" / "tokenizer.json", encoding="utf-8"))["model"]["vocab"]
    tokens = sorted(vocab, key=vocab.get) + ["▁▁", "▁▁▁"]
    pieces = [(token, 0.0 if piece_kind(token) != 1 else float(-i)) for i, token in enumerate(tokens)]
    tokenizer = Tokenizer(
        models.BPE(vocab={t: i
                          for i, t in enumerate(tokens)},
                   merges=merges_of_scores(pieces),
                   unk_token="<unk>",
                   fuse_unk=True,
                   byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "),
         decoders.ByteFallback(),
         decoders.Fuse(),
         decoders.Strip(" ", 1, 0)])
    tokenizer.add_tokens(
        [AddedToken(t, normalized=False, special=piece_kind(t) != 4) for t in ("<unk>", "<s>", "</s>", "▁▁▁")])
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    data = sentencepiece_file(pieces, [(3, 2), (35, 1), (40, 0), (41, 1), (42, 2)], [(1, "identity"), (3, 1), (4, 0)])
    return tokenizer, {"tokenizer.model": data}


def spm_unigram():
    state = json.load(open(ROOT / "unigram" / "tokenizer.json", encoding="utf-8"))
    pieces = [(token, f32(score)) for token, score in state["model"]["vocab"]]
    state["model"]["vocab"] = pieces
    def replace(pattern, content):
        return {"type": "Replace", "pattern": {"Regex": pattern}, "content": content}

    # sentencepiece's rules: extra white space is spaces alone, and at the end also ▁.
    state["normalizer"] = {
        "type":
        "Sequence", "normalizers": [{"type": "Precompiled", "precompiled_charsmap": CHARSMAP},
                                    replace("\\A +", ""),
                                    replace("[ ▁]+\\z", ""),
                                    replace(" {2,}", " "), {"type": "Prepend", "prepend": "▁"},
                                    replace(" ", "▁")]
    }
    state["pre_tokenizer"] = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "never"}
    state["decoder"] = {**state["pre_tokenizer"], "prepend_scheme": "always"}
    state["added_tokens"] = [t for t in state["added_tokens"] if t["content"] in ("<pad>", "</s>", "<unk>")]
    data = sentencepiece_file(pieces, [(3, 1), (40, 2), (41, -1), (42, 1), (43, 0)], [(2, base64.b64decode(CHARSMAP))])
    return Tokenizer.from_str(
        json.dumps(state)), {"tokenizer.model": data, "tokenizer_config.json": b'{"tokenizer_class": "T5Tokenizer"}\n'}


def spm_unigram_bytes():
    state = json.load(open(ROOT / "unigram_bytes" / "tokenizer.json", encoding="utf-8"))
    pieces = [(token, f32(score)) for token, score in state["model"]["vocab"]]
    state["model"]["vocab"] = pieces
    state["normalizer"] = {
        "type":
        "Sequence", "normalizers": [{"type": "Precompiled", "precompiled_charsmap":
                                     CHARSMAP}, {"type": "Prepend", "prepend": "▁"},
                                    {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]
    }
    state["pre_tokenizer"] = None
    state["decoder"]["decoders"].append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    data = sentencepiece_file(pieces, [(3, 1), (35, 1), (40, 2), (41, -1), (42, 1), (43, 0)],
                              [(2, base64.b64decode(CHARSMAP)), (4, 0)])
    return Tokenizer.from_str(json.dumps(state)), {"tokenizer.model": data}


def tiktoken():
    model = json.load(open(ROOT / "llama3" / "tokenizer.json", encoding="utf-8"))["model"]
    byte_of = {c: b for b, c in byte_chars().items()}
    ranks = {bytes(byte_of[c] for c in token): i for token, i in model["vocab"].items()}
    merges = [(a, b) for token in sorted(ranks, key=ranks.get)
              for a, b in sorted(((token[:k], token[k:])
                                  for k in range(1, len(token)) if token[:k] in ranks and token[k:] in ranks),
                                 key=lambda m: (ranks[m[0]], ranks[m[1]]))]
    text_of = {token: "".join(byte_chars()[b] for b in token) for token in ranks}
    tokenizer = Tokenizer(
        models.BPE(vocab=model["vocab"], merges=[(text_of[a], text_of[b]) for a, b in merges], ignore_merges=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(LLAMA3), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    ])
    tokenizer.decoder = decoders.ByteLevel()
    size = len(ranks)
    tokenizer.add_special_tokens([f"<|reserved_token_{size}|>", "<s>", f"<|reserved_token_{size + 2}|>", "</s>"])
    config = {
        "added_tokens_decoder": {
            str(size + 1): {"content": "<s>", "special": True, "normalized": False},
            str(size + 3): {"content": "</s>", "special": True, "normalized": False}
        }
    }
    lines = "".join(f"{base64.b64encode(token).decode()} {ranks[token]}\n" for token in sorted(ranks, key=ranks.get))
    return tokenizer, {"tokenizer.model": lines.encode(), "tokenizer_config.json": json.dumps(config).encode() + b"\n"}


def byte_chars():
    """GPT-2's character for each byte."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in printable]
    return {**{b: chr(b) for b in printable}, **{b: chr(256 + i) for i, b in enumerate(others)}}


def vocab_and_merges(source):
    model = json.load(open(ROOT / source / "tokenizer.json", encoding="utf-8"))["model"]
    merges = [m.split(" ") if isinstance(m, str) else m for m in model["merges"]]
    files = {
        "vocab.json": json.dumps(model["vocab"]).encode(), "merges.txt":
        ("#version: 0.2\n" + "".join(" ".join(m) + "\n" for m in merges)).encode()
    }
    return Tokenizer(models.BPE(vocab=model["vocab"], merges=[tuple(m) for m in merges])), files, len(model["vocab"])


def gpt2_files():
    tokenizer, files, _ = vocab_and_merges("gpt2")
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.decoder = decoders.ByteLevel()
    files["tokenizer_config.json"] = b'{"tokenizer_class": "GPT2Tokenizer", "add_prefix_space": true}\n'
    return tokenizer, files


def qwen2_files():
    tokenizer, files, size = vocab_and_merges("llama3")
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(LLAMA3.replace("{1,3}", "")), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    ])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<s>", "</s>"])
    tokenizer.add_tokens([AddedToken("<mask>", lstrip=True, normalized=False)])
    flags = {"lstrip": False, "rstrip": False, "single_word": False, "normalized": False}
    files["tokenizer_config.json"] = json.dumps({
        "tokenizer_class": "Qwen2Tokenizer", "added_tokens_decoder": {
            str(size): {"content": "<s>", "special": True, **flags},
            str(size + 1): {"content": "</s>", "special": True, **flags},
            str(size + 2): {"content": "<mask>", "special": False, **flags, "lstrip": True}
        }, "eos_token": "</s>", "bos_token": None
    }).encode() + b"\n"
    return tokenizer, files
