"""What beam search in Hugging Face transformers says about the bundled model and the tiny random ones.

Writes <out>/beams-bundled.jsonl and <out>/beams-models.jsonl: (model,) prompt_token_ids, num_beams, max_tokens,
length_penalty, early_stopping, min_tokens, and the answers: token_ids (pads cut off, end of sequence included) and score.
Weights as they are stored, arithmetic in float32. A search is left out where a decision was closer than 1e-4 nat: another
order of additions might decide it otherwise.
"""
import argparse
import json
import pathlib
import random

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.generation.utils import GenerationMixin

LEAST_MARGIN = 1e-4
SETTINGS = [dict(num_beams=w, length_penalty=p, early_stopping=e) for w, p, e in [
    (4, 1.0, False), (4, 1.0, True), (4, 1.0, "never"), (2, 0.0, False), (3, 2.0, False), (5, 0.6, True), (8, 1.0, False),
    (4, -1.0, "never"), (6, 0.0, "never"), (7, 1.5, True)]]


class Margins:
    """The smallest distance between neighbours in the lists that a search chose from."""

    def __init__(self):
        self.smallest, self.continuations, self.finished = float("inf"), GenerationMixin._get_top_k_continuations, \
            GenerationMixin._update_finished_beams

    def __enter__(self):
        def continuations(model, *args, **kwargs):
            result = self.continuations(model, *args, **kwargs)
            scores = kwargs["accumulated_log_probs"].topk(min(kwargs["beams_to_keep"] + 1,
                                                              kwargs["accumulated_log_probs"].shape[-1])).values[0]
            self.note(scores[scores > -1e8])
            return result

        def finished(model, *args, **kwargs):
            result = self.finished(model, *args, **kwargs)
            scores, count = result[1][0], result[3][0]
            self.note(scores[count].sort(descending=True).values)
            return result

        GenerationMixin._get_top_k_continuations, GenerationMixin._update_finished_beams = continuations, finished
        return self

    def __exit__(self, *_):
        GenerationMixin._get_top_k_continuations, GenerationMixin._update_finished_beams = self.continuations, self.finished

    def note(self, scores):
        if len(scores) > 1:
            self.smallest = min(self.smallest, float((scores[:-1] - scores[1:]).min()))


@torch.no_grad()
def search(model, ids, max_tokens, min_tokens, settings, use_cache):
    """Answers, best first; None where something was too close to call."""
    model.generation_config.do_sample = False
    with Margins() as margins:
        out = model.generate(torch.tensor([ids]), max_new_tokens=max_tokens, min_new_tokens=min_tokens or None,
                             do_sample=False, num_return_sequences=settings["num_beams"], output_scores=True,
                             return_dict_in_generate=True, use_cache=use_cache, **settings)
    if margins.smallest < LEAST_MARGIN:
        return None
    answers = []
    for row, beams, score in zip(out.sequences, out.beam_indices, out.sequences_scores):
        length = int((beams >= 0).sum())
        answers.append({"token_ids": row[len(ids):len(ids) + length].tolist(), "score": float(f"{float(score):.7g}")})
    return answers


def write(path, lines):
    path.write_text("".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines))


def bundled_lines(args):
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    model = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32).eval()
    rng = random.Random(1)
    examples = [json.loads(line) for line in open("data/eval/heldout.jsonl")]
    rng.shuffle(examples)
    prompts = [tokenizer.apply_chat_template(e["messages"], tokenize=False, add_generation_prompt=True) for e in examples[:180]]
    names = ["Tom", "Lily", "the fox", "a little girl", "an old man", "the cat", "Ben", "Anna"]
    prompts += [f"Once upon a time, {name} {verb}" for name in names for verb in
                ("was sad", "went to the park", "had a red ball", "lived near", "found", "said", "saw a")]
    lines = []
    for i, prompt in enumerate(prompts):
        ids = tokenizer(prompt, add_special_tokens=False)["input_ids"]
        settings, max_tokens = SETTINGS[i % len(SETTINGS)], rng.choice([1, 2, 8, 20, 32])
        min_tokens = rng.choice([0, 0, 0, min(5, max_tokens)])
        answers = search(model, ids, max_tokens, min_tokens, settings, use_cache=True)
        if answers:
            lines.append({"prompt_token_ids": ids, "max_tokens": max_tokens, "min_tokens": min_tokens, **settings, "answers": answers})
    return lines, len(prompts)


def model_lines(args):
    lines, count = [], 0
    for path in sorted((args.out / "models").iterdir()):
        try:
            attention = "sdpa" if path.name == "falcon-rw" else "eager"  # falcon's eager one adds ALiBi twice
            model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation=attention).eval()
        except Exception as error:  # a layout that transformers does not read by itself
            print(f"{path.name}: not loaded: {str(error)[:100]}")
            continue
        vocab = model.config.get_text_config().vocab_size
        rng = random.Random(path.name)
        shortest = 9 if path.name == "phi3-longrope-long" else 1  # below, transformers takes the short factors
        for i in range(4):
            ids = [rng.randrange(3, vocab) for _ in range(rng.randrange(shortest, 20))]
            settings, max_tokens, eos = rng.choice(SETTINGS), rng.choice([3, 8, 12]), rng.sample(range(vocab), 2)
            model.generation_config.eos_token_id, model.generation_config.pad_token_id = eos, 0
            count += 1
            # No cache: where a rope depends on the length, what is cached has the rope of a shorter one.
            answers = search(model, ids, max_tokens, 0, settings, use_cache=False)
            if answers:
                lines.append({"model": path.name, "prompt_token_ids": ids, "max_tokens": max_tokens, "min_tokens": 0,
                              "eos_token_ids": eos, **settings, "answers": answers})
    return lines, count


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="data/model")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("data/fixtures"))
    args = parser.parse_args()
    for name, (lines, count) in {"bundled": bundled_lines(args), "models": model_lines(args)}.items():
        print(f"{name}: {len(lines)} of {count} searches")
        write(args.out / f"beams-{name}.jsonl", lines)


if __name__ == "__main__":
    main()
