"""Compares render_chat with transformers' apply_chat_template: every *.jinja file under a folder, on conversations of
many shapes, as a library and as lines of llm-batch. Exit code 1 where one differs.

    compare_chat_templates.py --render-chat build/tools/render_chat --templates ../shared/data/templates
"""
import argparse
import copy
import json
import pathlib
import subprocess
import sys

from transformers import PreTrainedTokenizerFast
from tokenizers import Tokenizer, models

TOKENS = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}


def user(text):
    return {"role": "user", "content": text}


def assistant(text, **more):
    return {"role": "assistant", "content": text, **more}


def system(text):
    return {"role": "system", "content": text}


def tool(text, name="get_weather", call="call12345"):
    return {"role": "tool", "name": name, "tool_call_id": call, "content": text}


def call(name, arguments, call_id="call12345", **more):
    return {"role": "assistant", **more,
            "tool_calls": [{"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}]}


WEATHER = {"type": "function", "function": {
    "name": "get_weather", "description": "Current weather in a city — \"now\" & <soon>",
    "parameters": {"type": "object", "required": ["city"], "properties": {
        "city": {"type": "string", "description": "Name, e.g. Zürich", "enum": ["Zürich", "Paris"]},
        "unit": {"type": ["string", "null"], "default": "C"},
        "days": {"type": "array", "items": {"type": "integer"}, "nullable": True},
        "options": {"type": "object", "properties": {"deep": {"type": "number", "default": 1.5}}},
        "any_of": {"oneOf": [{"type": "string", "description": "text"}, {"type": "number", "default": 3}]}}},
    "return": {"type": "string"}}}
SEARCH = {"type": "function", "function": {"name": "search", "description": "Search", "parameters": {
    "type": "object", "properties": {"q": {"type": "string"}, "deep": {"type": "boolean"}, "n": {"type": "integer", "default": 10},
                                     "tags": {"type": "array", "items": {"type": "string"}},
                                     "many": {"type": "array", "items": {"type": "object", "properties": {"a": {"type": "string"}}}}}}}}
EMPTY = {"type": "function", "function": {"name": "now", "description": "Time"}}

CONVERSATIONS = [
    [user("Hello!")],
    [system("Be brief."), user("Hi")],
    [user("a"), assistant("b"), user("c")],
    [system("You are.\n"), user("  spaces  "), assistant("\nnew\nlines\n"), user("Ünï 你好 😀 e\u0301")],
    [user("<|im_end|> {{ x }} {% if %} {# #} \\ \" '"), assistant("<think>\nhm\n</think>\n\nanswer"), user("more")],
    [system("/no_think be good"), user("q"), assistant("<think>x</think>y")],
    [system(""), user("")],
    [user("a"), user("b")],
    [assistant("starts"), user("x")],
    [system("a"), system("b"), user("c")],
    [user("w?"), call("get_weather", {"city": "Zürich", "n": 1.0, "x": None, "y": [True, 1e-7, {"k": "v\n"}]}), tool("{\"t\": 20}")],
    [user("w?"), call("get_weather", {"city": "Paris"}), tool("20"), assistant("It is 20."), user("thanks")],
    [system("s"), user("w?"), call("get_weather", {"city": "Paris"}, content=""), tool("20"), tool("21"), assistant("ok")],
    [user("w?"), call("get_weather", {"city": "Paris"}, content=None), tool("20")],
    [user("w?"), call("get_weather", "{\"city\": \"Paris\"}"), tool("20"), user("and?")],
    [user("w?"), call("get_weather", {"city": "Paris"}, content="Let me look."), tool("20"), assistant("20"), user("?")],
    [user("t"), assistant("answer", reasoning_content="because"), user("u")],
    [user("t"), assistant("answer", thinking="because"), user("u"), assistant("x", reasoning="r")],
    [user("w"), call("search", {"q": "x"}, thinking="I search"), tool("[1, 2]", "search"), assistant("done", thinking="ok")],
    [user([{"type": "text", "text": "part one"}, {"type": "image"}, {"type": "text", "text": "part two"}])],
    [{"role": "developer", "content": "dev"}, user("x")],
    [user("w?"), call("get_weather", {"city": "a"}, call_id="short"), tool("1", call="short")],
    [user("w?"), {"role": "tool_results", "content": {"content": 5}, "tool_call_id": "call12345"}],
    [{"role": "ipython", "content": {"a": [1, 2]}}, user("x")],
    [{"role": "strange", "content": "x"}],
    [user(" \t\n\u3000 wide and trailing \u00a0"), assistant("  kept?  ")],
    [user("x"), assistant("Partial answer that goes on ")],
    [user("x"), assistant("<think>\nso")],
    [user("x" * 3000), assistant("y" * 3000), user("z")],
]
TOOLS = [None, [WEATHER], [WEATHER, SEARCH, EMPTY]]
KWARGS = [{}, {"enable_thinking": False}, {"enable_thinking": True, "tools_in_user_message": False, "builtin_tools": ["browser", "python", "code_interpreter"]},
          {"documents": [{"title": "T", "text": "Body", "doc_id": 1}], "thinking": True, "reasoning_effort": "high", "controls": {"length": "long"},
           "model_identity": "You are X.", "custom_tools": [SEARCH], "date_string": "1 Jan 2030"}]
FLAGS = [(False, False), (True, False), (False, True)]


def cases():
    for messages in CONVERSATIONS:
        for tools in TOOLS:
            for kwargs in KWARGS:
                for generate, continue_final in FLAGS:
                    yield {"messages": messages, "tools": tools, "kwargs": kwargs, "add_generation_prompt": generate,
                           "continue_final_message": continue_final}


def oracle(tokenizer, template, case):
    try:
        case = copy.deepcopy(case)
        return {"text": tokenizer.apply_chat_template(
            case["messages"], tools=case["tools"], chat_template=template, tokenize=False,
            add_generation_prompt=case["add_generation_prompt"], continue_final_message=case["continue_final_message"], **case["kwargs"])}
    except Exception as error:  # whatever a template raises: the other side must refuse too
        return {"error": f"{type(error).__name__}: {error}"}


def as_line(case, openai):
    """The case as an input line. A line has no image parts and no content that is an object, but for a tool's."""
    request = {"messages": case["messages"], "add_generation_prompt": case["add_generation_prompt"],
               "continue_final_message": case["continue_final_message"], "chat_template_kwargs": case["kwargs"]}
    if case["tools"]:
        request |= {"tools": case["tools"], "tool_choice": "auto"}
    if not openai:
        return request
    return {"custom_id": "1", "method": "POST", "url": "/v1/chat/completions", "body": {"model": "m", **request}}


def line_cases():
    more = [
        [user([{"type": "text", "text": "part one"}, {"type": "text", "text": "part two"}]), assistant("x"), user("y")],
        [system([{"type": "text", "text": "be"}]), user([{"type": "text", "text": "one"}])],
        [user("w?"), call("get_weather", "{\"city\": \"Paris\", \"n\": [1.0, null]}"), tool("20")],
        [user("w?"), call("now", "", content=None), tool([{"type": "text", "text": "20"}], "now")],
        [user("w?"), call("now", "not JSON", content=None), tool("20", "now")],
    ]
    bad = [{"type": "image"}]
    for case in cases():
        contents = [m.get("content") for m in case["messages"]]
        fit = all(isinstance(c, str) or c is None or (isinstance(c, list) and bad[0] not in c) for c in contents)
        if fit and all(m.get("content") is not None or m.get("tool_calls") for m in case["messages"]):
            yield case
            if case["messages"] == CONVERSATIONS[0]:
                yield from ({**case, "messages": messages} for messages in more)


def line_oracles(tokenizer, template, case):
    """What a line may be rendered as: arguments in strings are objects; parts stay or are joined."""
    case = copy.deepcopy(case)
    for message in case["messages"]:
        for made in message.get("tool_calls", []):
            arguments = made["function"]["arguments"]
            try:
                value = json.loads(arguments or "{}") if isinstance(arguments, str) else arguments
            except ValueError:
                value = arguments
            made["function"]["arguments"] = value
    yield oracle(tokenizer, template, case)
    for message in case["messages"]:
        if isinstance(message.get("content"), list):
            message["content"] = "\n".join(part["text"] for part in message["content"])
    yield oracle(tokenizer, template, case)


def compare_lines(args, tokenizer, path, template):
    wrong = total = joined = 0
    chosen = list(line_cases())
    for openai in False, True:
        lines = "".join(json.dumps(as_line(case, openai)) + "\n" for case in chosen)
        run = subprocess.run([args.render_chat, "--lines", str(path)] + [f"{k}={v}" for k, v in TOKENS.items()], input=lines,
                             capture_output=True, text=True, check=True)
        for case, out in zip(chosen, run.stdout.split("\n")[:-1], strict=True):
            ours = json.loads(out)
            as_given, with_joined = line_oracles(tokenizer, template, case)
            has_parts = any(isinstance(m.get("content"), list) for m in case["messages"])
            good = [as_given, with_joined] if has_parts else [as_given]
            total += 1
            joined += has_parts and ours.get("text") == with_joined.get("text") != as_given.get("text")
            if any(("error" in ours) == ("error" in x) and ours.get("text") == x.get("text") for x in good):
                continue
            wrong += 1
            if wrong <= args.show:
                print(f"--- {path.name}, as a line\n{json.dumps(case)[:600]}\nours   {json.dumps(ours)[:1500]}\ntheirs {json.dumps(as_given)[:1500]}")
    print(f"{path.name}: {total} lines, {joined} with joined parts, {wrong} different")
    return wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--render-chat", required=True)
    parser.add_argument("--templates", type=pathlib.Path, required=True)
    parser.add_argument("--show", type=int, default=3, help="differences to show for each template")
    args = parser.parse_args()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE()), **TOKENS)
    lines = "".join(json.dumps(case) + "\n" for case in cases())
    bad = 0
    for path in sorted(args.templates.glob("**/*.jinja")):
        template = path.read_text(encoding="utf-8")
        run = subprocess.run([args.render_chat, str(path)] + [f"{k}={v}" for k, v in TOKENS.items()], input=lines,
                             capture_output=True, text=True)
        got = [json.loads(line) for line in run.stdout.split("\n")[:-1]]
        if run.returncode != 0:
            print(f"{path.name}: {run.stderr.strip()}")
            bad += 1
            continue
        wrong = texts = 0
        for case, ours in zip(cases(), got, strict=True):
            theirs = oracle(tokenizer, template, case)
            texts += "text" in theirs
            if ("error" in ours) == ("error" in theirs) and ours.get("text") == theirs.get("text"):
                continue
            wrong += 1
            if wrong <= args.show:
                print(f"--- {path.name}\n{json.dumps(case)[:600]}\nours   {json.dumps(ours)[:1500]}\ntheirs {json.dumps(theirs)[:1500]}")
        print(f"{path.name}: {len(got)} conversations, {texts} rendered, {len(got) - texts} refused by both, {wrong} different")
        bad += wrong + compare_lines(args, tokenizer, path, template)
    sys.exit(bad > 0)


if __name__ == "__main__":
    main()
