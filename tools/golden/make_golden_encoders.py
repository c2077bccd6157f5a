"""Tiny random encoders with tokenizers of their own, and the vectors that sentence-transformers makes of texts.

Writes data/fixtures/encoders/<name>/: the model as a sentence-transformers folder, and golden.jsonl with text, token_ids
and embedding. Weights are stored in fp16 and computed in fp32.
"""
import json
import pathlib
import shutil
import sys

import torch
from safetensors.torch import save_file
from sentence_transformers import SentenceTransformer
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import AutoConfig, AutoModel, PreTrainedTokenizerFast

OUT = pathlib.Path("data/fixtures/encoders")
CORPUS = """The quick brown fox jumps over the lazy dog. How vexingly quick daft zebras jump!
A batch of sentences is encoded at once; each becomes one vector, whatever stands beside it.
Retrieval ranks documents by the similarity of their vectors to the query's vector.
What is the capital of France? Paris is the capital of France, and Berlin that of Germany.
Encoders read a text in both directions. Decoders read it from left to right.
Numbers such as 1, 23, 456 and 7890 occur, as do marks: (), [], {}, "quotes", 'ticks' and - dashes.""".splitlines()
LONG = " ".join(CORPUS) + " "
TEXTS = ["a", "The quick brown fox.", "What is the capital of France?", "Encoders read a text in both directions.",
         "  white   space\tand a\nline  ", "Café naïve ÀÉÎ straße İstanbul", "漢字 and かな; emoji 🙂 too",
         "unaffordable hyphenated-words 12345", CORPUS[1], " ".join(CORPUS[:3]), LONG]
SIZES = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 40}


def word_piece():
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokenizer.train_from_iterator(CORPUS, trainers.WordPieceTrainer(vocab_size=180, special_tokens=special))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    tokenizer.decoder = decoders.WordPiece()
    return tokenizer, {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]",
                       "mask_token": "[MASK]"}


ROBERTA_TOKENS = {"bos_token": "<s>", "pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>",
                  "cls_token": "<s>", "sep_token": "</s>", "mask_token": "<mask>"}


def byte_level():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.train_from_iterator(CORPUS, trainers.BpeTrainer(
        vocab_size=320, special_tokens=["<s>", "<pad>", "</s>", "<unk>", "<mask>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer, ROBERTA_TOKENS


def unigram():
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="always")
    tokenizer.train_from_iterator(CORPUS, trainers.UnigramTrainer(
        vocab_size=160, special_tokens=["<s>", "<pad>", "</s>", "<unk>", "<mask>"], unk_token="<unk>"))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=[("<s>", 0), ("</s>", 2)])
    tokenizer.decoder = decoders.Metaspace(replacement="▁", prepend_scheme="always")
    return tokenizer, ROBERTA_TOKENS


# config.json beside SIZES, the tokenizer, how states are pooled, and whether vectors are normalised.
ENCODERS = {
    "bert": ({"model_type": "bert", "max_position_embeddings": 320}, word_piece, "mean", True, []),
    "roberta": ({"model_type": "roberta", "max_position_embeddings": 322, "type_vocab_size": 1, "layer_norm_eps": 1e-5,
                 "pad_token_id": 1}, byte_level, "cls", False, []),
    "xlm-roberta": ({"model_type": "xlm-roberta", "max_position_embeddings": 322, "type_vocab_size": 1,
                     "layer_norm_eps": 1e-5, "hidden_act": "gelu", "pad_token_id": 1}, unigram, "cls", True, []),
    "modernbert": ({"model_type": "modernbert", "max_position_embeddings": 320, "local_attention": 16,
                    "num_hidden_layers": 4, "pad_token_id": 0, "cls_token_id": 2, "sep_token_id": 3,
                    "bos_token_id": 2, "eos_token_id": 3}, word_piece, "mean", True, []),
    "nomic_bert": ({"model_type": "nomic_bert", "max_position_embeddings": 320}, word_piece, "mean", True, []),
    "embeddinggemma": ({"model_type": "gemma3_text", "max_position_embeddings": 320, "head_dim": 16, "sliding_window": 24,
                        "use_bidirectional_attention": True, "num_key_value_heads": 2, "query_pre_attn_scalar": 16,
                        "sliding_window_pattern": 2, "hidden_activation": "gelu_pytorch_tanh", "pad_token_id": 1,
                        "eos_token_id": 2, "bos_token_id": 0},
                       unigram, "mean", True, [(32, 48, False), (48, 24, True)]),
}


def random_weights(model, seed):
    generator = torch.Generator().manual_seed(seed)
    for name, p in sorted(model.named_parameters()):
        noise = torch.randn(p.shape, generator=generator)
        adds_one = model.config.model_type.startswith("gemma")  # its norms multiply by 1 + weight
        if name.endswith("bias"):
            p.data = 0.3 * noise
        elif "norm" in name.lower():
            p.data = (0.0 if adds_one else 1.0) + 0.3 * noise
        elif "embed" in name:
            p.data = 0.5 * noise
        else:
            p.data = 1.5 * noise / p.shape[1] ** 0.5
        p.data = p.data.half().float()


def write_json(path, value):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, indent=1) + "\n")


