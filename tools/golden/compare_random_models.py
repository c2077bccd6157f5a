"""Random checkpoints of odd shapes, in transformers and in llm-batch: the same greedy tokens and log probabilities.

    tools/golden/compare_random_models.py PROGRAM [--draws 50] [--seed 1] [name …]

For each variant of golden_variants.py and of MORE below (or those that are named) configurations are drawn: sizes, heads, layers,
windows, experts, biases, tied embeddings. Each gets random weights in float32, prompts of random lengths, and a run of
PROGRAM on them in small steps and blocks. A token may differ only where transformers finds two within 1e-3 nat of each
other; a log probability may differ by 2e-4. Exit code: 0 no difference, 1 some; what differs is printed with its
configuration.

On 2026-11-28, on two cores of an EPYC (Zen 5), with transformers 5.24: none of 10 draws of each name (SKIPPED aside) differed,
nor of 50 of `qwen3_vl_moe` and `ministral3`; on 2026-11-24, with 5.23, none of 50 of each type there was.
"""
import argparse
import json
import pathlib
import random
import subprocess
import sys
import tempfile

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig

import golden_checkpoints
from golden_variants import VARIANTS
from make_golden_models import auto_class, golden_line, random_weights, save_weights

ROOT = pathlib.Path(__file__).resolve().parents[2]
SKIPPED = {"gpt_oss-mxfp4": "its weights are rounded", "kimi_k2-fp8": "likewise; its type is kimi_k2 below",
           "llama-sharded": "llama-gqa in another file layout", "gemma3-nested": "gemma3 in another spelling",
           "qwen3_moe-stacked": "qwen3_moe in another spelling"}
TEXT = {k: v for k, v in VARIANTS["qwen2_5_vl"].items() if k not in ("architectures", "model_type", "vision_config")}
# Types that have no golden model of their own, since another type's reader reads them.
MORE = {
    "gemma4_unified": {**{k: v for k, v in VARIANTS["gemma4"].items() if "per_layer" not in k},  # it has no inputs of layers
                       "architectures": ["Gemma4UnifiedForCausalLM"], "model_type": "gemma4_unified_text"},
    "kimi_k2": {**VARIANTS["deepseek_v3"], "_published": "kimi_k2"},
    "qwen2_vl": dict(
        architectures=["Qwen2VLForConditionalGeneration"], model_type="qwen2_vl",
        vision_config=dict(model_type="qwen2_vl", depth=1, embed_dim=8, hidden_size=32, num_heads=2, patch_size=2),
        text_config={**{k: v for k, v in TEXT.items() if not k.startswith("_")}, "model_type": "qwen2_vl_text"}, _lengths=(1, 17, 40)),
    "qwen2_5_vl-nested": {
        **VARIANTS["qwen2_5_vl"],
        "text_config": {**{k: v for k, v in TEXT.items() if not k.startswith("_")}, "model_type": "qwen2_5_vl_text"}},
}
ALL = {**VARIANTS, **MORE}
NEW_TOKENS = 6
TIE, TOLERANCE = 1e-3, 2e-4


def set_first(config, names, value):
    for name in names:
        if name in config:
            config[name] = value
            return


