"""Medusa heads with random weights for a tiny model, and what the published definition says about them.

Writes <out>/medusa_lm_head.safetensors, <out>/config.json and <out>/golden.jsonl: prompt_token_ids, and for each head
`top`, the four best [id, logprob] behind the prompt. The heads are Sequential(ResBlock, …, Linear) on the last hidden
state that Hugging Face transformers gives (Medusa: Cai et al. 2024). Weights as they are stored, arithmetic in float32.
A prompt is left out where two of a head's five best are closer than 0.005 nat.
"""
import argparse
import json
import pathlib

import torch
from safetensors.torch import save_file
from torch import nn
from transformers import AutoModelForCausalLM

NUM_HEADS, NUM_BLOCKS, NUM_BEST, LEAST_MARGIN = 3, 2, 4, 0.005


class ResBlock(nn.Module):
    def __init__(self, hidden_size):
        super().__init__()
        self.linear = nn.Linear(hidden_size, hidden_size)
        self.act = nn.SiLU()

    def forward(self, x):
        return x + self.act(self.linear(x))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="data/fixtures/models/llama-gqa")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("data/fixtures/medusa"))
    args = parser.parse_args()
    torch.manual_seed(7)
    model = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32, attn_implementation="eager").eval()
    hidden, vocab = model.config.hidden_size, model.config.vocab_size
    heads = nn.ModuleList(
        nn.Sequential(*(ResBlock(hidden) for _ in range(NUM_BLOCKS)), nn.Linear(hidden, vocab, bias=False))
        for _ in range(NUM_HEADS))
    for parameter in heads.parameters():
        nn.init.normal_(parameter, std=1.5 * hidden ** -0.5)
        parameter.data = parameter.data.bfloat16().float()
    args.out.mkdir(parents=True, exist_ok=True)
    save_file({name: value.bfloat16() for name, value in heads.state_dict().items()},
              args.out / "medusa_lm_head.safetensors", metadata={"format": "pt"})
    config = {"medusa_num_heads": NUM_HEADS, "medusa_num_layers": NUM_BLOCKS}
    (args.out / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    lines = []
    for length in range(1, 13):
        ids = [int(i) for i in torch.randint(3, vocab, (length,))]
        with torch.no_grad():
            state = model.model(torch.tensor([ids]), use_cache=False).last_hidden_state[0, -1]
            best = [torch.log_softmax(head(state).double(), -1).topk(NUM_BEST + 1) for head in heads]
        if any((one.values[:-1] - one.values[1:]).min() < LEAST_MARGIN for one in best):
            continue
        top = [[[int(i), round(float(v), 6)] for i, v in zip(one.indices[:NUM_BEST], one.values)] for one in best]
        lines.append(json.dumps({"prompt_token_ids": ids, "top": top}))
    print(len(lines), "prompts")
    (args.out / "golden.jsonl").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
