"""What tokenizers makes of texts with the splits that GGUF files name (tokenizer.ggml.pre), written down here as their
tokenizer.json files have them: data/fixtures/tokenizers/word_splits.jsonl."""
import json

from tokenizers import Regex, pre_tokenizers

from golden_tokenizer_texts import LLAMA3, O200K, ROOT, TEXTS

ENDINGS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
DEEPSEEK3 = (r"\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+",
             r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
             r"| ?[\p{P}\p{S}]+[\r\n]*|" + SPACES)
POWERS = "|".join(r"\s{%d}(?!\S)" % 2 ** i for i in range(9, 1, -1))
BLOOM = " ?[^(\\s|.,!?…。，、।۔،)]+"
SPLITS = {
    "llama-bpe": (LLAMA3,), "glm4": (LLAMA3,), "midm-2.0": (LLAMA3,),
    "qwen2": (QWEN2,), "hunyuan": (QWEN2,), "grok-2": (QWEN2,), "solar-open": (QWEN2,), "stablelm2": (QWEN2,),
    "qwen35": (ENDINGS + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|" + SPACES,),
    "bailingmoe": (r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]"
                   r"|\s+(?!\S)|\s+",),
    "seed-coder": (ENDINGS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}" + "\r\n" + r"]+|" + SPACES,),
    "ufakzeka": (r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + SPACES,),
    "jais-2": (LLAMA3.replace(r"\s+(?!\S)|\s+", POWERS + r"|\s{1,2}(?!\S)|\s{1}"),),
    "gpt-4o": (O200K,), "llama4": (O200K,), "minimax-m2": (O200K,), "granite-embed-multi-97m": (O200K,),
    "tiny_aya": (r"\d{1,3}(?=(?:\d{3})*\b)", O200K), "cohere2moe": (r"\d{1,3}(?=(?:\d{3})*\b)", O200K),
    "superbpe": (r"\p{N}+", r"(?=(\d{3})+(?!\d))"),
    "deepseek-v3": DEEPSEEK3, "hunyuan-dense": DEEPSEEK3, "joyai-llm": DEEPSEEK3, "hy_v4": DEEPSEEK3,
    "spark2_5": (*DEEPSEEK3[:2], DEEPSEEK3[2].replace(r"[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+", r"[\p{P}\p{S}]+|[\r\n]"),
                 r"\p{N}"),
    "afmoe": (r"\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))",
              "[一-鿿㐀-䶿\uf900-\ufaff぀-ゟ゠-ヿ\uff65-\uff9f\u2f00-\u2fdf\u0e40-\u0e7f\u0e80-\u0effក-\u17ffက-\u109f"
              "\uaa60-\uaa7f\ua9e0-\ua9ff가-\ud7af\u1100-\u11ff]+", DEEPSEEK3[2]),
    "laguna": (r"[^\n]+|[\n]+", QWEN2),
    "youtu": ("[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|[一-龥぀-ゟ゠-ヿ]+",
              O200K.replace(r"\p{N}{1,3}", r"\p{N}")),
    "minicpm5": (r"\p{N}{1,3}", LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}+")),
    "bloom": (BLOOM,), "poro-chat": (BLOOM,), "viking": (BLOOM, r"\p{N}"),
}
PLAIN = ("gpt-2", "exaone4", "granite-docling", "trillion", "a.x-4.0", "mellum", "modern-bert", "olmo")
DIGITS = ("smollm", "command-r", "starcoder", "refact", "mellum2", "exaone")  # one by one
MORE = ["It's 7, 42, 365, 1990, 12345678 and 1234567890123. DON'T, I'LL x² ①②", "a\r\n\r\n  b \t\t c\n \n  d",
        "你好，世界。！…“” 今日 は天気がいい。こんにちは ｶﾀｶﾅ 한국어 ㄱㄴ ㄅㄆ 豈", "नमस्ते दुनिया ก็ไทย ລາວ ខ្មែរ မြန်မာ e\u0301a",
        "                 x" + " " * 40 + "\ny", "/// doc//\n\n//x\n{}\r\n;", "x1234y 007 3.14159 1,000,000 ٣٤٥٦",
        "'tis Ankara'dan ate'sı 'M I'd'd"]


def main():
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    words = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    steps = {name: [*(pre_tokenizers.Split(Regex(p), "isolated") for p in patterns), byte_level]
             for name, patterns in SPLITS.items()}
    steps.update({name: [words] for name in PLAIN})
    steps.update({name: [pre_tokenizers.Digits(individual_digits=True), words] for name in DIGITS})
    made = {}  # names whose pieces are the same share a line
    for name, members in steps.items():
        whole = pre_tokenizers.Sequence(members)
        cases = [[text, [piece for piece, _ in whole.pre_tokenize_str(text)]] for text in TEXTS[13:30] + MORE]
        made.setdefault(json.dumps(cases), []).append(name)
    lines = [json.dumps({"names": names, "cases": json.loads(cases)}, separators=(",", ":"), ensure_ascii=False)
             for cases, names in made.items()]
    (ROOT / "word_splits.jsonl").write_text("\n".join(lines) + "\n")
    print(*made.values(), sep="\n")


if __name__ == "__main__":
    main()