def draw_experts(rng, c):
    counts = [n for n in ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts") if n in c]
    if not counts or c[counts[0]] == 0:
        return
    groups = rng.choice((1, 2, 3)) if "n_group" in c else 1
    c[counts[0]] = count = groups * rng.randint(2, 6)
    most = count
    if "n_group" in c:
        c["n_group"], c["topk_group"] = groups, rng.randint(1, groups)
        c["routed_scaling_factor"] = rng.choice((1.0, 2.5))
        most = count // groups * c["topk_group"]
    set_first(c, ("num_experts_per_tok", "moe_topk", "moe_k", "top_k_experts"), rng.randint(1, min(4, most)))
    for name, values in {"moe_intermediate_size": range(1, 30), "shared_expert_intermediate_size": range(1, 40),
                         "n_shared_experts": (1, 2), "moe_num_shared_experts": (1, 2), "first_k_dense_replace": (0, 1),
                         "moe_layer_start_index": (0, 1), "norm_topk_prob": (False, True)}.items():
        if name in c:
            c[name] = rng.choice(values)


def draw_nemotron_h(rng, c):
    kinds = "".join(rng.choice("M*-E" if "n_routed_experts" in c else "M*-") for _ in range(rng.randint(0, 5)))
    at = rng.randint(0, len(kinds))
    c["hybrid_override_pattern"] = kinds[:at] + "*" + kinds[at:]
    c["num_hidden_layers"] = len(kinds) + 1
    c["n_groups"] = groups = rng.choice((1, 2, 3))
    c["mamba_num_heads"], c["mamba_head_dim"] = groups * rng.choice((1, 2, 4)), rng.randint(1, 40)
    c["ssm_state_size"], c["conv_kernel"] = rng.randint(1, 40), rng.randint(2, 5)
    c["use_conv_bias"] = rng.choice((False, True))
    if "moe_shared_expert_intermediate_size" in c:
        c["moe_shared_expert_intermediate_size"] = rng.randint(1, 40)


def draw_layers(rng, c):
    """Layers of the kinds that the variant names, in another order and number."""
    if c["model_type"] == "nemotron_h":
        return draw_nemotron_h(rng, c)
    name = next(n for n in ("num_hidden_layers", "n_layer", "n_layers", "num_layers") if n in c)
    count = rng.randint(1, 4)
    if "attention_types" in c:
        c["attention_types"] = [[["global", "local"], count]]
        count *= 2
    if "layer_types" in c:
        c["layer_types"] = [rng.choice(c["layer_types"]) for _ in range(count)]
        if {"linear_attention", "mamba", "conv"} & set(c["layer_types"]):  # one layer has attention at least
            c["layer_types"][rng.randrange(count)] = "attention" if "mamba" in c["layer_types"] else "full_attention"
    for per_layer in ("no_rope_layers",):
        if per_layer in c:
            c[per_layer] = [rng.choice((0, 1)) for _ in range(count - 1)] + [1]
    for of_layers in ("moe_layers", "mlp_only_layers"):
        if of_layers in c:
            c[of_layers] = [i for i in range(count) if rng.random() < 0.5]
    if "max_window_layers" in c:
        c["max_window_layers"] = rng.randint(0, count)
    c[name] = count


def draw_gemma4(rng, c):
    c["global_head_dim"] = 2 * rng.randint(1, 24)
    if rng.random() < 0.5:
        c["num_global_key_value_heads"] = rng.choice([n for n in range(1, 9) if c["num_attention_heads"] % n == 0])
    if "hidden_size_per_layer_input" in c:
        c["hidden_size_per_layer_input"] = rng.choice((0, rng.randint(1, 20)))
        c["vocab_size_per_layer_input"] = c["vocab_size"] + rng.choice((0, 5))
    c["num_hidden_layers"] = rng.randint(1, 7)
    c["layer_types"] = [rng.choice(("full_attention", "sliding_attention")) for _ in range(c["num_hidden_layers"])]
    c["num_kv_shared_layers"] = rng.choice((0, rng.randint(0, c["num_hidden_layers"] - 1)))
    for name in ("attention_k_eq_v", "use_double_wide_mlp", "attention_bias"):
        c[name] = rng.choice((False, True))
    if rng.random() < 0.5:
        c["rope_parameters"] = {
            "full_attention": {"rope_type": "proportional", "rope_theta": rng.choice((1e4, 1e6)), "factor": rng.choice((1.0, 4.0)),
                               "partial_rotary_factor": rng.choice((0.25, 0.5, 1.0))},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}}


def draw_latents(rng, c):
    c["num_key_value_heads"] = c["num_attention_heads"]
    c["kv_lora_rank"], c["qk_rope_head_dim"] = 2 * rng.randint(1, 40), 2 * rng.randint(1, 12)
    c["qk_nope_head_dim"], c["v_head_dim"] = rng.randint(1, 30), rng.randint(1, 30)
    c["q_lora_rank"] = rng.choice((None, rng.randint(1, 40)))
    if c["model_type"] != "deepseek_v2":
        c["rope_interleave"] = rng.choice((False, True))
    if "topk_method" in c:
        c["topk_method"] = rng.choice(("greedy", "group_limited_greedy"))
    if "mlp_layer_types" in c:
        c["mlp_layer_types"] = [rng.choice(("dense", "sparse")) for _ in range(c["num_hidden_layers"])]
    if rng.random() < 0.5:
        c["rope_scaling"] = {"type": "yarn", "factor": rng.choice((1.0, 4.0, 40.0)), "mscale": rng.choice((0.7, 1.0)),
                             "mscale_all_dim": rng.choice((0.7, 1.0)), "original_max_position_embeddings": 32}
    else:
        c.pop("rope_scaling", None)