def write_dense(path, in_features, out_features, bias, seed):
    generator = torch.Generator().manual_seed(seed)
    weights = {"linear.weight": torch.randn(out_features, in_features, generator=generator) / in_features ** 0.5}
    if bias:
        weights["linear.bias"] = 0.3 * torch.randn(out_features, generator=generator)
    activation = "torch.nn.modules.activation.Tanh" if bias else "torch.nn.modules.linear.Identity"
    write_json(path / "config.json", {"in_features": in_features, "out_features": out_features, "bias": bias,
                                      "activation_function": activation})
    save_file({name: w.half() for name, w in weights.items()}, path / "model.safetensors", metadata={"format": "pt"})


def write_modules(out, mode, normalizes, dense):
    modules = [("", "Transformer"), ("1_Pooling", "Pooling")]
    flags = {"cls": "pooling_mode_cls_token", "mean": "pooling_mode_mean_tokens", "lasttoken": "pooling_mode_lasttoken"}
    write_json(out / "1_Pooling/config.json",
               {"word_embedding_dimension": SIZES["hidden_size"], **{flag: k == mode for k, flag in flags.items()}})
    for i, (in_features, out_features, bias) in enumerate(dense):
        write_dense(out / f"{i + 2}_Dense", in_features, out_features, bias, 100 + i)
        modules.append((f"{i + 2}_Dense", "Dense"))
    if normalizes:
        modules.append((f"{len(modules)}_Normalize", "Normalize"))
        (out / modules[-1][0]).mkdir()
    write_json(out / "modules.json", [{"idx": i, "name": str(i), "path": path, "type": "sentence_transformers.models." + t}
                                      for i, (path, t) in enumerate(modules)])


@torch.no_grad()
def make(name, seed):
    config, make_tokenizer, mode, normalizes, dense = ENCODERS[name]
    out = OUT / name
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    tokenizer, special = make_tokenizer()
    config = {**SIZES, "vocab_size": tokenizer.get_vocab_size(), "torch_dtype": "float16", **config}
    write_json(out / "config.json", config)
    parsed = AutoConfig.from_pretrained(out)
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=318, **special).save_pretrained(out)
    model = AutoModel.from_config(parsed, dtype=torch.float32)
    random_weights(model, seed)
    weights = {n: p.detach().half().contiguous() for n, p in sorted(model.named_parameters()) if "pooler" not in n}
    save_file(weights, out / "model.safetensors", metadata={"format": "pt"})
    write_modules(out, mode, normalizes, dense)
    encoder = SentenceTransformer(str(out), device="cpu",
                                  model_kwargs={"attn_implementation": "eager", "dtype": torch.float32}).eval()
    lines = []
    for text in [*(t for t in TEXTS if len(tokenizer.encode(t).ids) <= 318), longest_text(tokenizer, 318)]:
        vector = encoder.encode(text, batch_size=1, convert_to_tensor=True).double()
        lines.append({"text": text, "token_ids": tokenizer.encode(text).ids,
                      "embedding": [float(f"{x:.7g}") for x in vector.tolist()]})
    (out / "golden.jsonl").write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))
    for line in lines:
        assert encoder.tokenizer(line["text"])["input_ids"] == line["token_ids"], line["text"]
    size = sum(f.stat().st_size for f in out.rglob("*") if f.is_file())
    print(name, size, "bytes;", [len(line["token_ids"]) for line in lines], "tokens", flush=True)


def longest_text(tokenizer, limit):
    """A text of as many tokens as the limit allows, or hardly fewer."""
    words = (LONG * 4).split(" ")
    count = next(n for n in range(1, len(words)) if len(tokenizer.encode(" ".join(words[:n + 1])).ids) > limit)
    return " ".join(words[:count])


if __name__ == "__main__":
    torch.set_num_threads(1)
    for index, encoder_name in enumerate(ENCODERS):
        if len(sys.argv) == 1 or encoder_name in sys.argv[1:]:
            make(encoder_name, 4000 + index)
