"""Tiny random models of each supported shape, with what Hugging Face transformers says about them.

Writes <out>/<name>/config.json, weights and golden.jsonl. The golden lines are an oracle for every backend: the
weights are stored in the named dtype and all arithmetic is float32.
"""
import argparse
import json
import pathlib
import random

import torch
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM

LENGTHS = (1, 2, 7, 15, 16, 17, 33)  # ragged, and on both sides of a block of 16
FULL_LOGITS_FOR = (0, 4)             # prompts whose last logits are written in full
NEW_TOKENS = 24

BASE = dict(
    architectures=["LlamaForCausalLM"], model_type="llama", hidden_size=32, intermediate_size=64, num_hidden_layers=2,
    num_attention_heads=4, num_key_value_heads=2, head_dim=8, vocab_size=128, max_position_embeddings=256,
    rope_theta=10000.0, rope_scaling=None, rms_norm_eps=1e-5, hidden_act="silu", attention_bias=False, mlp_bias=False,
    attention_dropout=0.0, tie_word_embeddings=False, bos_token_id=None, eos_token_id=None, torch_dtype="float32")
LLAMA3_ROPE = dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                   original_max_position_embeddings=32)
# Neither qwen2 nor mistral has the two bias switches: qwen2 always has biases on q, k and v, mistral never has any.
UNSWITCHED = {k: v for k, v in BASE.items() if k not in ("attention_bias", "mlp_bias", "rope_scaling")}

VARIANTS = {
    "llama-mha": {**BASE, "num_key_value_heads": 4},
    "llama-gqa": BASE,
    "llama-mqa-tied": {**BASE, "num_key_value_heads": 1, "tie_word_embeddings": True},
    "llama-bias": {**BASE, "attention_bias": True, "mlp_bias": True},
    "llama-fp16": {**BASE, "torch_dtype": "float16"},
    "llama-bf16": {**BASE, "torch_dtype": "bfloat16"},
    "llama-headdim": {**BASE, "head_dim": 16, "num_hidden_layers": 3,
                      "hidden_size": 24, "intermediate_size": 48},
    # With this theta the four wavelengths fall in all three ranges of the llama3 rule: kept, blended, stretched.
    "llama-rope-llama3": {**BASE, "rope_theta": 100.0, "rope_scaling": LLAMA3_ROPE},
    "llama-sharded": BASE,
    "qwen2": {**UNSWITCHED, "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "rms_norm_eps": 1e-6,
              "use_sliding_window": False},
    "mistral": {**UNSWITCHED, "architectures": ["MistralForCausalLM"], "model_type": "mistral",
                "sliding_window": None},
}


def random_weights(model, seed):
    """Large enough that attention is peaked and the best token wins by a margin; biases and norms are not trivial."""
    generator = torch.Generator().manual_seed(seed)
    for name, p in sorted(model.named_parameters()):
        noise = torch.randn(p.shape, generator=generator)
        if "norm" in name:
            p.data = 1.0 + 0.3 * noise
        elif name.endswith("bias"):
            p.data = 0.5 * noise
        elif "embed_tokens" in name or "lm_head" in name:
            p.data = 0.5 * noise
        else:
            p.data = 1.5 * noise / p.shape[1] ** 0.5


def save_weights(model, out, dtype, shards):
    tied = model.config.tie_word_embeddings
    weights = {n: p.detach().to(dtype).contiguous() for n, p in sorted(model.named_parameters())
               if not (tied and n == "lm_head.weight")}
    if shards == 1:
        save_file(weights, out / "model.safetensors", metadata={"format": "pt"})
        return
    names, index = list(weights), {}
    for i in range(shards):
        file = f"model-{i + 1:05d}-of-{shards:05d}.safetensors"
        part = {n: weights[n] for n in names[i::shards]}
        save_file(part, out / file, metadata={"format": "pt"})
        index.update({n: file for n in part})
    size = sum(w.numel() * w.element_size() for w in weights.values())
    text = json.dumps({"metadata": {"total_size": size}, "weight_map": dict(sorted(index.items()))}, indent=1)
    (out / "model.safetensors.index.json").write_text(text + "\n")


def shorten(values):
    return [float(f"{v:.7g}") for v in values]


@torch.no_grad()
def golden_line(model, prompt, full_logits):
    """Greedy continuation without a cache: every step is one whole forward pass, nothing to go wrong."""
    ids, logprobs, top, margin, last = list(prompt), [], [], float("inf"), None
    for _ in range(NEW_TOKENS):
        logits = model(torch.tensor([ids]), use_cache=False).logits[0, -1].float()
        last = logits if last is None else last
        log_softmax = torch.log_softmax(logits.double(), -1)
        values, tokens = log_softmax.topk(5)
        margin = min(margin, float(values[0] - values[1]))
        top.append([[int(t), float(f"{v:.7g}")] for t, v in zip(tokens, values)])
        ids.append(int(tokens[0]))
        logprobs.append(float(values[0]))
    line = {"prompt_token_ids": list(prompt), "token_ids": ids[len(prompt):], "logprobs": shorten(logprobs),
            "top_logprobs": top}
    if full_logits:
        line["last_prompt_logits"] = shorten(last.tolist())
    return line, margin


def make(name, config, out, seed):
    out = out / name
    out.mkdir(parents=True, exist_ok=True)
    (out / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(out), attn_implementation="eager",
                                             dtype=torch.float32)
    random_weights(model, seed)
    save_weights(model, out, getattr(torch, config["torch_dtype"]), 2 if name == "llama-sharded" else 1)
    # What was written is what is judged: read back, rounding included, and computed in float32.
    model = AutoModelForCausalLM.from_pretrained(out, attn_implementation="eager", dtype=torch.float32).eval()
    rng, lines, least = random.Random(f"{name} {seed}"), [], float("inf")
    for i, length in enumerate(LENGTHS):
        # A near tie between two tokens would make the greedy continuation a coin toss: draw such a prompt again.
        for _ in range(200):
            prompt = [rng.randrange(config["vocab_size"]) for _ in range(length)]
            line, margin = golden_line(model, prompt, i in FULL_LOGITS_FOR)
            if margin > 0.02:
                break
        else:
            raise RuntimeError(f"{name}: no prompt of {length} tokens has a comfortable margin")
        least = min(least, margin)
        lines.append(json.dumps({"id": f"{name}-{length}", **line}, separators=(",", ":")))
    (out / "golden.jsonl").write_text("\n".join(lines) + "\n")
    distinct = len({t for line in lines for t in json.loads(line)["token_ids"]})
    print(f"{name}: least margin {least:.3f} nat, {distinct} distinct tokens generated")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("data/fixtures/models"))
    parser.add_argument("--seed", type=int, default=7)
    args = parser.parse_args()
    torch.set_num_threads(1)  # one order of summation
    for name, config in VARIANTS.items():
        make(name, config, args.out, args.seed)


if __name__ == "__main__":
    main()
