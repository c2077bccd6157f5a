#!/usr/bin/env python3
"""Parses the records of every endpoint by the types of OpenAI's client (pip install openai), strictly, and their calls of
tools in every notation:

    tools/check_openai_types.py PROGRAM [--model data/model]

The lines are made here: chat with and without tools, forced and free, reasoning, forms, log-probabilities, n; completions
with echo and log-probabilities; responses with texts, items, tools and forms; embeddings; lines that are errors. The
types have no name for what OpenAI's API puts in the place of the first echoed token's log-probabilities, null: it is looked
at apart. Exit code: 0 all records parse, 1 some do not.

2026-11-26, openai 3.57.0: see the numbers that it prints; all parsed.
"""
import argparse
import array
import base64
import json
import os
import subprocess
import sys

from openai.types import Completion, CreateEmbeddingResponse
from openai.types.chat import ChatCompletion
from openai.types.responses import Response

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
TYPES = {"/v1/chat/completions": ChatCompletion, "/v1/completions": Completion, "/v1/responses": Response,
         "/v1/embeddings": CreateEmbeddingResponse}
NOTATIONS = ("hermes", "llama3_json", "mistral", "openai", "gemma4", "functiongemma")
FUNCTION = {"name": "add", "description": "adds", "parameters": {
    "type": "object", "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 99}}, "required": ["a"],
    "additionalProperties": False}}
CHAT_TOOLS = [{"type": "function", "function": FUNCTION}]
RESPONSE_TOOLS = [{"type": "function", "strict": True, **FUNCTION}]
SCHEMA = {"type": "object", "properties": {"x": {"type": "boolean"}}, "required": ["x"], "additionalProperties": False}


def chat_bodies():
    messages = [{"role": "user", "content": "What is 70 + 80?"}]
    for more in ({}, {"n": 3, "temperature": 1}, {"logprobs": True, "top_logprobs": 3}, {"max_tokens": 2},
                 {"tools": CHAT_TOOLS}, {"tools": CHAT_TOOLS, "tool_choice": "required"},
                 {"tools": CHAT_TOOLS, "tool_choice": {"type": "function", "function": {"name": "add"}}, "n": 2},
                 {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA, "strict": True}}},
                 {"thinking_token_budget": 4}, {"seed": 1, "stop": ["0"]}, {"temperature": -1}):
        yield {"model": "m", "messages": messages, "max_tokens": 200, **more}


def completion_bodies():
    for more in ({}, {"echo": True}, {"logprobs": 2}, {"n": 2}, {"echo": True, "logprobs": 1}, {"max_tokens": 0},
                 {"echo": True, "logprobs": 2, "max_tokens": 0}, {"echo": True, "logprobs": 0, "n": 2, "temperature": 1}):
        yield {"model": "m", "prompt": "Once upon a time", "max_tokens": 12, **more}


def response_bodies():
    items = [{"role": "user", "content": [{"type": "input_text", "text": "Add 1."}]},
             {"type": "function_call", "call_id": "c", "name": "add", "arguments": "{\"a\": 1}"},
             {"type": "function_call_output", "call_id": "c", "output": "1"}, {"role": "user", "content": "And now?"}]
    for more in ({}, {"instructions": "Be brief.", "temperature": 0.5, "top_p": 0.9, "metadata": {"k": "v"}},
                 {"max_output_tokens": 2}, {"include": ["message.output_text.logprobs"], "top_logprobs": 2},
                 {"tools": RESPONSE_TOOLS, "tool_choice": "required"}, {"tools": RESPONSE_TOOLS},
                 {"tools": RESPONSE_TOOLS, "tool_choice": {"type": "function", "name": "add"}},
                 {"text": {"format": {"type": "json_schema", "name": "n", "schema": SCHEMA, "strict": True}}},
                 {"thinking_token_budget": 3, "parallel_tool_calls": False}, {"store": True}, {"input": items}):
        yield {"model": "m", "input": "What is 70 + 80?", "max_output_tokens": 200, **more}


def embedding_bodies():
    for more in ({}, {"input": ["one", "two"]}, {"dimensions": 8}, {"encoding_format": "base64"}, {"input": ""}):
        yield {"model": "m", "input": "one text", **more}


def lines_of(*kinds):
    return [{"custom_id": f"{url} {i}", "method": "POST", "url": url, "body": body}
            for url, bodies in kinds for i, body in enumerate(bodies)]


def take_echoed_nulls(body):
    """Those of the first token."""
    for choice in body["choices"]:
        logprobs = choice["logprobs"]
        if logprobs and logprobs["token_logprobs"][0] is None:
            assert logprobs["top_logprobs"][0] is None and logprobs["text_offset"][0] == 0
            logprobs["token_logprobs"][0], logprobs["top_logprobs"][0] = 0.0, {}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("--model", default=os.path.join(ROOT, "data/model"))
    args = parser.parse_args()
    template = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}<|assistant|>{% if no %}</think>{% else %}<think>{% endif %}"
    answers = lines_of(("/v1/chat/completions", chat_bodies()), ("/v1/completions", completion_bodies()),
                       ("/v1/responses", response_bodies()))
    num_bad, num_calls, kinds = 0, 0, {}
    path = "/tmp/check_openai_types.%d.jinja" % os.getpid()
    with open(path, "w") as file:
        file.write(template)
    runs = [[]] + [["--tool-call-parser", notation] for notation in NOTATIONS] + [
        ["--tool-call-parser", "openai", "--reasoning-parser", "qwen3"],
        ["--tool-call-parser", "hermes", "--chat-template", path], ["--task", "embed", "--pooling", "last"]]
    for flags in runs:
        lines = lines_of(("/v1/embeddings", embedding_bodies())) if "embed" in flags else answers
        ran = subprocess.run([args.program, "-m", args.model, "--progress", "none", *flags],
                             input="".join(json.dumps(line) + "\n" for line in lines), capture_output=True, text=True)
        records = [json.loads(line) for line in ran.stdout.splitlines()]
        if len(records) != len(lines):
            sys.exit(f"{flags}: {len(records)} records of {len(lines)} lines: {ran.stderr}")
        for record in records:
            url, body = record["custom_id"].split()[0], record["response"]["body"]
            status = record["response"]["status_code"]
            kinds[(url, status)] = kinds.get((url, status), 0) + 1
            try:
                if status != 200:
                    assert set(body["error"]) >= {"message", "type", "param", "code"}
                    continue
                if url == "/v1/completions":
                    take_echoed_nulls(body)
                if url == "/v1/embeddings":
                    for item in body["data"]:
                        if isinstance(item["embedding"], str):  # the client decodes it, too
                            item["embedding"] = array.array("f", base64.b64decode(item["embedding"])).tolist()
                TYPES[url].model_validate(body, strict=True)
                calls = [call for choice in body.get("choices", []) for call in
                         choice.get("message", {}).get("tool_calls", [])]
                for call in calls:
                    assert set(json.loads(call["function"]["arguments"])) == {"a"}, call
                num_calls += len(calls)
                for item in body.get("output", []):
                    assert item["type"] in ("message", "reasoning", "function_call"), item
            except Exception as error:  # pydantic's errors, and asserts
                num_bad += 1
                print(f"{flags} {record['custom_id']}: {error}\n{json.dumps(body)[:500]}")
    os.remove(path)
    print(f"records: {sum(kinds.values())}, by endpoint and status: {kinds}; "
          f"{num_calls} calls in chat answers; not parsed: {num_bad}")
    return 1 if num_bad else 0


if __name__ == "__main__":
    sys.exit(main())
