#!/usr/bin/env python3
"""Writes data/fixtures/tokenizers: small tokenizers of every kind, and what Hugging Face tokenizers makes of awkward text.

    python tools/golden/make_golden_tokenizers.py

Folders hold a tokenizer.json or the files of an older format, trained here on a few sentences (training is not repeatable: a file that is there stays), and golden.jsonl with one text per line (text, ids, ids
without special tokens, decoded with and without them) and random ids with what they decode to. normalizers.jsonl,
pre_tokenizers.jsonl and decoders.jsonl test one component each, long.jsonl has texts of 1 MiB. Needs the packages of tools/golden/requirements.txt."""
import base64
import json
import pathlib
import random
import struct

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

ROOT = pathlib.Path(__file__).resolve().parents[2] / "data" / "fixtures" / "tokenizers"
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
          r"|\s*[\r\n]+|\s+(?!\S)|\s+")
O200K = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
         r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
         r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
CORPUS = [
    "The quick brown fox jumps over the lazy dog, and the dog does not mind.",
    "She sells sea shells by the sea shore; the shells she sells are sea shells.",
    "for (int i = 0; i < 10; ++i) { sum += values[i]; }  // adds the values",
    "In 2024 there were 366 days, in 2023 there were 365 days.",
    "Привет, как дела? Всё хорошо, спасибо. До свидания!",
    "Der Fuß, die Füße, das Mädchen und der Käse: schöne Grüße aus Köln.",
    "今日は天気がいいですね。明日も天気がいいでしょう。",
    "don't can't won't it's I'm you're we've he'd they'll",
    "hello hello world world hello world, hello again and again",
    "aaaaaaaa aaaaaaaaaaaaaaaa         ab abab abababab ==== ======== 中中中中 中中 \n\n\n\n\n\n \u0301\u0301\u0301\u0301",
]
TEXTS = [
    "", " ", "  ", "   ", "\n", "\n\n", "\r\n", "\t", " \n ", "a", " a", "a ", "  a  b   c  ", "Hello, world!", "hello world",
    "don't we'll they've I'm he'd DON'T", "12345 1 12 123 1,000.50", "x²+y³=½ ٣٤٥ Ⅷ ①", "naïve café Straße İstanbul ﬁne",
    "e\u0301 vs \u00e9, n\u0303, \u1e9b\u0323, \u212b, \uac00 \u1100\u1161", "今日は天気がいいですね。", "Привет, мир!", "שלום עולם", "नमस्ते",
    "สวัสดี", "👍🏽 👨‍👩‍👧‍👦 🇩🇪 1️⃣", "a\u200bb\u200cc\ufeffd\u00ad", "\x00\x01\x1f\x7f", "tab\there\u00a0nbsp\u3000wide\u2028line",
    "if (x) {\n\treturn y;\n}\n\n\n", "::->!=<=...---___***", "http://example.com/a?b=c&d=%20#e", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "the the the the", "▁a ▁ ▁▁b", "a▁b", "<s>", "</s> x", "a<s>b", " <s> ", "<s></s>", "x <mask> y", "x  <mask>  y", "<mask><mask>", "Day today Day",
    "DAY day", "[UNK] [CLS]", "<0x41>", "<0xE4>", "𝒳𝓎 𝟙", "Ωμέγα ΣΊΣΥΦΟΣ", "Ǆ ǅ ǆ", "\u0345\u0301a\u0323\u0307", "ﷺ", "\U0001e030\U0001fae8\U0002ebf0",
    "CamelCaseWord XMLHttpRequest iPhone", "ẞ ŉ ǰ", "日本語mixed英語text", "hello\u0300world", "...!?", "' s 't", "\n hello\n\n  world \n",
]


def tiny_charsmap(pairs):
    """A sentencepiece character map: a double-array trie in Darts-clone's layout, then NUL-terminated replacements."""
    block, offsets = b"", {}
    for key, value in pairs.items():
        offsets[key.encode()] = len(block)
        block += value.encode() + b"\0"
    units, used = {0: 0}, {0}

    def place(node, keys, depth):
        labels = sorted({k[depth] if len(k) > depth else 0 for k in keys})
        base = 1
        while any((base ^ label) in used or (base ^ label) == 0 for label in labels) or base in used:
            base += 1
        units[node] |= (base ^ node) << 10
        used.update(base ^ label for label in labels)
        for label in labels:
            child = base ^ label
            here = [k for k in keys if (k[depth] if len(k) > depth else 0) == label]
            if label == 0:
                units[node] |= 1 << 8
                units[child] = offsets[here[0]] | 1 << 31
            else:
                units[child] = label
                place(child, here, depth + 1)

    place(0, sorted(offsets), 0)
    size = max(units) + 256
    trie = b"".join(struct.pack("<I", units.get(i, 0)) for i in range(size))
    return base64.b64encode(struct.pack("<I", len(trie)) + trie + block).decode()


