"""LoRA adapters with random weights for tiny models (make_golden_models.py), and what PEFT says about them.

Writes <out>/<model>/<adapter>/adapter_config.json, adapter_model.safetensors and golden.jsonl: prompt_token_ids, the
greedy token_ids behind them, and last_prompt_logits. The adapters are stored in bfloat16 or as named; PEFT applies them
in float64, so that the oracle's own rounding is none of the difference. Needs peft beside requirements.txt.

golden_merged.jsonl has the same of PEFT's merge_and_unload() in float32, for the prompts of golden.jsonl; the weights of
layers are then rounded to the model's dtype, and the merged model runs in float64. It is not made where an adapter of the embeddings is merged into a table that is the LM head too:
there merge_and_unload() changes both; nor of adapters of experts. --merged makes these files only, of the adapters that are there.
"""
import argparse
import json
import pathlib
import random
import shutil

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from peft.utils import transformers_weight_conversion
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

# Else PEFT takes the names of a shared expert's projections for those of all experts.
transformers_weight_conversion._MOE_TARGET_MODULE_MAPPING.pop("qwen2_moe", None)

LLAMA = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
GPTJ = ["q_proj", "k_proj", "v_proj", "out_proj", "fc_in", "fc_out"]
NEOX = ["query_key_value", "dense", "dense_h_to_4h", "dense_4h_to_h"]
# (model, adapter): arguments of LoraConfig, and the dtype that it is stored in.
ADAPTERS = {
    ("llama-gqa", "rank-8"): (dict(r=8, lora_alpha=16, target_modules=LLAMA), "bfloat16"),
    ("llama-gqa", "rank-1"): (dict(r=1, lora_alpha=2, target_modules=["q_proj", "v_proj"]), "float32"),
    ("llama-gqa", "rank-16-stabilised"): (dict(r=16, lora_alpha=8, use_rslora=True, target_modules=LLAMA), "float16"),
    ("llama-gqa", "patterns"): (dict(r=4, lora_alpha=8, target_modules=LLAMA,
                                     rank_pattern={"q_proj": 2, "model.layers.1.mlp.down_proj": 64},
                                     alpha_pattern={"layers.0.self_attn.o_proj": 3}), "bfloat16"),
    ("llama-gqa", "rank-256"): (dict(r=256, lora_alpha=256, target_modules=["v_proj"]), "bfloat16"),
    ("llama-gqa", "vocabulary"): (dict(r=8, lora_alpha=16, target_modules=["embed_tokens", "lm_head", "v_proj"],
                                       rank_pattern={"lm_head": 3}), "float32"),
    ("gemma2", "vocabulary"): (dict(r=4, lora_alpha=8, target_modules=["embed_tokens", "o_proj"]), "bfloat16"),
    ("gpt_neox", "vocabulary"): (dict(r=5, lora_alpha=5, target_modules=["embed_in", "embed_out"]), "bfloat16"),
    ("qwen3", "rank-64"): (dict(r=64, lora_alpha=32, target_modules=["k_proj", "o_proj", "up_proj"],
                                layers_to_transform=[1]), "bfloat16"),
    ("gemma2", "rank-8"): (dict(r=8, lora_alpha=8, target_modules=LLAMA), "bfloat16"),
    ("gemma4", "rank-8"): (dict(r=8, lora_alpha=8, target_modules=LLAMA), "bfloat16"),
    ("gemma4-experts", "rank-4"): (dict(r=4, lora_alpha=8, target_modules=LLAMA), "bfloat16"),
    ("gemma4-keys", "rank-8"): (dict(r=8, lora_alpha=8, target_modules=LLAMA), "bfloat16"),
    ("qwen3_5-text", "rank-4"): (dict(r=4, lora_alpha=8, target_modules=LLAMA + [
        "in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a", "out_proj"]), "bfloat16"),
    ("qwen3_next", "rank-4"): (dict(r=4, lora_alpha=8, target_modules=[
        "q_proj", "k_proj", "v_proj", "o_proj", "in_proj_qkvz", "in_proj_ba", "out_proj", "shared_expert_gate",
        "shared_expert.gate_proj", "shared_expert.up_proj", "shared_expert.down_proj"]), "bfloat16"),
    # PEFT stacks matrices of all experts.
    ("qwen3_next", "experts"): (dict(r=2, lora_alpha=4, target_modules=["q_proj", "out_proj"], target_parameters=[
        "experts.gate_up_proj", "experts.down_proj", "mlp.gate.weight"], alpha_pattern={"gate_up_proj": 6}), "bfloat16"),
    ("gpt_oss", "experts"): (dict(r=2, lora_alpha=4, target_modules=["q_proj", "o_proj"], target_parameters=[
        "experts.gate_up_proj", "experts.down_proj"]), "bfloat16"),
    ("lfm2", "rank-4"): (dict(r=4, lora_alpha=8, target_modules=[
        "q_proj", "k_proj", "v_proj", "self_attn.out_proj", "conv.in_proj", "conv.out_proj", "w1", "w2", "w3"]), "bfloat16"),
    ("granitemoehybrid", "rank-4"): (dict(r=4, lora_alpha=8, target_modules=[
        "q_proj", "k_proj", "v_proj", "o_proj", "in_proj", "out_proj", "input_linear", "output_linear"]), "bfloat16"),
    ("nemotron_h", "rank-4"): (dict(r=4, lora_alpha=8, target_modules=[
        "q_proj", "k_proj", "v_proj", "o_proj", "in_proj", "up_proj", "down_proj"]), "bfloat16"),
    ("phi3", "rank-8"): (dict(r=8, lora_alpha=8, target_modules=["qkv_proj", "o_proj", "gate_up_proj", "down_proj"]),
                         "bfloat16"),
    ("gpt2", "rank-16"): (dict(r=16, lora_alpha=16, fan_in_fan_out=True, target_modules=["c_attn", "c_proj", "c_fc"]),
                          "bfloat16"),
    ("gpt_neox", "rank-8"): (dict(r=8, lora_alpha=8, target_modules=NEOX), "bfloat16"),
    ("falcon-new", "rank-8"): (dict(r=8, lora_alpha=8, target_modules=NEOX), "bfloat16"),
    ("gptj", "rank-8"): (dict(r=8, lora_alpha=8, target_modules=GPTJ), "bfloat16"),
}
LENGTHS, NEW_TOKENS, LEAST_MARGIN = (1, 7, 17), 12, 0.02


