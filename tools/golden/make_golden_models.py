"""Tiny random models of each supported shape (golden_variants.py), with what Hugging Face transformers says about them.

Writes <out>/<name>/config.json, weights and golden.jsonl. The golden lines are an oracle for every backend: the
weights are stored in the named dtype and all arithmetic is float32.
"""
import argparse
import json
import pathlib
import random
import shutil

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

import golden_checkpoints
from golden_variants import LLAMAS, VARIANTS

FULL_LOGITS_FOR = (0, 4)             # prompts whose last logits are written in full


# Everything that a layer adds to the residual stream goes through one of these last.
OUTPUTS = ("o_proj.weight", "down_proj.weight", "down_proj", "c_proj.weight", "dense.weight", "dense_4h_to_h.weight",
           "out_proj.weight", "fc2.weight")
POST_NORMS = ("post_attention_layernorm.weight", "post_feedforward_layernorm.weight",
              "post_per_layer_input_norm.weight")


def random_weights(model, seed, layer_gain=1.0):
    """Large enough that attention is peaked and the best token wins by a margin; biases and norms are not trivial.
    layer_gain: how much more the layers add than they would; with tied embeddings a token would follow itself."""
    generator = torch.Generator().manual_seed(seed)
    model_type = model.config.model_type
    # Their norms multiply by 1 + weight.
    adds_one = (model_type.startswith(("gemma", "nemotron", "qwen3_next", "qwen3_5"))
                and not model_type.startswith(("gemma4", "nemotron_h")))
    for name, p in sorted(stored(model)):
        noise = torch.randn(p.shape, generator=generator)
        last = name.rsplit(".", 1)[-1]
        if last.endswith("bias"):
            p.data = 0.5 * noise
        elif last in ("scale", "per_expert_scale"):
            p.data = 1.0 + 0.3 * noise
        elif last == "layer_scalar":
            p.data = 0.8 + 0.2 * noise
        elif "norm" in name or ".ln_" in name:
            p.data = (0.0 if adds_one and "linear_attn" not in name else 1.0) + 0.3 * noise
        elif "embed" in name or "lm_head" in name or ".wte." in name or ".wpe." in name:
            p.data = 0.5 * noise
        elif last in ("sinks", "A_log", "D"):
            p.data = noise
        elif last in ("gate_up_proj", "up_proj", "down_proj"):  # stacked experts
            is_transposed = model.config.model_type in ("gpt_oss", "llama4_text")
            p.data = 1.5 * noise / p.shape[1 if is_transposed else 2] ** 0.5
        else:
            is_transposed = model.config.model_type == "gpt2"
            p.data = 1.5 * noise / p.shape[0 if is_transposed else 1] ** 0.5
        if model_type.startswith("gemma4") and name.endswith("q_norm.weight"):
            p.data *= 0.5  # nothing else scales the scores
        has_post_norm = model_type in ("gemma2", "gemma3_text", "gemma3", "gemma4_text")
        if name.endswith(POST_NORMS) and has_post_norm:
            p.data += layer_gain - 1
        elif name.endswith(OUTPUTS) and not has_post_norm:
            p.data *= layer_gain


def auto_class(config):
    """Some models that see are not listed among those of text."""
    return AutoModelForCausalLM if type(config) in AutoModelForCausalLM._model_mapping else AutoModelForImageTextToText


def stored(model):
    """All that a checkpoint has."""
    buffers = [(n, b) for n, b in model.named_buffers() if n.endswith(("e_score_correction_bias", "layer_scalar"))]
    return [*model.named_parameters(), *buffers]


def save_weights(model, out, dtype, shards, spell):
    tied = model.config.tie_word_embeddings
    weights = {n: p.detach().to(dtype).contiguous() for n, p in sorted(stored(model))
               if not (tied and n in ("lm_head.weight", "embed_out.weight"))}
    weights = {n: w.contiguous() for n, w in spell(weights).items()}
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


def best(log_softmax, count=5):
    values, tokens = log_softmax.topk(count)
    return [[int(t), float(f"{v:.7g}")] for t, v in zip(tokens, values)]


