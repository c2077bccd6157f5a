"""What Hugging Face transformers says about the bundled model: greedy continuations with their log probabilities.

Writes <out>/model-bundled.jsonl: prompt, prompt_token_ids, token_ids, logprobs. Weights as they are stored (bf16), arithmetic in
float32, no cache. A continuation ends before the first step at which the best token leads by less than 0.02 nat.
"""
import argparse
import json
import pathlib

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

CHATS = ["What is 89 plus 528?", "34 - 607 =", "Sort these words: wheel, queen, panda", "Reverse this list: umbrella, marble, water",
         "Return JSON with the name: Maria, a sailor from Lagos, is 47 years old.",
         "Sentiment: We adored the phone, I smiled the whole time.", "Rewrite as YYYY-MM-DD: 3 Jun 2016", "Tell me a story about a fox."]
TEXTS = ["Once upon a time", "Once upon a time, there was a small", "The", "12 + 30 = ", "naïve 你好 😀"]
LEAST_MARGIN = 0.02


@torch.no_grad()
def continue_greedily(model, ids, count, stop):
    logprobs, start = [], len(ids)
    for _ in range(count):
        log_softmax = torch.log_softmax(model(torch.tensor([ids]), use_cache=False).logits[0, -1].double(), -1)
        values, tokens = log_softmax.topk(2)
        if values[0] - values[1] < LEAST_MARGIN:
            break
        ids = ids + [int(tokens[0])]
        logprobs.append(float(f"{float(values[0]):.7g}"))
        if ids[-1] in stop:
            break
    return ids[start:], logprobs


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="data/model")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("data/fixtures"))
    args = parser.parse_args()
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    model = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32, attn_implementation="eager").eval()
    stop = {tokenizer.convert_tokens_to_ids(t) for t in ("<|end|>", "<|endoftext|>")}
    prompts = [tokenizer.apply_chat_template([{"role": "user", "content": c}], tokenize=False, add_generation_prompt=True) for c in CHATS]
    lines = []
    for prompt in prompts + TEXTS:
        ids = tokenizer(prompt, add_special_tokens=False)["input_ids"]
        token_ids, logprobs = continue_greedily(model, ids, 48, stop)
        print(f"{prompt!r}: {len(token_ids)} tokens: {tokenizer.decode(token_ids)!r}")
        lines.append(json.dumps({"prompt": prompt, "prompt_token_ids": ids, "token_ids": token_ids, "logprobs": logprobs}))
    (args.out / "model-bundled.jsonl").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
