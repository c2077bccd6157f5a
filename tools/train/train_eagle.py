"""Trains a layer of EAGLE's for an exported model, which stays as it is (Li et al. 2024), on the answers of the corpus that
made it:

    python3 tools/train/train_eagle.py --out eagle-layer
    llm-batch -m data/model --speculative eagle:eagle-layer prompts.jsonl -o answers.jsonl

Where the layer guesses several tokens it takes what it gave itself in place of the model's hidden states, so it is trained
on these, too: each step of training runs it three times, one behind the other.
"""
import argparse
import dataclasses
import json
import pathlib
import time

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import nn

import model as llama
import tokenizer as bpe
from train_heads import batches, hidden_states

NUM_AHEAD, DECAY, STATE_WEIGHT = 3, 0.8, 10.0


class Drafter(nn.Module):
    def __init__(self, net):
        super().__init__()
        self.net = [net]  # whose parameters are not this one's
        size = net.s.hidden_size
        self.fc = llama.linear(2 * size, size)
        self.layer = llama.Layer(net.s)
        self.layer.input_layernorm = nn.Identity()

    def forward(self, ids, states):
        """The tokens behind `states`, and these -> guesses of the states of the tokens."""
        net = self.net[0]
        x = self.fc(torch.cat([net.model.embed_tokens(ids), states], -1))
        return self.layer(x, net.cos[:ids.shape[1]], net.sin[:ids.shape[1]])

    def logits(self, states):
        return F.linear(states, self.net[0].model.embed_tokens.weight)

    def tensors(self):
        named = {f"layers.0.{name}": p for name, p in self.layer.named_parameters()} | {"fc.weight": self.fc.weight}
        return {name: p.detach().bfloat16().contiguous() for name, p in named.items()}


def guesses(drafter, ids, wanted):
    """For each place ahead: the layer's states, the model's, where both tokens are the model's to give."""
    states = hidden_states(drafter.net[0], ids)
    given = states
    for ahead in range(1, NUM_AHEAD + 1):
        given = drafter(ids[:, ahead:], given[:, :-1])
        places = wanted[:, ahead:] & wanted[:, :-ahead]
        yield given[places], states[:, ahead:][places]


def loss_of(drafter, ids, wanted):
    total, parts = 0.0, []
    for ahead, (given, states) in enumerate(guesses(drafter, ids, wanted)):
        wanted_tokens = drafter.logits(states).softmax(-1)
        tokens = -(wanted_tokens * drafter.logits(given).log_softmax(-1)).sum(-1).mean()
        total = total + DECAY ** ahead * (tokens + STATE_WEIGHT * F.smooth_l1_loss(given, states))
        parts.append(round(float(tokens.detach()), 3))
    return total, parts


@torch.no_grad()
def accuracy(drafter, tokenizer, seed):
    """Shares of places where the layer's best token is the model's."""
    right, total = torch.zeros(NUM_AHEAD), torch.zeros(NUM_AHEAD)
    for step in range(1_000_000, 1_000_004):  # never trained on
        for ids, _, wanted in batches(tokenizer, seed, step):
            for ahead, (given, states) in enumerate(guesses(drafter, ids, wanted)):
                is_right = drafter.logits(given).argmax(-1) == drafter.logits(states).argmax(-1)
                right[ahead] += is_right.sum()
                total[ahead] += len(is_right)
    return ", ".join(f"{100 * share:.1f} %" for share in right / total)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="data/model")
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    tokenizer = bpe.train(args.seed)
    net = llama.load(args.model)
    for p in net.parameters():
        p.requires_grad = False
    drafter = Drafter(net)
    optimizer = torch.optim.AdamW(drafter.parameters(), 2e-3, betas=(0.9, 0.95), weight_decay=0.0)
    start = time.process_time()
    for step in range(args.steps):
        for group in optimizer.param_groups:
            group["lr"] = 2e-3 * min(1, (step + 1) / 20) * (1 - step / args.steps)
        losses = []
        for ids, _, wanted in batches(tokenizer, args.seed, step):
            loss, parts = loss_of(drafter, ids, wanted)
            loss.backward()
            losses.append(parts)
        nn.utils.clip_grad_norm_(drafter.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % 20 == 0:
            print(f"step {step}/{args.steps} losses {losses} {time.process_time() - start:.0f} s", flush=True)
    args.out.mkdir(parents=True, exist_ok=True)
    save_file(drafter.tensors(), args.out / "model.safetensors", metadata={"format": "pt"})
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", **dataclasses.asdict(net.s),
              "num_hidden_layers": 1, "hidden_act": "silu", "torch_dtype": "bfloat16"}
    (args.out / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    print("best token the model's, 1, 2, 3 places ahead:", accuracy(drafter, tokenizer, args.seed))


if __name__ == "__main__":
    main()
