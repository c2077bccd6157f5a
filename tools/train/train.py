"""Makes the bundled model and its draft from nothing but a seed. See README.md."""
import argparse
import json
import os
import pathlib
import random
import signal
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F

import corpus
import evaluate
import model as llama
import tokenizer as bpe

SHORT_BATCH, LONG_BATCH = 256, 8
WARMUP = 100
# The learning rate: constant, then falling; at FOCUS_FROM a second, smaller fall begins on the tasks that are learned last.
# In steps of the bundled model's run; a run of another length stretches it.
STEPS, DECAY_FROM, FOCUS_FROM = 2100, 1425, 1803
MUON_LR, ADAM_LR = 0.02, 0.004
# Under torchrun each process takes its share of every batch and they meet once a step. On a busy processor that is much
# faster than one process with as many threads, which meet after every matrix product.
RANK, WORLD = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))


def pad(encoded, device):
    """Inputs, targets and the mask of targets to learn, padded to a multiple of 8."""
    length = (max(len(ids) for ids, _ in encoded) - 1 + 7) // 8 * 8
    ids = torch.zeros(len(encoded), length + 1, dtype=torch.long)
    wanted = torch.zeros(len(encoded), length + 1, dtype=torch.bool)
    for row, (sample, learn) in enumerate(encoded):
        ids[row, :len(sample)] = torch.tensor(sample)
        wanted[row, :len(sample)] = torch.tensor(learn)
    return ids[:, :-1].to(device), ids[:, 1:].to(device), wanted[:, 1:].to(device)


def batches(tokenizer, seed, step, steps, device):
    """The data of one step depends on (seed, step) alone, so that a resumed run sees what an unbroken one does."""
    rng = random.Random(f"{seed} {step}")
    weights = corpus.FOCUS_WEIGHTS if step * STEPS >= FOCUS_FROM * steps else corpus.WEIGHTS
    short = [corpus.short_sample(rng, weights) for _ in range(SHORT_BATCH)][RANK::WORLD]
    long = [corpus.long_sample(rng) for _ in range(LONG_BATCH)][RANK::WORLD]
    # Short answers weigh as much as stories, though they hold far fewer tokens.
    for samples, parts, weight in ((short, 4, 1.0), (long, 2, 0.3)):
        samples = [bpe.encode_sample(tokenizer, sample) for sample in samples]
        samples.sort(key=lambda sample: len(sample[0]))  # neighbours are of like length: little padding
        num_wanted, size = sum(sum(learn) for _, learn in samples), len(samples) // parts
        for i in range(parts):
            yield *pad(samples[i * size:(i + 1) * size], device), num_wanted, weight


class Muon(torch.optim.Optimizer):
    """Momentum whose update is made orthogonal (Jordan et al. 2024): far fewer steps than Adam on these matrices."""

    def __init__(self, params, lr, momentum=0.95, weight_decay=0.02):
        super().__init__(params, dict(lr=lr, momentum=momentum, weight_decay=weight_decay))

    @staticmethod
    def orthogonal(g):
        tall = g.shape[-2] > g.shape[-1]
        x = g.mT if tall else g
        x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
        for _ in range(5):
            a = x @ x.mT
            x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
        return x.mT if tall else x

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            by_shape = {}
            for p in group["params"]:
                momentum = self.state[p].setdefault("momentum", torch.zeros_like(p))
                momentum.mul_(group["momentum"]).add_(p.grad)
                by_shape.setdefault(p.shape, []).append((p, p.grad.add(momentum, alpha=group["momentum"])))
            for shape, items in by_shape.items():  # one batched product for all matrices of a shape
                updates = self.orthogonal(torch.stack([g for _, g in items]))
                for (p, _), update in zip(items, updates):
                    p.mul_(1 - group["lr"] * group["weight_decay"])
                    p.add_(update, alpha=-group["lr"] * max(1, shape[0] / shape[1]) ** 0.5)


def learning_rate(step, steps):
    at = step * STEPS / steps
    if at < FOCUS_FROM:
        return min(1, (step + 1) / WARMUP, 1 - 0.8 * (at - DECAY_FROM) / (FOCUS_FROM - DECAY_FROM))
    return 0.4 * (STEPS - at) / (STEPS - FOCUS_FROM)


