"""Tiny random models with classification heads, and the scores that transformers gives to texts and pairs of texts.

Writes data/fixtures/classifiers/<name>/: the model with a tokenizer, and golden.jsonl with text_1, text_2 (null: a text
by itself), token_ids and scores. Weights are stored in fp16 and computed in fp32.
"""
import json
import pathlib
import shutil

import torch
from make_golden_encoders import CORPUS, SIZES, TEXTS, random_weights, unigram, word_piece, write_json
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForSequenceClassification, PreTrainedTokenizerFast

OUT = pathlib.Path("data/fixtures/classifiers")
ONE = {"0": "LABEL_0"}
THREE = {"0": "negative", "1": "neutral", "2": "positive"}

# config.json beside SIZES, the tokenizer, and what the scores are made by.
CLASSIFIERS = {
    "bert": ({"model_type": "bert", "architectures": ["BertForSequenceClassification"], "id2label": ONE,
              "max_position_embeddings": 128}, word_piece, torch.sigmoid),
    "xlm-roberta": ({"model_type": "xlm-roberta", "architectures": ["XLMRobertaForSequenceClassification"],
                     "id2label": THREE, "max_position_embeddings": 130, "type_vocab_size": 1, "layer_norm_eps": 1e-5,
                     "pad_token_id": 1}, unigram, lambda x: torch.softmax(x, -1)),
    "modernbert": ({"model_type": "modernbert", "architectures": ["ModernBertForSequenceClassification"],
                    "id2label": ONE, "max_position_embeddings": 128, "local_attention": 16, "classifier_pooling": "mean",
                    "pad_token_id": 0, "cls_token_id": 2, "sep_token_id": 3, "bos_token_id": 2, "eos_token_id": 3,
                    "sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity"}}, word_piece,
                   lambda x: x),
    "llama": ({"model_type": "llama", "architectures": ["LlamaForSequenceClassification"], "id2label": THREE,
               "problem_type": "multi_label_classification", "max_position_embeddings": 128, "pad_token_id": 0},
              word_piece, torch.sigmoid),
}


@torch.no_grad()
def make(name, seed):
    config, make_tokenizer, scores_of = CLASSIFIERS[name]
    out = OUT / name
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    tokenizer, special = make_tokenizer()
    config = {**SIZES, "vocab_size": tokenizer.get_vocab_size(), "torch_dtype": "float16", **config}
    write_json(out / "config.json", config)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special)
    fast.save_pretrained(out)
    model = AutoModelForSequenceClassification.from_config(AutoConfig.from_pretrained(out), dtype=torch.float32,
                                                           attn_implementation="eager").eval()
    random_weights(model, seed)
    weights = {n: p.detach().half().contiguous() for n, p in sorted(model.named_parameters())}
    save_file(weights, out / "model.safetensors", metadata={"format": "pt"})
    has_types = config["model_type"] == "bert"
    lines = []
    for one, two in [*((text, None) for text in TEXTS[:10]), *((CORPUS[i], CORPUS[(i * 2 + 1) % 6]) for i in range(6)),
                     ("a", "b"), (CORPUS[3], "x")]:
        encoded = tokenizer.encode(one) if two is None else tokenizer.encode(one, two)
        if len(encoded.ids) > 128:
            continue
        types = {"token_type_ids": torch.tensor([encoded.type_ids])} if has_types else {}
        logits = model(torch.tensor([encoded.ids]), **types).logits[0].double()
        lines.append({"text_1": one, "text_2": two, "token_ids": encoded.ids,
                      "scores": [float(f"{x:.7g}") for x in scores_of(logits).tolist()]})
    (out / "golden.jsonl").write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))
    size = sum(f.stat().st_size for f in out.rglob("*") if f.is_file())
    print(name, size, "bytes;", len(lines), "lines", [line["scores"] for line in lines[-4:]], flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    for index, classifier_name in enumerate(CLASSIFIERS):
        make(classifier_name, 5000 + index)