def draw(rng, config):
    c = {k: v for k, v in config.items() if not k.startswith("_")}
    heads = rng.choice((1, 2, 3, 4, 6, 8)) if c["model_type"] != "codegen" else rng.choice((4, 8))
    kv_heads = rng.choice([n for n in range(1, heads + 1) if heads % n == 0])
    step = 8 if any(n in c for n in ("partial_rotary_factor", "rotary_pct", "rotary_dim")) or c["model_type"] in (
        "glm", "glm4", "glm4_moe", "qwen3_next", "qwen3_5_text", "qwen3_5_moe_text", "stablelm", "phi", "nemotron", "gpt_neox", "phi3") else 2
    head_dim = step * rng.randint(1, 24 // step)
    has_head_dim = "head_dim" in c and c["model_type"] not in ("helium", "stablelm")  # which derive it
    hidden = rng.choice((2 * rng.randint(4, 24), 2 * heads * rng.randint(1, 6))) if has_head_dim else heads * head_dim
    if "head_dim" in c:
        c["head_dim"] = head_dim
    if "rotary_dim" in c:
        c["rotary_dim"] = rng.choice((2, 4, head_dim))
    set_first(c, ("num_attention_heads", "n_head", "n_heads", "num_heads"), heads)
    set_first(c, ("num_key_value_heads", "num_kv_heads"), kv_heads)
    set_first(c, ("hidden_size", "n_embd", "d_model", "n_embed"), hidden)
    for name in ("rope_scaling", "rope_parameters"):
        if "mrope_section" in (c.get(name) or {}):
            pairs = int(head_dim * c[name].get("partial_rotary_factor", 1)) // 2
            c[name] = {**c[name], "mrope_section": [pairs - 2 * (pairs // 3), pairs // 3, pairs // 3]}
    if "word_embed_proj_dim" in c:
        c["word_embed_proj_dim"] = hidden
    for name in ("intermediate_size", "ffn_dim", "ffn_hidden_size", "intermediate_size_mlp"):
        if name in c:
            c[name] = rng.randint(3, 70)
    for name in ("sliding_window", "window_size", "attention_chunk_size"):
        if c.get(name) is not None:
            c[name] = rng.randint(2, 30)
    for name in ("attention_bias", "mlp_bias", "use_bias", "use_qkv_bias", "tie_word_embeddings", "multi_query", "bias",
                 "use_parallel_residual", "qk_layernorm", "use_qk_norm", "qkv_bias"):
        if name in c:
            c[name] = rng.choice((False, True))
    if "vocab_size" in c:
        c["vocab_size"] = rng.randint(40, 130)
    if "query_pre_attn_scalar" in c:
        c["query_pre_attn_scalar"] = rng.randint(4, 40)
    if "linear_num_key_heads" in c:
        c["linear_num_key_heads"] = keys = rng.choice((1, 2, 3))
        c["linear_num_value_heads"] = keys * rng.choice((1, 2, 4))
        c["linear_key_head_dim"], c["linear_value_head_dim"] = rng.randint(1, 40), rng.randint(1, 70)
    draw_layers(rng, c)
    draw_experts(rng, c)
    if "kv_lora_rank" in c:
        draw_latents(rng, c)
    if c["model_type"] in ("gemma4_text", "gemma4_unified_text"):
        draw_gemma4(rng, c)
    c["torch_dtype"] = "float32"
    return c


def whole(variant, config):
    """A drawn text part in the model that sees which it is a part of; no drawn token stands for an image."""
    if "text_config" not in variant:
        return config
    outer = {k: v for k, v in variant.items() if k in ("architectures", "model_type", "vision_config")}
    ids = {k: 1000 + i for i, k in enumerate(k for k in variant if k.endswith(("_token_id", "_token_index")))}
    vision = dict(outer["vision_config"])
    set_first(vision, ("out_hidden_size",) if "out_hidden_size" in vision else ("hidden_size",), config["hidden_size"])
    if config["model_type"].startswith("gemma3"):
        vision = variant["vision_config"]
    return {**outer, **ids, "mm_tokens_per_image": 4, "vision_config": vision, "text_config": config, "torch_dtype": "float32",
            "tie_word_embeddings": config.get("tie_word_embeddings", False)}


def make_model(folder, name, config, seed):
    variant = ALL[name]
    config = whole(variant, config)
    (folder / "config.json").write_text(json.dumps(config))
    parsed = AutoConfig.from_pretrained(folder)
    model = auto_class(parsed).from_config(parsed, attn_implementation=variant.get("_attention", "eager"),
                                             experts_implementation="eager", dtype=torch.float32)
    random_weights(model, seed, 2.0)
    spell = getattr(golden_checkpoints, variant["_save"]) if "_save" in variant else lambda weights: weights
    save_weights(model, folder, torch.float32, 1, spell)
    if "_published" in variant:
        published, weights = getattr(golden_checkpoints, variant["_published"])(
            config, load_file(folder / "model.safetensors"))
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
        (folder / "config.json").write_text(json.dumps(published))
    return model.eval()


def answers_of(program, folder, prompts, rng):
    lines, out = folder / "lines.jsonl", folder / "out.jsonl"
    line = {"max_tokens": NEW_TOKENS, "temperature": 0, "logprobs": 0, "ignore_eos": True, "return_token_ids": True}
    lines.write_text("".join(json.dumps({"prompt_token_ids": p, **line}) + "\n" for p in prompts))
    command = [program, "-m", folder, "--tokenizer", ROOT / "data/model", lines, "-o", out, "--order", "input",
               "--metrics", "none", "--progress", "none", "--device", "cpu", "--block-size", rng.choice((8, 16, 32)),
               "--max-num-batched-tokens", rng.choice((16, 37, 512)), "--restart"]
    run = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if run.returncode != 0:
        return None, run.stderr.strip()
    return [json.loads(line) for line in out.read_text().splitlines()], ""


def compare(golden, record):
    """The largest difference of a log probability up to the first tie, or what is wrong."""
    if "token_ids" not in record:
        return 0.0, json.dumps(record)
    tokens, found = record["token_ids"], [item["logprob"] for item in record["logprobs"]]
    worst = 0.0
    for step, (token, expected) in enumerate(zip(golden["token_ids"], golden["logprobs"])):
        top = golden["top_logprobs"][step]
        if tokens[step] != token:
            return worst, "" if top[0][1] - top[1][1] < TIE else f"token {step} is {tokens[step]}, not {token}"
        worst = max(worst, abs(found[step] - expected))
        if not worst <= TOLERANCE:
            return worst, f"the log probability of token {step} is {found[step]}, not {expected}"
    return worst, ""


def run_draw(program, name, seed):
    rng = random.Random(f"{name} {seed}")
    with tempfile.TemporaryDirectory() as text:
        folder = pathlib.Path(text)
        for _ in range(20):  # what transformers does not take is drawn again
            config = draw(rng, ALL[name].get("text_config", ALL[name]))
            try:
                model = make_model(folder, name, config, seed)
                lengths = ALL[name]["_lengths"]  # some ropes turn other lengths otherwise on purpose
                prompts = [[rng.randrange(config["vocab_size"]) for _ in range(rng.randint(min(lengths), max(lengths)))]
                           for _ in range(4)]
                golden = [golden_line(model, p, NEW_TOKENS, False, ALL[name].get("_cached", False))[0]
                          for p in prompts]
                break
            except Exception as error:  # of any class: each type checks its configuration in its own way
                reason = error
        else:
            return 0, f"transformers takes none of 20 draws: {reason}", config
        records, error = answers_of(program, folder, prompts, rng)
        if records is None:
            return 0, error, config
        worst = 0.0
        for line, record in zip(golden, records):
            difference, wrong = compare(line, record)
            worst = max(worst, difference)
            if wrong:
                return worst, wrong, config
        return worst, "", config


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("--draws", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("names", nargs="*", help="of variants; none: all")
    args = parser.parse_intermixed_args()
    torch.set_num_threads(1)
    num_wrong = 0
    for name in args.names or [n for n in ALL if n not in SKIPPED]:
        worst, wrong = 0.0, 0
        for i in range(args.draws):
            difference, error, config = run_draw(args.program, name, args.seed + i)
            worst = max(worst, difference)
            if error:
                wrong += 1
                print(f"{name} seed {args.seed + i}: {error}\n  {json.dumps(config)}", flush=True)
        print(f"{name}: {args.draws} draws, {wrong} differ, log probabilities within {worst:.1e}", flush=True)
        num_wrong += wrong
    sys.exit(1 if num_wrong else 0)


if __name__ == "__main__":
    main()