CHARSMAP = tiny_charsmap({"ﬁ": "fi", "Å": "Å", "e\u0301": "é", "\u00a0": " ", "\u200b": "", "½": "1⁄2", "２": "2", "\u0301": "´"})


def special(content, **flags):
    return AddedToken(content, special=True, **{"normalized": False, **flags})


def byte_level_bpe(pre_tokenizer, size=420, **options):
    tokenizer = Tokenizer(models.BPE(**options))
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(CORPUS, trainers.BpeTrainer(
        vocab_size=size, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    return tokenizer


def gpt2():
    tokenizer = byte_level_bpe(pre_tokenizers.ByteLevel(add_prefix_space=True))
    tokenizer.add_tokens([special("<s>"), special("</s>", rstrip=True), special("<mask>", lstrip=True),
                          AddedToken("Day", single_word=True, normalized=False), AddedToken("the", normalized=True)])
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", tokenizer.token_to_id("</s>")), ("<s>", tokenizer.token_to_id("<s>")))
    return tokenizer


def llama3():
    tokenizer = byte_level_bpe(pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(LLAMA3), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]),
        ignore_merges=True)
    tokenizer.add_special_tokens(["<s>", "</s>"])
    tokenizer.post_processor = processors.Sequence([processors.ByteLevel(), processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", tokenizer.token_to_id("<s>"))])])
    return tokenizer


def o200k():
    return byte_level_bpe(pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(O200K), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]))


def falcon():
    """Steps after ByteLevel see its characters; not every byte has an entry."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Punctuation("contiguous"), pre_tokenizers.ByteLevel(add_prefix_space=False),
        pre_tokenizers.Digits(individual_digits=False), pre_tokenizers.Split(Regex("[0-9][0-9][0-9]"), "isolated")])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=300, special_tokens=["<unk>"], show_progress=False))
    return tokenizer


def llama2():
    """sentencepiece BPE: no pre-tokenizer, spaces as ▁, bytes for what has no entry."""
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    byte_tokens = [f"<0x{b:02X}>" for b in range(256)]
    trained.train_from_iterator(CORPUS[:5] + CORPUS[-1:], trainers.BpeTrainer(
        vocab_size=500, special_tokens=["<unk>", "<s>", "</s>"] + byte_tokens, show_progress=False))
    state = json.loads(trained.to_str())["model"]
    tokenizer = Tokenizer(models.BPE(vocab=state["vocab"], merges=[tuple(m) for m in state["merges"]], unk_token="<unk>",
                                     fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(),
                                           decoders.Strip(" ", 1, 0)])
    tokenizer.add_special_tokens([special("<unk>"), special("<s>"), special("</s>", rstrip=True)])
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return tokenizer


def llama2_partial_bytes():
    """Only some byte tokens: unknown characters, fused and not."""
    tokenizer = llama2()
    state = json.loads(tokenizer.to_str())
    vocab = {t: i for t, i in state["model"]["vocab"].items() if not t.startswith("<0xE") and not t.startswith("<0xF")}
    state["model"]["vocab"] = {t: i for i, t in enumerate(sorted(vocab, key=vocab.get))}
    state["model"]["fuse_unk"] = False
    state["pre_tokenizer"] = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": False}
    state["normalizer"] = None
    return Tokenizer.from_str(json.dumps(state))


def affixes():
    """BPE with continuing_subword_prefix and end_of_word_suffix, as older models have it."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", continuing_subword_prefix="##", end_of_word_suffix="</w>"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.decoder = decoders.BPEDecoder(suffix="</w>")
    tokenizer.train_from_iterator(CORPUS, trainers.BpeTrainer(
        vocab_size=350, special_tokens=["<unk>", "<s>"], continuing_subword_prefix="##", end_of_word_suffix="</w>", show_progress=False))
    return tokenizer


