"""The byte-level BPE tokenizer, trained on the corpus, and the chat template."""
import json
import pathlib
import random

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

import corpus

# Their order is their id.
SPECIAL = ["<|endoftext|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>"]
EOS, END = 0, 1
VOCAB_SIZE = 1536

CHAT_TEMPLATE = """\
{% for message in messages %}\
{% if message['role'] not in ['system', 'user', 'assistant'] %}\
{{ raise_exception('unknown role: ' + message['role']) }}\
{% endif %}\
{{ '<|' + message['role'] + '|>' + message['content'] | trim + '<|end|>' }}\
{% endfor %}\
{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"""


def train(seed):
    tokenizer = Tokenizer(models.BPE())
    # Digits one by one: numbers then look alike whatever their length, which arithmetic needs.
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)])
    tokenizer.decoder = decoders.ByteLevel()
    rng = random.Random(f"tokenizer {seed}")
    texts = [text for _ in range(30000) for _, text in corpus.short_sample(rng)]
    texts += [text for _ in range(1500) for _, text in corpus.long_sample(rng)]
    # Each listed word in both of its forms, after a space and at the start of an answer.
    texts += [f"{word}, {word}" for word in corpus.w.WORDS] * 40
    tokenizer.train_from_iterator(texts, trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE, special_tokens=SPECIAL, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False))
    return tokenizer


def save(tokenizer, out, max_position_embeddings):
    out = pathlib.Path(out)
    tokenizer.save(str(out / "tokenizer.json"))
    config = {
        "added_tokens_decoder": {str(i): {"content": text, "lstrip": False, "normalized": False, "rstrip": False,
                                          "single_word": False, "special": True} for i, text in enumerate(SPECIAL)},
        "add_prefix_space": False, "clean_up_tokenization_spaces": False, "bos_token": None,
        "eos_token": "<|end|>", "pad_token": "<|endoftext|>", "unk_token": None,
        "model_max_length": max_position_embeddings, "tokenizer_class": "PreTrainedTokenizerFast",
        "chat_template": CHAT_TEMPLATE,
    }
    (out / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")
    specials = {"eos_token": "<|end|>", "pad_token": "<|endoftext|>",
                "additional_special_tokens": ["<|system|>", "<|user|>", "<|assistant|>"]}
    (out / "special_tokens_map.json").write_text(json.dumps(specials, indent=2) + "\n")


def encode_sample(tokenizer, turns):
    """Token ids of a sample, and for each whether the model is to predict it: answers and raw texts only."""
    texts = [text for _, text in turns]
    ids, wanted = [], []
    role_ids = {"system": 2, "user": 3, "assistant": 4}
    for (role, _), encoding in zip(turns, tokenizer.encode_batch(texts, add_special_tokens=False)):
        body = encoding.ids + [END]
        learn = role in ("assistant", "raw")
        if role != "raw":
            ids.append(role_ids[role])
            wanted.append(False)
        ids += body
        wanted += [learn] * len(body)
    return ids, wanted
