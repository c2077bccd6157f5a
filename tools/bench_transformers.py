#!/usr/bin/env python3
"""Runs a file of tools/make_workload.py through Hugging Face transformers with random weights of a published shape, so that
llm-batch can be compared with it on one machine:

    tools/bench_transformers.py --shape data/shapes/llama-3.1-8b prompts.jsonl --mode generate --batch 64
    tools/bench_transformers.py --shape data/shapes/llama-3.1-8b prompts.jsonl --mode generate_batch

generate: fixed batches of --batch prompts in file order, static cache, compiled decode step. generate_batch: continuous
batching over a paged cache. Prints one JSON line; only wanted output tokens are counted. Needs torch and transformers.
With --model DIR both engines run the same weights: tools/compare_transformers.py --keep DIR makes them, and checks the
answers; then, with output_throughput of the last line of DIR.metrics to compare:

    llm-batch -m DIR --tokenizer data/model prompts.jsonl -o out.jsonl --device cuda --metrics DIR.metrics
"""
import argparse
import json
import sys
import time


def read_requests(path, limit):
    with open(path, encoding="utf-8") as file:
        requests = [json.loads(line) for line in file]
    return requests[:limit] if limit else requests


def make_model(args, torch, transformers):
    if args.model:
        model = transformers.AutoModelForCausalLM.from_pretrained(args.model, attn_implementation="sdpa", dtype=torch.bfloat16)
        return model.to(args.device).eval()
    config = transformers.AutoConfig.from_pretrained(args.shape)
    torch.manual_seed(0)
    torch.set_default_dtype(torch.bfloat16)
    with torch.device(args.device):
        model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="sdpa", dtype=torch.bfloat16)
    torch.set_default_dtype(torch.float32)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.02)
    return model.eval()


def generation_config(transformers, max_new_tokens, **more):
    return transformers.GenerationConfig(do_sample=False, max_new_tokens=max_new_tokens, min_new_tokens=max_new_tokens,
                                         eos_token_id=None, pad_token_id=0, **more)


def run_generate(model, requests, args, torch, transformers):
    """Seconds, not counting compilation: every batch is padded to one shape, and the first is run twice."""
    longest_prompt = max(len(r["prompt_token_ids"]) for r in requests)
    longest_output = max(r["max_tokens"] for r in requests)
    config = generation_config(transformers, longest_output, cache_implementation="static")

    def run(batch):
        rows = [[0] * (longest_prompt - len(r["prompt_token_ids"])) + r["prompt_token_ids"] for r in batch]
        mask = [[0] * (longest_prompt - len(r["prompt_token_ids"])) + [1] * len(r["prompt_token_ids"]) for r in batch]
        while len(rows) < args.batch:  # the last batch: the compiled shape stays
            rows.append(rows[0])
            mask.append(mask[0])
        ids = torch.tensor(rows, device=args.device)
        model.generate(ids, attention_mask=torch.tensor(mask, device=args.device), generation_config=config)

    batches = [requests[i:i + args.batch] for i in range(0, len(requests), args.batch)]
    run(batches[0])
    return timed(torch, args, lambda: [run(batch) for batch in batches])


def run_generate_batch(model, requests, args, torch, transformers):
    """One output length for all: requests with others run in groups of one length."""
    groups = {}
    for request in requests:
        groups.setdefault(request["max_tokens"], []).append(request["prompt_token_ids"])
    if len(groups) > 1:
        sys.exit("generate_batch has one output length for a call; make the file with --output N")
    (max_new_tokens, prompts), = groups.items()
    config = generation_config(transformers, max_new_tokens)
    model.generate_batch(inputs=prompts[:4], generation_config=generation_config(transformers, 4))  # warm-up
    outputs = {}
    seconds = timed(torch, args,
                    lambda: outputs.update(model.generate_batch(inputs=prompts, generation_config=config)))
    lengths = [len(output.generated_tokens) for output in outputs.values()]
    if lengths != [max_new_tokens] * len(prompts):
        sys.exit(f"generate_batch answered {len(lengths)} of {len(prompts)} prompts, with {min(lengths, default=0)} tokens and more")
    return seconds


def timed(torch, args, body):
    synchronize = torch.cuda.synchronize if args.device.startswith("cuda") else lambda: None
    synchronize()
    begin = time.perf_counter()
    body()
    synchronize()
    return time.perf_counter() - begin


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("requests")
    weights = parser.add_mutually_exclusive_group(required=True)
    weights.add_argument("--shape", help="directory with a config.json; weights are random")
    weights.add_argument("--model", help="directory of a checkpoint")
    parser.add_argument("--mode", choices=["generate", "generate_batch"], required=True)
    parser.add_argument("--batch", type=int, default=64, help="rows of a batch of generate")
    parser.add_argument("--limit", type=int, help="only the first N requests")
    parser.add_argument("--device", default="cuda")
    args = parser.parse_args()
    import torch
    import transformers
    requests = read_requests(args.requests, args.limit)
    model = make_model(args, torch, transformers)
    run = run_generate if args.mode == "generate" else run_generate_batch
    seconds = run(model, requests, args, torch, transformers)
    tokens = sum(r["max_tokens"] for r in requests)
    print(json.dumps({"engine": f"transformers {transformers.__version__} {args.mode}", "model": args.model or args.shape,
                      "torch": torch.__version__, "requests": len(requests), "output_tokens": tokens,
                      "seconds": round(seconds, 3), "output_tokens_per_s": round(tokens / seconds, 1)}))


if __name__ == "__main__":
    main()
