#!/usr/bin/env python3
"""Parses lines and records of every endpoint that `vllm run-batch` has by vLLM's own classes:

    tools/check_vllm_types.py PROGRAM VLLM

VLLM: the folder `vllm` of its sources (the sdist, unpacked). Of it only the modules that define requests and answers are
imported, without compiled parts; what they take from the rest of vLLM stands for any type. Needs pydantic, openai, fastapi.
Exit code: 0 all are parsed, 1 some are not.

2026-11-28, vLLM 0.33.0: all parsed.
"""
import base64
import importlib
import importlib.util
import json
import os
import subprocess
import sys
import types
import typing

from pydantic import TypeAdapter

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
FIXTURES = os.path.join(ROOT, "data/fixtures/")
PROTOCOLS = ["serve.engine", "pooling.base", "pooling.embed", "pooling.classify", "pooling.scoring",
             "openai.chat_completion", "openai.completion", "openai.engine"]


class Nothing:
    """Stands for a function, a logger or a decorator; of a validator, what it was given is what comes out."""

    def __call__(self, *args, **_):
        return args[0] if args and (callable(args[0]) or isinstance(args[0], dict)) else self

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return self


class Rest(types.ModuleType):
    """A module of vLLM that is not looked at."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        if name == "random_uuid":
            return lambda: ""
        return Nothing() if name.islower() else typing.Any


class Finder:
    def __init__(self, folder):
        self.files = {f"vllm.entrypoints.{p}.protocol": os.path.join(folder, "entrypoints", *p.split("."), "protocol.py")
                      for p in PROTOCOLS}

    def find_spec(self, name, path, target=None):
        if name != "vllm" and not name.startswith("vllm."):
            return None
        if name in self.files:
            return importlib.util.spec_from_file_location(name, self.files[name])
        return importlib.util.spec_from_loader(name, self, is_package=True)

    def create_module(self, spec):
        module = Rest(spec.name)
        module.__path__ = []
        return module

    def exec_module(self, module):
        pass


def lines_of(url, *bodies):
    return [{"custom_id": f"{url} {i}", "method": "POST", "url": url, "body": {"model": "m", **body}}
            for i, body in enumerate(bodies)]


def cases():
    """(arguments, class of requests, class of answers, lines)"""
    def of(name):
        return importlib.import_module(f"vllm.entrypoints.{name}.protocol")
    scoring, embed, classify = of("pooling.scoring"), of("pooling.embed"), of("pooling.classify")
    chat, completion = of("openai.chat_completion"), of("openai.completion")
    judge = ["-m", FIXTURES + "judges/modules", "--task", "classify"]
    model = ["-m", os.path.join(ROOT, "data/model")]
    hello = {"messages": [{"role": "user", "content": "What is 70 + 80?"}], "max_tokens": 5}
    yield judge, scoring.RerankRequest, scoring.RerankResponse, lines_of(
        "/rerank", {"query": "a", "documents": ["b", "c"]}, {"query": "a", "documents": "b", "top_n": 1})
    yield judge, scoring.ScoreRequest, scoring.ScoreResponse, lines_of(
        "/v1/score", {"text_1": "a", "text_2": ["b", "c"]}, {"queries": "a", "documents": "b"},
        {"queries": "a", "items": ["b"]},
        {"data_1": ["a", "d"], "data_2": ["b", "c"], "truncate_prompt_tokens": 200})
    encoder = ["-m", FIXTURES + "encoders/bert", "--task", "embed"]
    yield encoder, embed.EmbeddingRequest, embed.EmbeddingResponse, lines_of(
        "/v1/embeddings", {"input": "a"}, {"input": ["a", "b"], "dimensions": 4}, {"input": [[5, 6], [7]]},
        {"input": [5, 6], "encoding_format": "base64"}, {"input": "a b c d", "truncate_prompt_tokens": 3})
    labels = ["-m", FIXTURES + "classifiers/xlm-roberta", "--task", "classify"]
    yield labels, classify.ClassificationRequest, classify.ClassificationResponse, lines_of(
        "/v1/classify", {"input": "a"}, {"input": ["a", "b"]})
    yield model, completion.CompletionRequest, completion.CompletionResponse, lines_of(
        "/v1/completions", {"prompt": "Once", "max_tokens": 4, "logprobs": 2},
        {"prompt": [5, 6], "max_tokens": 4, "prompt_logprobs": 1, "n": 2},
        {"prompt": "Once upon", "max_tokens": 4, "echo": True, "logprobs": 1})
    yield model, chat.ChatCompletionRequest, chat.ChatCompletionResponse, lines_of(
        "/v1/chat/completions", hello, {**hello, "n": 2},
        {**hello, "logprobs": True, "top_logprobs": 2, "prompt_logprobs": 1})


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    sys.modules["pybase64"] = base64
    sys.meta_path.insert(0, Finder(sys.argv[2]))
    num_parsed = num_bad = 0
    for arguments, request, answer, lines in cases():
        ran = subprocess.run([sys.argv[1], *arguments, "--progress", "none"], capture_output=True, text=True,
                             input="".join(json.dumps(line) + "\n" for line in lines))
        records = [json.loads(line) for line in ran.stdout.splitlines()]
        if len(records) != len(lines):
            sys.exit(f"{arguments}: {len(records)} records of {len(lines)} lines: {ran.stderr}")
        parsed = [(request, line["body"]) for line in lines]
        for record in records:
            assert set(record) >= {"id", "custom_id", "response", "error"} and record["response"]["request_id"]
            parsed.append((answer, record["response"]["body"]))
            num_bad += record["response"]["status_code"] != 200
        for kind, body in parsed:
            try:
                TypeAdapter(kind).validate_python(body)
                num_parsed += 1
            except Exception as error:  # pydantic's errors, and whatever validators raise
                num_bad += 1
                print(f"{arguments} {kind}: {error}\n{json.dumps(body)[:500]}")
    print(f"requests and answers parsed: {num_parsed}; not parsed, or answered with an error: {num_bad}")
    return 1 if num_bad else 0


if __name__ == "__main__":
    sys.exit(main())
