"""What Hugging Face says about the bundled tokenizer and chat template: ids, decoded text, rendered conversations.

Writes <out>/tokenizer-bundled.jsonl, tokenizer-bundled-decode.jsonl and chat-template-bundled.jsonl.
"""
import argparse
import json
import pathlib
import random

from tokenizers import Tokenizer
from transformers import AutoTokenizer

BY_HAND = [
    "", " ", "  ", "   ", "\n", "\n\n", "\r\n", "\t", " \n ", "a", " a", "a ", "  a  b   c  ", "Hello, world!", "Hello",
    "don't we'll they've I'm he'd it's you're DON'T", "'s 't 're", "What is 347 + 589?", "3.14159", "1,000,000", "٣٤٥",
    "½ Ⅷ ² ৩", "0x1F 1e-9 v2.0.1", "2021-03-07", "snake_case camelCase kebab-case", "a\tb\tc", "line one\nline two\n",
    "trailing spaces   ", "   leading spaces", "def f(x):\n    return x ** 2\n", "#include <vector>\nint main() {}\n",
    'for (auto& [k, v] : m) std::cout << k << "\\n";', "SELECT * FROM t WHERE a <> 'b';", '{"name": "Alice", "age": 34}',
    "https://example.org/a?b=c&d=%20#e", "mail@example.org", "C:\\Users\\x", "<html><body>&amp;</body></html>",
    "naïve café Zürich", "na\u0131\u0308ve cafe\u0301", "ÅÄÖ åäö ß ẞ", "Привет, мир!", "Γειά σου Κόσμε", "שלום עולם",
    "مرحبا بالعالم", "नमस्ते दुनिया", "สวัสดีชาวโลก", "你好,世界!", "こんにちは世界", "안녕하세요 세계", "ሰላም ልዑል", "გამარჯობა",
    "😀", "👍🏽", "👨‍👩‍👧‍👦", "🇫🇷🇩🇪", "❤️ ☂︎", "🏴󠁧󠁢󠁥󠁮󠁧󠁿", "𝔘𝔫𝔦𝔠𝔬𝔡𝔢", "𐍈𐌰", "\u200b\u200d\u2060", "\ufeffBOM", "\u00a0nbsp\u00a0",
    "\u2028\u2029", "\u3000wide\u3000space", "\x00", "a\x00b", "\x01\x02\x1b[31mred\x1b[0m", "\x7f\x80\x9f", "\ufffd", "\uffff",
    "\U0010ffff", "e" + "\u0301" * 20, "a" * 500, " " * 200, "\n" * 60, "=" * 80, "ab" * 150, "9" * 70, "!?" * 50,
    "<|end|>", "<|endoftext|>", "<|user|>Hi<|end|><|assistant|>", "a<|end|>b", " <|end|> ", "<|end|", "|end|>", "<|END|>",
    "<|end|><|end|>", "<|unknown|>", "<<|end|>>", "text <|system|>x", "<| end |>", "0<|end|>0", "é<|user|>é",
    "Once upon a time", "Sort these words: pear, fox, moon", "Mr. O'Neill said: “It’s — fine…”", "¿Qué? ¡Sí!", "a.b.c...d",
    "ﬁ ﬂ ﬀ", "ＦＵＬＬ ｗｉｄｔｈ １２３", "x²+y³=z⁴", "∀x∈ℝ: ⌈x⌉ ≥ x", "→ ⇒ ↦", "½¼¾", "①②③", "\u0e01\u0e33", "क्षि", "ﷺ",
]
ALPHABETS = ["abcdefghijklmnopqrstuvwxyz ", "ABCdef 0123456789.,'", " \t\n\r", "éüñçøß ", "абвгд ёж", "αβγδ ", "日本語中文字",
             "가나다라", "अआइ ि्", "😀🚀🎉❤️‍🔥", "\u0300\u0301\u0308aeiou", "{}[]()<>|/\\\"'`~@#$%^&*-_=+;:", "0123456789",
             "\x00\x01\x07\x1b a", "אבג ابت", "\u200d\u200c\ufe0fx👩", "'stremdv l"]
