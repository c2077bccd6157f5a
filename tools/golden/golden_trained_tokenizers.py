"""Small tokenizers of every kind, trained on a few sentences."""
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from golden_tokenizer_texts import CHARSMAP, CORPUS, LLAMA3, O200K


def special(content, **flags):
    return AddedToken(content, special=True, **{"normalized": False, **flags})


def byte_level_bpe(pre_tokenizer, size=420, **options):
    tokenizer = Tokenizer(models.BPE(**options))
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(
        CORPUS,
        trainers.BpeTrainer(vocab_size=size, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    return tokenizer


def gpt2():
    tokenizer = byte_level_bpe(pre_tokenizers.ByteLevel(add_prefix_space=True))
    tokenizer.add_tokens([
        special("<s>"),
        special("</s>", rstrip=True),
        special("<mask>", lstrip=True),
        AddedToken("Day", single_word=True, normalized=False),
        AddedToken("the", normalized=True)
    ])
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", tokenizer.token_to_id("</s>")),
                                                            ("<s>", tokenizer.token_to_id("<s>")))
    return tokenizer


def llama3():
    tokenizer = byte_level_bpe(pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(LLAMA3), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    ]),
                               ignore_merges=True)
    tokenizer.add_special_tokens(["<s>", "</s>"])
    tokenizer.post_processor = processors.Sequence([
        processors.ByteLevel(),
        processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", tokenizer.token_to_id("<s>"))])
    ])
    return tokenizer


def o200k():
    return byte_level_bpe(
        pre_tokenizers.Sequence([
            pre_tokenizers.Split(Regex(O200K), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        ]))


def falcon():
    """Steps after ByteLevel see its characters; not every byte has an entry."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Punctuation("contiguous"),
        pre_tokenizers.ByteLevel(add_prefix_space=False),
        pre_tokenizers.Digits(individual_digits=False),
        pre_tokenizers.Split(Regex("[0-9][0-9][0-9]"), "isolated")
    ])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(CORPUS,
                                  trainers.BpeTrainer(vocab_size=300, special_tokens=["<unk>"], show_progress=False))
    return tokenizer


def llama2():
    """sentencepiece BPE: no pre-tokenizer, spaces as ▁, bytes for what has no entry."""
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    byte_tokens = [f"<0x{b:02X}>" for b in range(256)]
    trained.train_from_iterator(
        CORPUS[:5] + CORPUS[-1:],
        trainers.BpeTrainer(vocab_size=500, special_tokens=["<unk>", "<s>", "</s>"] + byte_tokens, show_progress=False))
    state = json.loads(trained.to_str())["model"]
    tokenizer = Tokenizer(
        models.BPE(vocab=state["vocab"],
                   merges=[tuple(m) for m in state["merges"]],
                   unk_token="<unk>",
                   fuse_unk=True,
                   byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "),
         decoders.ByteFallback(),
         decoders.Fuse(),
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
    tokenizer.train_from_iterator(
        CORPUS,
        trainers.BpeTrainer(vocab_size=350,
                            special_tokens=["<unk>", "<s>"],
                            continuing_subword_prefix="##",
                            end_of_word_suffix="</w>",
                            show_progress=False))
    return tokenizer


def unigram():
    trained = Tokenizer(models.Unigram())
    trained.pre_tokenizer = pre_tokenizers.Metaspace()
    trained.train_from_iterator(
        CORPUS * 20,
        trainers.UnigramTrainer(vocab_size=260,
                                special_tokens=["<pad>", "</s>", "<unk>"],
                                unk_token="<unk>",
                                show_progress=False))
    state = json.loads(trained.to_str())
    state["normalizer"] = {
        "type":
        "Sequence", "normalizers": [{"type": "Precompiled", "precompiled_charsmap":
                                     CHARSMAP}, {"type": "Strip", "strip_left": False, "strip_right": True},
                                    {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": "▁"}]
    }
    state["pre_tokenizer"] = {
        "type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "add_prefix_space": True
    }
    state["decoder"] = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "add_prefix_space": True}
    tokenizer = Tokenizer.from_str(json.dumps(state))
    tokenizer.add_special_tokens(["</s>", "<mask>"])
    tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>",
                                                             special_tokens=[("</s>", tokenizer.token_to_id("</s>"))])
    return tokenizer


def unigram_bytes():
    state = json.loads(unigram().to_str())
    model = state["model"]
    model["vocab"] = model["vocab"] + [[f"<0x{b:02X}>", 0.0] for b in range(256)]
    model["byte_fallback"] = True
    state["normalizer"] = {"type": "NFKC"}
    state["pre_tokenizer"] = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "never", "split": False}
    state["decoder"] = {
        "type":
        "Sequence", "decoders": [{"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
                                 {"type": "ByteFallback"}, {"type": "Fuse"}]
    }
    state["post_processor"], state["added_tokens"] = None, state["added_tokens"][:3]
    return Tokenizer.from_str(json.dumps(state))


def bert():
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]", max_input_chars_per_word=20))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.train_from_iterator(
        CORPUS,
        trainers.WordPieceTrainer(vocab_size=300,
                                  special_tokens=["[PAD]", "[UNK]", "[CLS]", "[SEP]"],
                                  show_progress=False))
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return tokenizer


def word_level():
    tokenizer = Tokenizer(models.WordLevel(unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.NFD(), normalizers.StripAccents(),
         normalizers.Lowercase()])
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Punctuation()])
    tokenizer.train_from_iterator(
        CORPUS, trainers.WordLevelTrainer(vocab_size=120, special_tokens=["<unk>", "<s>"], show_progress=False))
    return tokenizer
