"""Conversations rendered by transformers with the templates of <out>/styles, which are ours, in the manner of published ones.

Writes <out>/styles/inputs.json, the conversations, tools and variables of compare_chat_templates.py, and golden.jsonl, which names
them by their index: {"template", "conversation", "tools", "kwargs", flags, "text" or "error"}.
"""
import argparse
import json
import pathlib

from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

from compare_chat_templates import CONVERSATIONS, FLAGS, KWARGS, TOKENS, TOOLS, oracle


def chosen_cases(shift):
    """One combination a conversation, others for each template; as indices."""
    combinations = [(t, k, flags) for t in range(len(TOOLS)) for k in range(len(KWARGS)) for flags in FLAGS]
    for i, messages in enumerate(CONVERSATIONS):
        tools, kwargs, (generate, continue_final) = combinations[(13 * i + 5 * shift) % len(combinations)]
        if len(json.dumps(messages)) < 2000:
            yield {"conversation": i, "tools": tools, "kwargs": kwargs, "add_generation_prompt": generate,
                   "continue_final_message": continue_final}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("data/fixtures/chat_templates"))
    args = parser.parse_args()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE()), **TOKENS)
    lines = []
    for shift, path in enumerate(sorted((args.out / "styles").glob("*.jinja"))):
        template, texts = path.read_text(encoding="utf-8"), 0
        for case in chosen_cases(shift):
            inputs = {"messages": CONVERSATIONS[case["conversation"]], "tools": TOOLS[case["tools"]], "kwargs": KWARGS[case["kwargs"]]}
            result = oracle(tokenizer, template, case | inputs)
            texts += "text" in result
            lines.append(json.dumps({"template": path.name, **case, **result}, ensure_ascii=False))
        print(f"{path.name}: {texts} texts")
    inputs = {"conversations": CONVERSATIONS, "tools": TOOLS, "kwargs": KWARGS}
    (args.out / "styles" / "inputs.json").write_text(json.dumps(inputs, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    (args.out / "styles" / "golden.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