def base_model(models, name):
    model = AutoModelForCausalLM.from_pretrained(models / name, dtype=torch.float32, attn_implementation="eager",
                                                 experts_implementation="eager")
    return model.eval().requires_grad_(False)


def save_adapter(model, options, dtype, out, generator):
    """With weights that change what the model says: a fresh adapter's B is zero."""
    adapted = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", **options))
    adapted.save_pretrained(out)
    (out / "README.md").unlink(missing_ok=True)
    weights = load_file(out / "adapter_model.safetensors")
    for name, value in sorted(weights.items()):
        if name.endswith("base_layer.weight"):  # the model's own, which PEFT saves beside adapters of a vocabulary
            continue
        noise = torch.randn(value.shape, generator=generator)
        scale = value.shape[1] ** -0.5 * (0.7 if "lora_B" in name else 1.0)
        weights[name] = (scale * noise).to(getattr(torch, dtype))
    save_file(weights, out / "adapter_model.safetensors", metadata={"format": "pt"})
    config = json.loads((out / "adapter_config.json").read_text())
    config["base_model_name_or_path"] = None
    config["target_modules"] = sorted(config["target_modules"])  # PEFT keeps a set
    (out / "adapter_config.json").write_text(json.dumps(config, indent=1, sort_keys=True) + "\n")