def average_gradients(net):
    flat = torch.cat([p.grad.flatten() for p in net.parameters()])
    dist.all_reduce(flat)
    parts = (flat / WORLD).split([p.numel() for p in net.parameters()])
    for p, part in zip(net.parameters(), parts):
        p.grad.copy_(part.view_as(p))


def train(shape, tokenizer, steps, args, checkpoint, report):
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(args.seed)
    net = llama.Llama(shape).to(device)
    forward = torch.compile(net, dynamic=True) if args.compile else net
    matrices = [p for n, p in net.named_parameters() if p.ndim == 2 and "embed" not in n]
    others = [p for n, p in net.named_parameters() if p.ndim != 2 or "embed" in n]
    optimizers = [Muon(matrices, MUON_LR),
                  torch.optim.AdamW(others, ADAM_LR, betas=(0.9, 0.95), weight_decay=0.0)]
    bases, first = [MUON_LR, ADAM_LR], 0
    if checkpoint and checkpoint.exists():
        saved = torch.load(checkpoint, map_location=device)
        net.load_state_dict(saved["net"])
        for optimizer, state in zip(optimizers, saved["optimizers"]):
            optimizer.load_state_dict(state)
        first = saved["step"]
    stopped = []
    signal.signal(signal.SIGTERM, lambda *_: stopped.append(True))  # finish the step, save, leave
    start = last_save = time.time()
    for step in range(first, steps):
        for optimizer, base in zip(optimizers, bases):
            for group in optimizer.param_groups:
                group["lr"] = base * learning_rate(step, steps)
        losses = {}
        for ids, targets, wanted, num_wanted, weight in batches(tokenizer, args.seed, step, steps, device):
            loss = F.cross_entropy(forward(ids, wanted), targets[wanted], reduction="sum") / num_wanted
            (loss * weight).backward()
            losses[weight] = losses.get(weight, 0) + float(loss.detach())
        if WORLD > 1:
            average_gradients(net)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        if step % 20 == 0:
            report(f"step {step}/{steps} short {losses[1.0]:.4f} long {losses[0.3]:.4f} "
                   f"{(time.time() - start) / (step - first + 1):.2f} s/step")
        if RANK == 0 and step % args.eval_every == args.eval_every - 1:
            report(f"step {step} held out: {evaluate.summary(net, tokenizer, args.seed, 50, device)}")
        if RANK == 0 and checkpoint and (stopped or time.time() - last_save > 120):
            last_save = time.time()
            saved = {"net": net.state_dict(), "optimizers": [o.state_dict() for o in optimizers], "step": step + 1}
            torch.save(saved, checkpoint.with_suffix(".new"))
            os.replace(checkpoint.with_suffix(".new"), checkpoint)
        if stopped:
            raise SystemExit(f"stopped after step {step}")
    return net


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", default="data/model")
    parser.add_argument("--draft-out", default="data/draft-model")
    parser.add_argument("--eval-out", default="data/eval")
    parser.add_argument("--only", choices=("tokenizer", "main", "draft"), help="make one part")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--draft-steps", type=int, default=1300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2, help="of each process")
    parser.add_argument("--compile", action="store_true", help="torch.compile: a minute more, then 1.4 times faster")
    parser.add_argument("--eval-every", type=int, default=250)
    parser.add_argument("--checkpoints", type=pathlib.Path, help="folder to save to, and to resume from")
    args = parser.parse_args()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # samples are short: threads cost more than they give
    torch.set_num_threads(args.threads)
    if WORLD > 1:
        dist.init_process_group("gloo")
    report = print if RANK == 0 else lambda *_, **__: None

    tokenizer = bpe.train(args.seed)
    for kind, out, steps in (("main", args.out, args.steps), ("draft", args.draft_out, args.draft_steps)):
        out = pathlib.Path(out)
        out.mkdir(parents=True, exist_ok=True)
        shape = llama.SHAPES[kind]
        if RANK == 0:
            bpe.save(tokenizer, out, shape.max_position_embeddings)
        if args.only in (None, kind):
            checkpoint = args.checkpoints and args.checkpoints / f"{kind}.pt"
            net = train(shape, tokenizer, steps, args, checkpoint, lambda line: report(kind, line, flush=True))
            if RANK > 0:
                continue
            llama.export(net, out)
            print(kind, evaluate.summary(llama.load(out), tokenizer, args.seed, 1000, "cpu"), flush=True)
    if RANK == 0:
        evaluate.write(args.eval_out, args.seed)


if __name__ == "__main__":
    main()
