#!/usr/bin/env python3
"""Prefill and decode rates of OpenVINO GenAI and CTranslate2 on this machine's CPU, for tools/bench_peers.py, which calls it.

    tools/time_python_peers.py openvino|ctranslate2 MODEL --batch 8 --context 512 --steps 32 --threads 2

Prints "prefill X decode Y", tokens/s. Prompts are independent random tokens; decode is what steps take beyond the first token
of all prompts, prefill the prompt of one, its second run. MODEL is what the program's converter makes of a checkpoint of
random weights in a published shape; such a checkpoint, and both forms of it in int8:

    tools/time_python_peers.py make smollm2-135m CHECKPOINT --tokenizer DIR
    optimum-cli export openvino --task text-generation-with-past --model CHECKPOINT --weight-format int8 MODEL
    ct2-transformers-converter --model CHECKPOINT --quantization int8 --output_dir MODEL

It needs the Python packages openvino-genai or ctranslate2, and for the above torch, transformers and optimum-intel[openvino].
"""
import argparse
import pathlib
import random
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
KINDS = 1000  # of tokens in prompts


def make(shape, checkpoint, tokenizer):
    import torch
    import transformers

    config = transformers.AutoConfig.from_pretrained(ROOT / "data" / "shapes" / shape)
    torch.manual_seed(1)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.save_pretrained(checkpoint)
    names = transformers.AutoTokenizer.from_pretrained(tokenizer)
    for field in ("unk_token", "bos_token", "eos_token"):  # converters want all
        if getattr(names, field) is None:
            setattr(names, field, names.convert_ids_to_tokens(0))
    names.save_pretrained(checkpoint)


def prompts(args, batch):
    rng = random.Random(1)
    return [[rng.randrange(KINDS) for _ in range(args.context)] for _ in range(batch)]


class OpenVino:
    def __init__(self, args):
        import numpy
        import openvino
        import openvino_genai as genai

        self.genai, self.tensor = genai, lambda ids: openvino.Tensor(numpy.array([ids], dtype=numpy.int64))
        scheduler = genai.SchedulerConfig()
        scheduler.cache_size = 4  # GB
        scheduler.max_num_seqs = args.batch
        scheduler.enable_prefix_caching = False
        self.pipeline = genai.ContinuousBatchingPipeline(args.model, scheduler, "CPU",
                                                         {"INFERENCE_NUM_THREADS": args.threads})

    def generate(self, rows, tokens):
        config = self.genai.GenerationConfig(max_new_tokens=tokens, ignore_eos=True, do_sample=False)
        self.pipeline.generate([self.tensor(row) for row in rows], [config] * len(rows))


class CTranslate2:
    def __init__(self, args):
        import ctranslate2
        import json

        self.generator = ctranslate2.Generator(args.model, device="cpu", intra_threads=args.threads, inter_threads=1)
        self.names = json.loads((pathlib.Path(args.model) / "vocabulary.json").read_text())

    def generate(self, rows, tokens):
        self.generator.generate_batch([[self.names[i] for i in row] for row in rows], max_length=tokens, min_length=tokens,
                                      sampling_topk=1, include_prompt_in_result=False)


def seconds(engine, rows, tokens):
    start = time.perf_counter()
    engine.generate(rows, tokens)
    return time.perf_counter() - start


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engine", choices=["openvino", "ctranslate2", "make"])
    parser.add_argument("model", help="of make: a shape of data/shapes")
    parser.add_argument("checkpoint", nargs="?", help="of make: the folder to write")
    parser.add_argument("--tokenizer", help="of make: a folder in Hugging Face's layout")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--steps", type=int, default=32)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    if args.engine == "make":
        return make(args.model, args.checkpoint, args.tokenizer)
    engine = (OpenVino if args.engine == "openvino" else CTranslate2)(args)
    lone, rows = prompts(args, 1), prompts(args, args.batch)
    seconds(engine, lone, 1)  # touches memory for the first time
    prefill = args.context / seconds(engine, lone, 1)
    first, all_ = seconds(engine, rows, 1), seconds(engine, rows, 1 + args.steps)
    if all_ - first < 0.1 * all_:
        sys.exit("the steps take too little time beside the prompts to be seen: more --steps, or less --context")
    print(f"prefill {prefill:.2f} decode {args.batch * args.steps / (all_ - first):.2f}")


if __name__ == "__main__":
    main()
