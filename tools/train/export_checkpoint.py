"""Exports a checkpoint of an unfinished run, so that work on the rest need not wait for the training."""
import argparse
import pathlib

import torch

import evaluate
import model as llama
import tokenizer as bpe


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoint", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--kind", choices=llama.SHAPES, default="main")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    tokenizer = bpe.train(args.seed)
    net = llama.Llama(llama.SHAPES[args.kind])
    net.load_state_dict(torch.load(args.checkpoint, map_location="cpu")["net"])
    bpe.save(tokenizer, args.out, net.s.max_position_embeddings)
    llama.export(net, args.out)
    print(evaluate.summary(llama.load(args.out), tokenizer, args.seed, 100))


if __name__ == "__main__":
    main()