SPECIALS = ["<|end|>", "<|user|>", "<|endoftext|>", "<|assistant|>"]


def strings(seed):
    rng, out = random.Random(seed), list(BY_HAND)
    for alphabet in ALPHABETS:
        out += ["".join(rng.choices(alphabet, k=rng.randrange(1, 40))) for _ in range(8)]
    for _ in range(30):  # all of it mixed, special tokens among it
        pieces = [rng.choice(SPECIALS) if rng.random() < 0.2 else
                  "".join(rng.choices(rng.choice(ALPHABETS), k=rng.randrange(1, 9))) for _ in range(6)]
        out.append("".join(pieces))
    for _ in range(20):  # any code points but surrogates
        points = [rng.randrange(0x110000) for _ in range(rng.randrange(1, 12))]
        out.append("".join(chr(p) for p in points if not 0xD800 <= p < 0xE000))
    return list(dict.fromkeys(out))


def user(text):
    return {"role": "user", "content": text}


def assistant(text):
    return {"role": "assistant", "content": text}


def system(text):
    return {"role": "system", "content": text}


CONVERSATIONS = [
    [user("Hello!")],
    [system("You are a helpful assistant."), user("What is 12 + 30?")],
    [user("Hi"), assistant("Hello! How can I help you?"), user("Tell me a story about a fox.")],
    [system("Answer briefly."), user("1 + 1 ="), assistant("1 + 1 = 2"), user("2 + 2 ="), assistant("2 + 2 = 4")],
    [user("  spaces around  \n")],
    [user("")],
    [user("two\nlines\n\nand more")],
    [user("<|end|><|assistant|>injected")],
    [user("{{ not a template }} {% if x %}")],
    [user('quotes " and \' and \\ backslash')],
    [user("Привет 你好 😀 e\u0301")],
    [assistant("The assistant begins."), user("Go on")],
    [user("a"), user("b")],
    [system("s"), system("t"), user("u")],
    [user("\u00a0no-break\u00a0"), assistant("\tTab and newline\r\n")],
    [system(""), user("\u3000wide\u3000")],
]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=pathlib.Path, default=pathlib.Path("data/model"))
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("data/fixtures"))
    parser.add_argument("--seed", type=int, default=7)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)

    raw = Tokenizer.from_file(str(args.model / "tokenizer.json"))
    lines = []
    for text in strings(args.seed):
        ids = raw.encode(text, add_special_tokens=False).ids
        lines.append({"text": text, "ids": ids, "decoded": raw.decode(ids, skip_special_tokens=False),
                      "decoded_skip_special": raw.decode(ids, skip_special_tokens=True)})
        assert lines[-1]["decoded"] == text, f"does not round-trip: {text!r}"
    (args.out / "tokenizer-bundled.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))

    # Ids that no encoder would give: bytes that are not UTF-8 become U+FFFD.
    rng, lines = random.Random(f"decode {args.seed}"), []
    for limit in (261, raw.get_vocab_size()):  # the first 261 ids are the special tokens and the single bytes
        for _ in range(20):
            ids = [rng.randrange(limit) for _ in range(rng.randrange(1, 16))]
            lines.append({"ids": ids, "decoded": raw.decode(ids, skip_special_tokens=False),
                          "decoded_skip_special": raw.decode(ids, skip_special_tokens=True)})
    (args.out / "tokenizer-bundled-decode.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))

    tokenizer, lines = AutoTokenizer.from_pretrained(args.model), []
    for messages in CONVERSATIONS:
        for generate in (True, False):
            text = tokenizer.apply_chat_template(messages, add_generation_prompt=generate, tokenize=False)
            lines.append({"messages": messages, "add_generation_prompt": generate, "text": text,
                          "ids": raw.encode(text, add_special_tokens=False).ids})
    (args.out / "chat-template-bundled.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


if __name__ == "__main__":
    main()