@torch.no_grad()
def golden_line(model, prompt):
    ids, margin, last = list(prompt), float("inf"), None
    for _ in range(NEW_TOKENS):
        logits = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1].double()
        last = logits if last is None else last
        values, tokens = logits.topk(2)
        margin = min(margin, float(values[0] - values[1]))
        ids.append(int(tokens[0]))
    return {"prompt_token_ids": prompt, "token_ids": ids[len(prompt):],
            "last_prompt_logits": [float(f"{v:.9g}") for v in last.tolist()]}, margin


def make(models, name, adapter, options, dtype, out, seed):
    out = out / name / adapter
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    save_adapter(base_model(models, name), options, dtype, out, torch.Generator().manual_seed(seed))
    plain = base_model(models, name).double()
    model = PeftModel.from_pretrained(base_model(models, name), out).double().eval()
    rng, lines, num_same = random.Random(f"{name} {adapter} {seed}"), [], 0
    for length in LENGTHS:
        for _ in range(200):
            prompt = [rng.randrange(plain.config.vocab_size) for _ in range(length)]
            line, margin = golden_line(model, prompt)
            if margin > LEAST_MARGIN:
                break
        else:
            raise RuntimeError(f"{name}/{adapter}: no prompt of {length} tokens has a comfortable margin")
        num_same += golden_line(plain, prompt)[0]["token_ids"] == line["token_ids"]
        lines.append(line)
    text = [json.dumps(line, separators=(",", ":")) for line in lines]
    (out / "golden.jsonl").write_text("\n".join(text) + "\n")
    print(f"{name}/{adapter}: {num_same} of {len(lines)} answers are as without it", flush=True)


def make_merged(models, name, adapter, out):
    out = out / name / adapter
    plain = base_model(models, name)
    if adapter == "experts":  # whose matrices stay beside the weights
        return
    targets = json.loads((out / "adapter_config.json").read_text())["target_modules"]
    if plain.config.tie_word_embeddings and set(targets) & {"embed_tokens", "embed_in", "wte"}:
        return
    stored = json.loads((models / name / "config.json").read_text()).get("torch_dtype", "float32")
    model = PeftModel.from_pretrained(plain, out).merge_and_unload()
    for parameter, value in model.named_parameters():
        if ".layers." in parameter or ".h." in parameter:
            value.data = value.data.to(getattr(torch, stored)).float()
    model = model.double().eval()
    goldens = [json.loads(line) for line in (out / "golden.jsonl").read_text().splitlines()]
    lines = [golden_line(model, golden["prompt_token_ids"])[0] for golden in goldens]
    text = [json.dumps(line, separators=(",", ":")) for line in lines]
    (out / "golden_merged.jsonl").write_text("\n".join(text) + "\n")
    num_same = sum(a["token_ids"] == b["token_ids"] for a, b in zip(lines, goldens))
    largest = max(abs(x - y) for a, b in zip(lines, goldens)
                  for x, y in zip(a["last_prompt_logits"], b["last_prompt_logits"]))
    print(f"{name}/{adapter}, merged: {num_same} of {len(lines)} answers as unmerged, logits within {largest:.2g}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", type=pathlib.Path, default=pathlib.Path("data/fixtures/models"))
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("data/fixtures/adapters"))
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--adapter", help="make this one only")
    parser.add_argument("--merged", action="store_true", help="make golden_merged.jsonl only")
    parser.add_argument("names", nargs="*", help="of models; none: all")
    args = parser.parse_args()
    torch.set_num_threads(1)  # one order of summation
    for (name, adapter), (options, dtype) in ADAPTERS.items():
        if name not in (args.names or [name]) or adapter != (args.adapter or adapter):
            continue
        if not args.merged:
            make(args.models, name, adapter, options, dtype, args.out, args.seed)
        make_merged(args.models, name, adapter, args.out)


if __name__ == "__main__":
    main()