def unigram():
    trained = Tokenizer(models.Unigram())
    trained.pre_tokenizer = pre_tokenizers.Metaspace()
    trained.train_from_iterator(CORPUS * 20, trainers.UnigramTrainer(
        vocab_size=260, special_tokens=["<pad>", "</s>", "<unk>"], unk_token="<unk>", show_progress=False))
    state = json.loads(trained.to_str())
    state["normalizer"] = {"type": "Sequence", "normalizers": [
        {"type": "Precompiled", "precompiled_charsmap": CHARSMAP}, {"type": "Strip", "strip_left": False, "strip_right": True},
        {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": "▁"}]}
    state["pre_tokenizer"] = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "add_prefix_space": True}
    state["decoder"] = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "add_prefix_space": True}
    tokenizer = Tokenizer.from_str(json.dumps(state))
    tokenizer.add_special_tokens(["</s>", "<mask>"])
    tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", tokenizer.token_to_id("</s>"))])
    return tokenizer


def unigram_bytes():
    state = json.loads(unigram().to_str())
    model = state["model"]
    model["vocab"] = model["vocab"] + [[f"<0x{b:02X}>", 0.0] for b in range(256)]
    model["byte_fallback"] = True
    state["normalizer"] = {"type": "NFKC"}
    state["pre_tokenizer"] = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "never", "split": False}
    state["decoder"] = {"type": "Sequence", "decoders": [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"}]}
    state["post_processor"], state["added_tokens"] = None, state["added_tokens"][:3]
    return Tokenizer.from_str(json.dumps(state))


def bert():
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]", max_input_chars_per_word=20))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.train_from_iterator(CORPUS, trainers.WordPieceTrainer(
        vocab_size=300, special_tokens=["[PAD]", "[UNK]", "[CLS]", "[SEP]"], show_progress=False))
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return tokenizer


def word_level():
    tokenizer = Tokenizer(models.WordLevel(unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFD(), normalizers.StripAccents(), normalizers.Lowercase()])
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Punctuation()])
    tokenizer.train_from_iterator(CORPUS, trainers.WordLevelTrainer(vocab_size=120, special_tokens=["<unk>", "<s>"], show_progress=False))
    return tokenizer


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
    return b"".join(proto((1, proto((1, token), (2, score), (3, piece_kind(token))))) for token, score in pieces) + proto(
        (2, proto(*trainer)), (3, proto(*normalizer)))


def merges_of_scores(pieces):
    """All pairs that make up a piece, best piece first, as transformers derives them from a sentencepiece model."""
    ids = {token: i for i, (token, _) in enumerate(pieces) if piece_kind(token) in (1, 4)}
    merges = []
    for token, score in pieces:
        if token in ids:
            local = [(token[:k], token[k:], score) for k in range(1, len(token)) if token[:k] in ids and token[k:] in ids]
            merges += sorted(local, key=lambda m: (ids[m[0]], ids[m[1]]))
    return [m[:2] for m in sorted(merges, key=lambda m: (m[2], len(m[0]), len(m[1])), reverse=True)]


def spm_bpe():
    vocab = json.load(open(ROOT / "llama2" / "tokenizer.json", encoding="utf-8"))["model"]["vocab"]
    tokens = sorted(vocab, key=vocab.get) + ["▁▁", "▁▁▁"]
    pieces = [(token, 0.0 if piece_kind(token) != 1 else float(-i)) for i, token in enumerate(tokens)]
    tokenizer = Tokenizer(models.BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=merges_of_scores(pieces),
                                     unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(),
                                           decoders.Strip(" ", 1, 0)])
    tokenizer.add_tokens([AddedToken(t, normalized=False, special=piece_kind(t) != 4) for t in ("<unk>", "<s>", "</s>", "▁▁▁")])
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    data = sentencepiece_file(pieces, [(3, 2), (35, 1), (40, 0), (41, 1), (42, 2)], [(1, "identity"), (3, 1), (4, 0)])
    return tokenizer, {"tokenizer.model": data}


def spm_unigram():
    state = json.load(open(ROOT / "unigram" / "tokenizer.json", encoding="utf-8"))
    pieces = [(token, f32(score)) for token, score in state["model"]["vocab"]]
    state["model"]["vocab"] = pieces
    state["pre_tokenizer"] = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always"}
    state["added_tokens"] = [t for t in state["added_tokens"] if t["content"] in ("<pad>", "</s>", "<unk>")]
    data = sentencepiece_file(pieces, [(3, 1), (40, 2), (41, -1), (42, 1), (43, 0)], [(2, base64.b64decode(CHARSMAP))])
    return Tokenizer.from_str(json.dumps(state)), {"tokenizer.model": data, "tokenizer_config.json": b'{"tokenizer_class": "T5Tokenizer"}\n'}


