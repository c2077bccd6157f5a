"""Trains LoRA adapters of the bundled model, one for each of adapter_tasks.py, and writes them as PEFT does:

    python3 tools/train/train_adapters.py --out data/adapters --eval-out data/eval
    llm-batch -m data/model --adapter-dir data/adapters data/eval/heldout_adapters.jsonl

The model stays as it is. On each adapter's held-out questions its answers are compared whole.
"""
import argparse
import json
import math
import pathlib
import random
import time

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from torch import nn

import adapter_tasks
import model as llama
import tokenizer as bpe
import train

BATCH, WARMUP = 64, 30
STEPS = {"roman": 700, "french": 1150, "letters": 2100}
LEARNING_RATE = 4e-3


class LoraLinear(nn.Module):
    """W x + (alpha / rank) B A x, with W fixed."""

    def __init__(self, base, rank, alpha):
        super().__init__()
        self.weight, self.scale = base.weight, alpha / rank
        self.lora_A = nn.Parameter(torch.randn(rank, base.in_features) / math.sqrt(base.in_features))
        self.lora_B = nn.Parameter(torch.zeros(base.out_features, rank))

    def forward(self, x):
        return F.linear(x, self.weight) + self.scale * F.linear(F.linear(x, self.lora_A), self.lora_B)


def adapt(net, rank, alpha):
    """Puts an adapter on every projection; returns its modules by name."""
    net.requires_grad_(False)
    modules = {}
    for name, parent in list(net.named_modules()):
        for child, linear in list(parent.named_children()):
            if isinstance(linear, nn.Linear):
                modules[f"{name}.{child}"] = LoraLinear(linear, rank, alpha)
                setattr(parent, child, modules[f"{name}.{child}"])
    return modules


def encode(tokenizer, samples):
    return train.pad([bpe.encode_sample(tokenizer, [("user", q), ("assistant", a)]) for q, a in samples], "cpu")


@torch.no_grad()
def share_right(net, tokenizer, lines):
    """As evaluate.py: an answer is right where the expected token is the most likely one at every position."""
    right = 0
    for i in range(0, len(lines), BATCH):
        pairs = [(line["messages"][0]["content"], line["metadata"]["expected"]) for line in lines[i:i + BATCH]]
        ids, targets, wanted = encode(tokenizer, pairs)
        is_wrong = torch.zeros(wanted.shape, dtype=torch.bool)
        is_wrong[wanted] = net(ids, wanted).argmax(-1) != targets[wanted]
        right += int((~is_wrong.any(1)).sum())
    return right / len(lines)


def train_adapter(task, args, tokenizer, lines):
    torch.manual_seed(args.seed)
    net = llama.load(args.model)
    modules = adapt(net, args.rank, args.alpha)
    if args.start:
        load_weights(modules, args.start / task)
    parameters = [p for module in modules.values() for p in (module.lora_A, module.lora_B)]
    optimizer = torch.optim.AdamW(parameters, args.learning_rate, betas=(0.9, 0.95), weight_decay=0.0)
    steps, start = args.steps or STEPS[task], time.process_time()
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = args.learning_rate * min(1, (step + 1) / WARMUP) * (1 - step / steps)
        rng = random.Random(f"{task} {args.seed} {step}" + (" again" if args.start else ""))
        ids, targets, wanted = encode(tokenizer, [adapter_tasks.draw(rng, task, held_out=False) for _ in range(BATCH)])
        loss = F.cross_entropy(net(ids, wanted), targets[wanted])
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % 100 == 99:
            share = share_right(net, tokenizer, lines)
            print(f"{task} step {step + 1}/{steps} loss {loss.item():.4f} held out {share:.1%} "
                  f"{time.process_time() - start:.0f} s", flush=True)
    return modules


def weight_name(name, part):
    return f"base_model.model.{name}.{part}.weight"


def load_weights(modules, folder):
    weights = load_file(folder / "adapter_model.safetensors")
    for name, module in modules.items():
        for part in ("lora_A", "lora_B"):
            getattr(module, part).data.copy_(weights[weight_name(name, part)].float())


def export(modules, task, args):
    """Weights in bf16, under PEFT's names."""
    out = args.out / task
    out.mkdir(parents=True, exist_ok=True)
    weights = {}
    for name, module in modules.items():
        for part in ("lora_A", "lora_B"):
            weights[weight_name(name, part)] = getattr(module, part).detach().bfloat16().contiguous()
    save_file(weights, out / "adapter_model.safetensors", metadata={"format": "pt"})
    config = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": "data/model", "r": args.rank,
              "lora_alpha": args.alpha, "lora_dropout": 0.0, "bias": "none", "use_rslora": False, "use_dora": False,
              "fan_in_fan_out": False, "inference_mode": True, "modules_to_save": None,
              "target_modules": sorted({name.split(".")[-1] for name in modules})}
    (out / "adapter_config.json").write_text(json.dumps(config, indent=2) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="data/model")
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--eval-out", type=pathlib.Path, help="folder for the held-out questions")
    parser.add_argument("--task", choices=adapter_tasks.TASKS, help="this one only")
    parser.add_argument("--rank", type=int, default=8)
    parser.add_argument("--alpha", type=int, default=16)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--start", type=pathlib.Path, help="folder with adapters to go on from")
    parser.add_argument("--learning-rate", type=float, default=LEARNING_RATE, help="at its peak")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    tokenizer = Tokenizer.from_file(f"{args.model}/tokenizer.json")
    lines = adapter_tasks.held_out_set(args.seed, 100)
    if args.eval_out:
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (args.eval_out / "heldout_adapters.jsonl").write_text(text)
    for task in [args.task] if args.task else adapter_tasks.TASKS:
        modules = train_adapter(task, args, tokenizer, [line for line in lines if line["adapter"] == task])
        export(modules, task, args)


if __name__ == "__main__":
    main()
