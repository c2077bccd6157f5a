"""Trains Medusa heads for an exported model, which stays as it is (Medusa-1: Cai et al. 2024), on the answers of the
corpus that made it:

    python3 tools/train/train_heads.py --out medusa-heads
    llm-batch -m data/model --speculative medusa:medusa-heads prompts.jsonl -o answers.jsonl
"""
import argparse
import json
import pathlib
import random
import time

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import nn

import corpus
import model as llama
import tokenizer as bpe
import train

SHORT_BATCH, LONG_BATCH = 64, 4
DECAY = 0.8  # of a head's loss beside that of the head before it


class ResBlock(nn.Module):
    """As published: x + SiLU(W x + b), the identity where training begins."""

    def __init__(self, hidden_size):
        super().__init__()
        self.linear = nn.Linear(hidden_size, hidden_size)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, x):
        return x + F.silu(self.linear(x))


def make_heads(net, num_heads):
    """Each begins as a block that does nothing and the model's own LM head."""
    heads = nn.ModuleList()
    for _ in range(num_heads):
        lm_head = nn.Linear(net.s.hidden_size, net.s.vocab_size, bias=False)
        lm_head.weight.data.copy_(net.model.embed_tokens.weight.data)
        heads.append(nn.Sequential(ResBlock(net.s.hidden_size), lm_head))
    return heads


@torch.no_grad()
def hidden_states(net, ids):
    x = net.model.embed_tokens(ids)
    for layer in net.model.layers:
        x = layer(x, net.cos[:ids.shape[1]], net.sin[:ids.shape[1]])
    return net.model.norm(x)


def batches(tokenizer, seed, step):
    rng = random.Random(f"heads {seed} {step}")
    for samples in ([corpus.short_sample(rng, corpus.FOCUS_WEIGHTS) for _ in range(SHORT_BATCH)],
                    [corpus.long_sample(rng) for _ in range(LONG_BATCH)]):
        yield train.pad([bpe.encode_sample(tokenizer, sample) for sample in samples], "cpu")


def head_outputs(heads, hidden, targets, wanted):
    """For each head, logits and tokens where both the next token and the head's are the model's to give."""
    for k, head in enumerate(heads):
        places = wanted[:, :-1 - k] & wanted[:, 1 + k:]
        yield head(hidden[:, :-1 - k][places]), targets[:, 1 + k:][places]


def accuracy(net, heads, tokenizer, seed):
    """Shares of tokens that are a head's best, and among its four best."""
    counts = torch.zeros(len(heads), 3)
    for step in range(1_000_000, 1_000_004):  # never trained on
        for ids, targets, wanted in batches(tokenizer, seed, step):
            with torch.no_grad():
                for k, (logits, tokens) in enumerate(head_outputs(heads, hidden_states(net, ids), targets, wanted)):
                    is_right = logits.topk(4).indices == tokens[:, None]
                    counts[k] += torch.tensor([is_right[:, 0].sum(), is_right.any(1).sum(), len(tokens)])
    return [f"{100 * best / total:.1f} % ({100 * among / total:.1f} %)" for best, among, total in counts]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="data/model")
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--num-heads", type=int, default=3)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    tokenizer = bpe.train(args.seed)
    net = llama.load(args.model)
    heads = make_heads(net, args.num_heads)
    optimizer = torch.optim.AdamW(heads.parameters(), 1e-3, betas=(0.9, 0.95), weight_decay=0.0)
    start = time.process_time()
    for step in range(args.steps):
        for group in optimizer.param_groups:
            group["lr"] = 2e-3 * min(1, (step + 1) / 20) * (1 - step / args.steps)
        losses = []
        for ids, targets, wanted in batches(tokenizer, args.seed, step):
            outputs = head_outputs(heads, hidden_states(net, ids), targets, wanted)
            parts = [F.cross_entropy(logits, tokens) for logits, tokens in outputs]
            sum(DECAY ** k * part for k, part in enumerate(parts)).backward()
            losses.append([round(float(part.detach()), 3) for part in parts])
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % 20 == 0:
            print(f"step {step}/{args.steps} losses {losses} {time.process_time() - start:.0f} s", flush=True)
    args.out.mkdir(parents=True, exist_ok=True)
    weights = {name: value.detach().bfloat16().contiguous() for name, value in heads.state_dict().items()}
    save_file(weights, args.out / "medusa_lm_head.safetensors", metadata={"format": "pt"})
    config = {"medusa_num_heads": args.num_heads, "medusa_num_layers": 1, "base_model_name_or_path": "data/model"}
    (args.out / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    print("best token right (among the four best):", ", ".join(accuracy(net, heads, tokenizer, args.seed)))


if __name__ == "__main__":
    main()