def spm_unigram_bytes():
    state = json.load(open(ROOT / "unigram_bytes" / "tokenizer.json", encoding="utf-8"))
    pieces = [(token, f32(score)) for token, score in state["model"]["vocab"]]
    state["model"]["vocab"] = pieces
    state["normalizer"] = {"type": "Sequence", "normalizers": [
        {"type": "Precompiled", "precompiled_charsmap": CHARSMAP}, {"type": "Prepend", "prepend": "▁"},
        {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]}
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
              for a, b in sorted(((token[:k], token[k:]) for k in range(1, len(token)) if token[:k] in ranks and token[k:] in ranks),
                                 key=lambda m: (ranks[m[0]], ranks[m[1]]))]
    text_of = {token: "".join(byte_chars()[b] for b in token) for token in ranks}
    tokenizer = Tokenizer(models.BPE(vocab=model["vocab"], merges=[(text_of[a], text_of[b]) for a, b in merges], ignore_merges=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(LLAMA3), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    size = len(ranks)
    tokenizer.add_special_tokens([f"<|reserved_token_{size}|>", "<s>", f"<|reserved_token_{size + 2}|>", "</s>"])
    config = {"added_tokens_decoder": {str(size + 1): {"content": "<s>", "special": True, "normalized": False},
                                       str(size + 3): {"content": "</s>", "special": True, "normalized": False}}}
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
    files = {"vocab.json": json.dumps(model["vocab"]).encode(),
             "merges.txt": ("#version: 0.2\n" + "".join(" ".join(m) + "\n" for m in merges)).encode()}
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
        pre_tokenizers.Split(Regex(LLAMA3.replace("{1,3}", "")), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<s>", "</s>"])
    tokenizer.add_tokens([AddedToken("<mask>", lstrip=True, normalized=False)])
    flags = {"lstrip": False, "rstrip": False, "single_word": False, "normalized": False}
    files["tokenizer_config.json"] = json.dumps({"tokenizer_class": "Qwen2Tokenizer", "added_tokens_decoder": {
        str(size): {"content": "<s>", "special": True, **flags}, str(size + 1): {"content": "</s>", "special": True, **flags},
        str(size + 2): {"content": "<mask>", "special": False, **flags, "lstrip": True}}, "eos_token": "</s>", "bos_token": None}).encode() + b"\n"
    return tokenizer, files


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
        rows.append({"text": text, "ids": ids, "ids_no_special": tokenizer.encode(text, add_special_tokens=False).ids,
                     "decoded": tokenizer.decode(ids, skip_special_tokens=False),
                     "decoded_skip": tokenizer.decode(ids, skip_special_tokens=True)})
    for _ in range(60):
        ids = [rng.randrange(tokenizer.get_vocab_size()) for _ in range(rng.randrange(1, 25))]
        rows.append({"ids": ids, "decoded": tokenizer.decode(ids, skip_special_tokens=False),
                     "decoded_skip": tokenizer.decode(ids, skip_special_tokens=True)})
    write_jsonl(folder / "golden.jsonl", rows)


def with_component(kind, spec):
    return Tokenizer.from_str(json.dumps({
        "version": "1.0", "added_tokens": [], "normalizer": None, "pre_tokenizer": None, "post_processor": None, "decoder": None,
        "model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"}, kind: spec}))


def normalizer_rows():
    def pattern(kind, text, content):
        return {"type": "Replace", "pattern": {kind: text}, "content": content}

    specs = [{"type": t} for t in ("NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents", "Nmt", "ByteLevel")]
    specs += [{"type": "Strip", "strip_left": l, "strip_right": r} for l in (True, False) for r in (True, False)]
    specs += [{"type": "Prepend", "prepend": "▁"}, pattern("String", " ", "▁"), pattern("String", "the", ""),
              pattern("Regex", " {2,}", " "), pattern("Regex", "[aeiou]", "<>"), pattern("Regex", "\\p{M}", ""),
              pattern("Regex", "x*", "-"), {"type": "Precompiled", "precompiled_charsmap": CHARSMAP},
              {"type": "Sequence", "normalizers": [{"type": "NFKD"}, {"type": "StripAccents"}, {"type": "Lowercase"}]}]
    for clean in (True, False):
        for chinese in (True, False):
            for accents in (None, True, False):
                specs.append({"type": "BertNormalizer", "clean_text": clean, "handle_chinese_chars": chinese,
                              "strip_accents": accents, "lowercase": accents is not False})
    for spec in specs:
        normalizer = with_component("normalizer", spec).normalizer
        yield {"spec": spec, "cases": [[t, normalizer.normalize_str(t)] for t in TEXTS if t]}


def pre_tokenizer_rows():
    behaviors = ["Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"]
    specs = [{"type": "ByteLevel", "add_prefix_space": p, "trim_offsets": True, "use_regex": r} for p in (True, False) for r in (True, False)]
    specs += [{"type": "Split", "pattern": p, "behavior": b, "invert": i} for b in behaviors for i in (True, False)
              for p in ({"Regex": "\\s+"}, {"String": "a"}, {"Regex": "\\w+|[^\\w\\s]+"})]
    specs += [{"type": "Split", "pattern": {"Regex": p}, "behavior": "Isolated", "invert": False} for p in (
        LLAMA3, O200K, "^.", "a|", "\\h+", "[a-z&&[^aeiou]]+", "[^(\\s|[.,!?…。，、।۔،])]+", "(?<=o)\\b", "\\p{Han}+|\\p{^L}", "(?i)THE",
        "[[:alpha:]]+", "\\u0065|\\x{4eca}", "[^\\S\\n]+", "\\d{1,3}(?=(?:\\d{3})*\\b)", "x{,2}y|o{2}", "(?m:e.)", "[\\]\\-a-c]", "\\p{L}++\\d*+")]
    specs += [{"type": "Punctuation", "behavior": b} for b in behaviors]
    specs += [{"type": "Digits", "individual_digits": d} for d in (True, False)]
    specs += [{"type": "Metaspace", "replacement": "▁", "prepend_scheme": s, "split": d} for s in ("first", "always", "never") for d in (True, False)]
    specs += [{"type": t} for t in ("Whitespace", "WhitespaceSplit", "BertPreTokenizer")]
    specs += [{"type": "CharDelimiterSplit", "delimiter": "o"}, {"type": "FixedLength", "length": 3}]
    specs += [{"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True},
                                                     {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
                                                     {"type": "Punctuation", "behavior": "Isolated"}]}]
    for spec in specs:
        pre_tokenizer = with_component("pre_tokenizer", spec).pre_tokenizer
        yield {"spec": spec, "cases": [[t, [piece for piece, _ in pre_tokenizer.pre_tokenize_str(t)]] for t in TEXTS if t]}


def decoder_rows(rng):
    def replace(kind, text, content):
        return {"type": "Replace", "pattern": {kind: text}, "content": content}

    fuse, fallback, strip = {"type": "Fuse"}, {"type": "ByteFallback"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}
    specs = [None, {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}, fallback, fuse, strip,
             {"type": "Strip", "content": "a", "start": 2, "stop": 0}, {"type": "Strip", "content": "b", "start": 0, "stop": 1}, {"type": "BPEDecoder", "suffix": "</w>"},
             {"type": "WordPiece", "prefix": "##", "cleanup": True}, {"type": "WordPiece", "prefix": "##", "cleanup": False},
             replace("String", "▁", " "), replace("String", "##", ""), replace("Regex", "[ab]+", "-")]
    specs += [{"type": "Metaspace", "replacement": "▁", "prepend_scheme": s, "split": True} for s in ("first", "always", "never")]
    specs += [{"type": "Sequence", "decoders": d} for d in (
        [replace("String", "▁", " "), fallback, fuse, strip], [fallback, fuse, {"type": "Strip", "content": " ", "start": 0, "stop": 1}],
        [fuse, replace("Regex", "a\\s", "!")], [{"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}, strip])]
    pieces = ["a", "b", "ab", " ", "  ", "▁", "▁a", "▁the", "##s", "##ing", "o</w>", "</w>", "Ġa", "Ġ", "Ċ", "Ã", "©", "â", "ĤĤ", "<0xE4>", "<0xBD>",
              "<0xA0>", "<0xf0>", "<0x41>", "<0x4G>", "é", "日", ".", "!", "n't", "'s", " a ", "aa", "<s>", "do not", "a b", "�"]
    for spec in specs:
        decoder = with_component("decoder", spec).decoder
        cases = []
        for _ in range(60):
            tokens = [rng.choice(pieces) for _ in range(rng.randrange(1, 12))]
            cases.append([tokens, decoder.decode(tokens) if decoder is not None else " ".join(tokens)])
        yield {"spec": spec, "cases": cases}


def main():
    rng = random.Random(7)
    for make in (gpt2, llama3, o200k, falcon, llama2, llama2_partial_bytes, affixes, unigram, unigram_bytes, bert, word_level):
        write_tokenizer(make, rng)
    for make in (spm_bpe, spm_unigram, spm_unigram_bytes, tiktoken, gpt2_files, qwen2_files):
        write_slow_format(make, rng)
    write_jsonl(ROOT / "long.jsonl", long_rows())
    write_jsonl(ROOT / "normalizers.jsonl", normalizer_rows())
    write_jsonl(ROOT / "pre_tokenizers.jsonl", pre_tokenizer_rows())
    write_jsonl(ROOT / "decoders.jsonl", decoder_rows(rng))


if __name__ == "__main__":
    main()
