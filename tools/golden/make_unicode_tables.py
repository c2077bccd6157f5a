#!/usr/bin/env python3
"""Writes src/text/unicode_tables.cpp: the character properties that Hugging Face tokenizers really has.

    python tools/golden/make_unicode_tables.py > src/text/unicode_tables.cpp

Its parts follow different versions of Unicode (8 for punctuation and accents, 9 for normalisation, 16 and later for the
rest), none of them that of the system's PCRE2 and utf8proc. So every character is put through every part, and the answers
are written down. Needs the packages of tools/golden/requirements.txt and a Python whose unicodedata is version 14, the
version of PCRE2 10.42 (Python 3.11)."""
import sys
import unicodedata

from tokenizers import Regex, normalizers, pre_tokenizers
from tokenizers import __version__ as tokenizers_version

CHARS = [c for c in range(1, 0x110000) if not 0xD800 <= c < 0xE000]
CATEGORIES = ["Lu", "Ll", "Lt", "Lm", "Lo", "Mn", "Mc", "Me", "Nd", "Nl", "No", "Pc", "Pd", "Ps", "Pe", "Pi", "Pf", "Po",
              "Sm", "Sc", "Sk", "So", "Zs", "Zl", "Zp", "Cc", "Cf", "Co"]
SCRIPTS = ["Han", "Hiragana", "Katakana", "Latin", "Cyrillic", "Arabic"]


def ranges(chars):
    out = []
    for c in sorted(chars):
        if out and c == out[-1][1] + 1:
            out[-1][1] = c
        else:
            out.append([c, c])
    return out


def split_alone(pre_tokenizer):
    """Characters that do not stay in one piece with letters around them."""
    return {c for c in CHARS if len(pre_tokenizer.pre_tokenize_str("a" + chr(c) + "a")) != 1}


def dropped_by(normalizer):
    return {c for c in CHARS if normalizer.normalize_str("a" + chr(c)) == "a"}


def matched_by(pattern):
    kept = set()
    split = pre_tokenizers.Split(Regex(pattern), "removed")
    for i in range(0, len(CHARS), 5000):
        for piece, _ in split.pre_tokenize_str("".join(map(chr, CHARS[i:i + 5000]))):
            kept.update(map(ord, piece))
    return set(CHARS) - kept


def bert(**on):
    options = {"clean_text": False, "handle_chinese_chars": False, "strip_accents": False, "lowercase": False}
    return normalizers.BertNormalizer(**{**options, **on})


def print_table(name, comment, rows, row_text, per_line):
    print(f"// {comment}\nextern const {name} = {{")
    for i in range(0, len(rows), per_line):
        print("    " + " ".join(row_text(r) + "," for r in rows[i:i + per_line]))
    print("};\n")


def print_ranges(name, comment, chars):
    rows = ranges(chars)
    print_table(f"CharRange k{name}[{len(rows)}]", comment, rows, lambda r: f"{{{r[0]:#x}, {r[1]:#x}}}", 6)
    print(f"extern const size_t kNum{name} = {len(rows)};\n")


def main():
    if unicodedata.unidata_version != "14.0.0":
        sys.exit("this Python's unicodedata is not version 14")
    print(f"// Made by tools/golden/make_unicode_tables.py from tokenizers {tokenizers_version}. Sorted by character.\n")
    print('#include "text/unicode_tables.h"\n\nnamespace llmb {\n\n// clang-format off\n')
    print_ranges("Numeric", "What Digits splits at.", split_alone(pre_tokenizers.Digits(True)))
    print_ranges("Punctuation", "What Punctuation splits at.", split_alone(pre_tokenizers.Punctuation()))
    print_ranges("WordChars", "\\w of Whitespace and of single_word tokens.",
                 set(CHARS) - split_alone(pre_tokenizers.Whitespace()))
    print_ranges("Marks", "What StripAccents drops.", dropped_by(normalizers.StripAccents()))
    print_ranges("NonspacingMarks", "What BertNormalizer's strip_accents drops after NFD.",
                 {c for c in CHARS if bert(strip_accents=True).normalize_str("a" + chr(c)) == "a"})
    print_ranges("Control", "What BertNormalizer's clean_text drops, NUL and U+FFFD apart.",
                 dropped_by(bert(clean_text=True)) - {0xFFFD})

    lower = normalizers.Lowercase()
    newer = []
    for c in CHARS:
        text = lower.normalize_str(chr(c))
        if unicodedata.category(chr(c)) == "Cn" and text != chr(c):
            newer.append((c, ord(text)))
    print_table(f"CharPair kNewLowercase[{len(newer)}]", "Lower case of characters that came after Unicode 14.", newer,
                lambda r: f"{{{r[0]:#x}, {r[1]:#x}}}", 6)
    print(f"extern const size_t kNumNewLowercase = {len(newer)};\n")

    fixed = set()
    for form, normalizer in (("NFC", normalizers.NFC()), ("NFD", normalizers.NFD()), ("NFKC", normalizers.NFKC()),
                             ("NFKD", normalizers.NFKD())):
        for c in CHARS:
            theirs, ours = normalizer.normalize_str(chr(c)), unicodedata.normalize(form, chr(c))
            if theirs == chr(c) != ours:
                fixed.add(c)
                if form in ("NFC", "NFD"):  # nor do its parts compose
                    fixed.update(map(ord, ours))
    nfd, nfkd = normalizers.NFD(), normalizers.NFKD()
    assigned = set(CHARS) - matched_by(r"\p{Cn}")
    fixed |= {c for c in assigned if unicodedata.category(chr(c)) == "Cn" and nfkd.normalize_str(chr(c)) == chr(c)}
    for c in CHARS:  # U+0345 has the highest combining class: another mark moves before it
        if unicodedata.combining(chr(c)) not in (0, 240) and (
                nfd.normalize_str("a\u0345" + chr(c)) == "a\u0345" + chr(c)):
            fixed.add(c)
    print_ranges("NotNormalized", "Characters that every normalisation form leaves alone, as if they were unassigned.", fixed)

    rows = []
    for category in CATEGORIES:
        new = {c for c in matched_by(f"\\p{{{category}}}") if unicodedata.category(chr(c)) == "Cn"}
        rows += [(first, last, category) for first, last in ranges(new)]
    rows.sort()
    print_table(f"CategoryRange kNewCharacters[{len(rows)}]", "General categories of characters that came after Unicode 14.",
                rows, lambda r: f'{{{r[0]:#x}, {r[1]:#x}, "{r[2]}"}}', 5)
    print(f"extern const size_t kNumNewCharacters = {len(rows)};\n")
    rows = []
    for script in SCRIPTS:
        new = {c for c in matched_by(f"\\p{{{script}}}") if unicodedata.category(chr(c)) == "Cn"}
        rows += [(first, last, script) for first, last in ranges(new)]
    print_table(f"CategoryRange kNewScriptCharacters[{len(rows)}]", "Scripts of such characters.", rows,
                lambda r: f'{{{r[0]:#x}, {r[1]:#x}, "{r[2]}"}}', 5)
    print(f"extern const size_t kNumNewScriptCharacters = {len(rows)};\n")
    print("// clang-format on\n\n}  // namespace llmb")


if __name__ == "__main__":
    main()
