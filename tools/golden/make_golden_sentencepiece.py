#!/usr/bin/env python3
"""Writes data/fixtures/tokenizers/sentencepiece: small tokenizer.model files trained here, and the ids that sentencepiece
itself gives for awkward white space.

    python tools/golden/make_golden_sentencepiece.py

Each folder's name says what its model is: the kind, then `extra` where it removes extra white space, `dummy` where texts
begin with a space that is not shown. Needs the packages of tools/golden/requirements.txt."""
import itertools
import json
import pathlib
import random
import tempfile

import sentencepiece

from golden_tokenizer_texts import CORPUS, ROOT, TEXTS

# Character map: white space of two kinds, a ligature, a rule for two characters beside one for the first of them.
RULES = {"\t": " ", "\u3000": " ", "\u00a0": " ", "ﬁ": "fi", "e\u0301": "é", "x": "ks", "xy": "z", "①": "(1)"}
ALPHABET = [" ", "  ", "\n", "\r\n", "\t", "\u00a0", "\u3000", "\u2028", "a", "b", "hello", "the", "é", "e\u0301", "中", "▁",
            "ﬁ", "x", "xy", "\x00", "😀", "①", "  \n "]


def texts(rng):
    yield from (text for text in TEXTS if "<" not in text and len(text) < 50)
    for _ in range(150):
        yield "".join(rng.choice(ALPHABET) for _ in range(rng.randrange(1, 9)))


def train(folder, kind, extra, dummy, scratch):
    def points(text):
        return " ".join(f"{ord(c):X}" for c in text)

    (scratch / "rules.tsv").write_text("".join(f"{points(a)}\t{points(b)}\n" for a, b in RULES.items()))
    (scratch / "corpus.txt").write_text("\n".join(CORPUS * 5))
    sentencepiece.SentencePieceTrainer.train(
        input=str(scratch / "corpus.txt"), model_prefix=str(folder / "tokenizer"), model_type=kind, vocab_size=420,
        byte_fallback=True, character_coverage=1.0, hard_vocab_limit=False, remove_extra_whitespaces=extra,
        add_dummy_prefix=dummy, normalization_rule_tsv=str(scratch / "rules.tsv"), minloglevel=2)
    (folder / "tokenizer.vocab").unlink()


def main():
    rng = random.Random(9)
    for kind, extra, dummy in itertools.product(("bpe", "unigram"), (True, False), (True, False)):
        folder = ROOT / "sentencepiece" / (kind + "_extra" * extra + "_dummy" * dummy)
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / "tokenizer.model").exists():  # training is not repeatable
            with tempfile.TemporaryDirectory() as scratch:
                train(folder, kind, extra, dummy, pathlib.Path(scratch))
        model = sentencepiece.SentencePieceProcessor(model_file=str(folder / "tokenizer.model"))
        rows = [{"text": text, "ids": model.encode(text)} for text in texts(rng)]
        (folder / "golden.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


if __name__ == "__main__":
    main()
