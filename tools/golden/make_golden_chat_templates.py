"""What jinja2, set up as transformers does, makes of small templates: one or more for each feature of the language.

Writes <out>/language.jsonl: {"template", "context", "text"} or {"template", "context", "error"}. With --random N
--render-chat PROGRAM it instead makes up N expressions and prints where the program and jinja2 differ.
"""
import argparse
import copy
import json
import pathlib
import random
import subprocess
import sys

from transformers.utils.chat_template_utils import _compile_jinja_template

from template_snippets import CONTEXT, RAISING, SNIPPETS, random_template

MESSAGES = [{"role": "user", "content": "hi"}]


def oracle(template, context):
    try:
        compiled = _compile_jinja_template(template)
        return {"text": compiled.render(messages=copy.deepcopy(MESSAGES), tools=None, documents=None, add_generation_prompt=False,
                                        **copy.deepcopy(context))}
    except Exception as error:  # any error of the template is what we want to see
        return {"error": f"{type(error).__name__}: {error}"}


def write(out):
    out.mkdir(parents=True, exist_ok=True)
    lines, unexpected = [], 0
    for template in SNIPPETS + RAISING:
        result = oracle(template, CONTEXT)
        if ("error" in result) != (template in RAISING):
            print(f"unexpected: {template!r} gives {result}")
            unexpected += 1
        lines.append(json.dumps({"template": template, **result}))
    if unexpected:
        sys.exit(1)
    (out / "language.jsonl").write_text("\n".join(lines) + "\n")
    (out / "context.json").write_text(json.dumps(CONTEXT, indent=1) + "\n")
    print(f"{len(lines)} templates")


def compare(count, seed, program):
    rng = random.Random(seed)
    templates = [random_template(rng) for _ in range(count)]
    lines = "".join(json.dumps({"messages": MESSAGES, "template": t, "kwargs": CONTEXT}) + "\n" for t in templates)
    run = subprocess.run([program, "-"], input=lines, capture_output=True, text=True, check=True)
    wrong = good = 0
    for template, line in zip(templates, run.stdout.split("\n")[:-1], strict=True):
        ours, theirs = json.loads(line), oracle(template, CONTEXT)
        good += "text" in theirs
        if ("error" in ours) == ("error" in theirs) and ours.get("text") == theirs.get("text"):
            continue
        wrong += 1
        if wrong <= 40:
            print(f"{template!r}\n  ours   {ours}\n  theirs {theirs}")
    print(f"{count} templates, {good} rendered, {wrong} different")
    return wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("data/fixtures/chat_templates"))
    parser.add_argument("--random", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--render-chat")
    args = parser.parse_args()
    if args.random:
        sys.exit(compare(args.random, args.seed, args.render_chat) > 0)
    write(args.out)


if __name__ == "__main__":
    main()
