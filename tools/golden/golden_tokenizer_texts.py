"""What the small tokenizers are trained and tested on."""
import base64
import pathlib
import struct

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
    "",
    " ",
    "  ",
    "   ",
    "\n",
    "\n\n",
    "\r\n",
    "\t",
    " \n ",
    "a",
    " a",
    "a ",
    "  a  b   c  ",
    "Hello, world!",
    "hello world",
    "don't we'll they've I'm he'd DON'T",
    "12345 1 12 123 1,000.50",
    "x²+y³=½ ٣٤٥ Ⅷ ①",
    "naïve café Straße İstanbul ﬁne",
    "e\u0301 vs \u00e9, n\u0303, \u1e9b\u0323, \u212b, \uac00 \u1100\u1161",
    "今日は天気がいいですね。",
    "Привет, мир!",
    "שלום עולם",
    "नमस्ते",
    "สวัสดี",
    "👍🏽 👨‍👩‍👧‍👦 🇩🇪 1️⃣",
    "a\u200bb\u200cc\ufeffd\u00ad",
    "\x00\x01\x1f\x7f",
    "tab\there\u00a0nbsp\u3000wide\u2028line",
    "if (x) {\n\treturn y;\n}\n\n\n",
    "::->!=<=...---___***",
    "http://example.com/a?b=c&d=%20#e",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "the the the the",
    "▁a ▁ ▁▁b",
    "a▁b",
    "<s>",
    "</s> x",
    "a<s>b",
    " <s> ",
    "<s></s>",
    "x <mask> y",
    "x  <mask>  y",
    "<mask><mask>",
    "Day today Day",
    "DAY day",
    "[UNK] [CLS]",
    "<0x41>",
    "<0xE4>",
    "𝒳𝓎 𝟙",
    "Ωμέγα ΣΊΣΥΦΟΣ",
    "Ǆ ǅ ǆ",
    "\u0345\u0301a\u0323\u0307",
    "ﷺ",
    "\U0001e030\U0001fae8\U0002ebf0",
    "CamelCaseWord XMLHttpRequest iPhone",
    "ẞ ŉ ǰ",
    "日本語mixed英語text",
    "hello\u0300world",
    "...!?",
    "' s 't",
    "\n hello\n\n  world \n",
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


CHARSMAP = tiny_charsmap(
    {"ﬁ": "fi", "Å": "Å", "e\u0301": "é", "\u00a0": " ", "\u200b": "", "½": "1⁄2", "２": "2", "\u0301": "´"})