@torch.no_grad()
def golden_line(model, prompt, new_tokens, full_logits, cached):
    """Greedy continuation without a cache, unless that is what is asked for: every step is one whole forward pass,
    nothing to go wrong."""
    ids, logprobs, top, margin, last, cache = list(prompt), [], [], float("inf"), None, None
    if cached:
        model(torch.tensor([ids[:1]]))  # a short sequence makes it forget how long the one before was
    for _ in range(new_tokens):
        if cached:
            out = model(torch.tensor([ids if cache is None else ids[-1:]]), past_key_values=cache, use_cache=True)
            cache = out.past_key_values
        else:
            out = model(torch.tensor([ids]), use_cache=False)
        logits = out.logits[0, -1].float()
        last = logits if last is None else last
        log_softmax = torch.log_softmax(logits.double(), -1)
        top.append(best(log_softmax))
        values, tokens = log_softmax.topk(2)
        margin = min(margin, float(values[0] - values[1]))
        ids.append(int(tokens[0]))
        logprobs.append(float(values[0]))
    line = {"prompt_token_ids": list(prompt), "token_ids": ids[len(prompt):], "logprobs": shorten(logprobs),
            "top_logprobs": top}
    if full_logits:
        line["last_prompt_logits"] = shorten(last.tolist())
    return line, margin


@torch.no_grad()
def add_every_position(model, line):
    """What follows each position of the prompt."""
    model(torch.tensor([line["prompt_token_ids"][:1]]))
    logits = model(torch.tensor([line["prompt_token_ids"]]), use_cache=False).logits[0].double()
    line["prompt_top_logprobs"] = [best(row) for row in torch.log_softmax(logits, -1)]


def make(name, variant, out, seed):
    out = out / name
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    config = {k: v for k, v in variant.items() if not k.startswith("_")}
    (out / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    attention = variant.get("_attention", "eager")
    parsed = AutoConfig.from_pretrained(out)
    is_mxfp4 = variant.get("_save") == "mxfp4"
    if is_mxfp4:
        del parsed.quantization_config
    model = auto_class(parsed).from_config(parsed, attn_implementation=attention, dtype=torch.float32)
    random_weights(model, seed, 4.0 if name not in LLAMAS and parsed.tie_word_embeddings else 1.0)
    dtype = getattr(torch, config["torch_dtype"])
    spell = getattr(golden_checkpoints, variant["_save"]) if "_save" in variant else lambda weights: weights
    for _, p in stored(model):
        p.data = p.data.to(dtype).float()
    if is_mxfp4:
        golden_checkpoints.round_to_mxfp4(model)
    save_weights(model, out, dtype, variant.get("_shards", 1), spell)
    if not is_mxfp4:
        # The written weights are judged: read back, rounding included, and computed in float32.
        model = auto_class(parsed).from_pretrained(out, attn_implementation=attention, dtype=torch.float32)
    model.eval()
    # Tokens that do not stand for images, where the model has a vision part.
    vocab_size = config["vocab_size"] if "vocab_size" in config else config["boi_token_index"]
    rng, lines, least = random.Random(f"{name} {seed}"), [], float("inf")
    for i, length in enumerate(variant["_lengths"]):
        # A near tie between two tokens would make the greedy continuation a coin toss: draw such a prompt again.
        for _ in range(200):
            prompt = [rng.randrange(vocab_size) for _ in range(length)]
            line, margin = golden_line(model, prompt, variant["_new_tokens"], i in FULL_LOGITS_FOR,
                                       variant.get("_cached", False))
            if margin > 0.02:
                break
        else:
            raise RuntimeError(f"{name}: no prompt of {length} tokens has a comfortable margin")
        least = min(least, margin)
        lines.append({"id": f"{name}-{length}", **line})
    if name not in LLAMAS:
        add_every_position(model, lines[-1])
    text = [json.dumps(line, separators=(",", ":")) for line in lines]
    (out / "golden.jsonl").write_text("\n".join(text) + "\n")
    if "_published" in variant:
        published, weights = getattr(golden_checkpoints, variant["_published"])(config, load_file(out / "model.safetensors"))
        save_file(weights, out / "model.safetensors", metadata={"format": "pt"})
        (out / "config.json").write_text(json.dumps(published, indent=2) + "\n")
    distinct = len({t for line in lines for t in line["token_ids"]})
    print(f"{name}: least margin {least:.3f} nat, {distinct} distinct tokens generated", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("data/fixtures/models"))
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("names", nargs="*", help="of variants; none: all")
    args = parser.parse_args()
    torch.set_num_threads(1)  # one order of summation
    for name in args.names or VARIANTS:
        make(name, VARIANTS[name], args.out, args.seed)


if __name__ == "__main__":
    main()
