"""Held-out accuracy: the share of questions whose greedy answer is the expected one, token for token.

One forward pass over question and expected answer decides it: greedy decoding gives exactly the expected answer
if and only if the expected token is the most likely one at every position, `<|end|>` included.
"""
import argparse
import json
import pathlib

import torch

import corpus
import tokenizer as bpe


@torch.no_grad()
def accuracy(net, tokenizer, seed, per_task, device="cpu"):
    correct, total = {}, {}
    for line in corpus.held_out_set(seed, per_task):
        task = line["metadata"]["task"]
        ids, wanted = bpe.encode_sample(tokenizer, [("user", line["messages"][0]["content"]),
                                                    ("assistant", line["metadata"]["expected"])])
        ids, wanted = torch.tensor([ids], device=device), torch.tensor([wanted], device=device)
        right = bool((net(ids[:, :-1], wanted[:, 1:]).argmax(-1) == ids[:, 1:][wanted[:, 1:]]).all())
        correct[task] = correct.get(task, 0) + right
        total[task] = total.get(task, 0) + 1
    result = {task: correct[task] / total[task] for task in total}
    return {**result, "all": sum(correct.values()) / sum(total.values())}


def summary(net, tokenizer, seed, per_task, device="cpu"):
    return " ".join(f"{task} {share:.1%}" for task, share in accuracy(net, tokenizer, seed, per_task, device).items())


EXAMPLE_STORIES = ["Tell me a short story about a fox.", "Tell me a story about an owl.",
                   "Write a long story about a rabbit and a bear.", "Write a story about a mouse."]


def write(out, seed):
    """The held-out questions, and a page of examples."""
    out = pathlib.Path(out)
    out.mkdir(parents=True, exist_ok=True)
    lines = corpus.held_out_set(seed, 100)
    (out / "heldout.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    asked = {line["messages"][0]["content"] for line in lines}
    more = corpus.held_out_questions(seed, "extract", 600, asked)
    (out / "heldout_extract.jsonl").write_text("".join(json.dumps(line) + "\n" for line in more))
    examples = [lines[i] for task in range(7) for i in range(task * 100, task * 100 + (3 if task < 5 else 2))]
    examples += [{"id": f"story-{i + 1:04d}", "messages": [{"role": "user", "content": text}],
                  "max_tokens": 400 if "long" in text else 200} for i, text in enumerate(EXAMPLE_STORIES)]
    examples.append({"id": "story-0005", "prompt": "Once upon a time", "max_tokens": 200})
    (out / "examples.jsonl").write_text("".join(json.dumps(line) + "\n" for line in examples))


def main():
    import model as llama
    from tokenizers import Tokenizer
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--per-task", type=int, default=1000)
    args = parser.parse_args()
    tokenizer = Tokenizer.from_file(str(args.model / "tokenizer.json"))
    print(summary(llama.load(args.model), tokenizer, args.seed, args.per_task))


if __name__ == "__main__":
    main()
