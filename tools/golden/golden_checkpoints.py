"""Checkpoints as they are published, where transformers itself names or stores tensors otherwise."""
import re

import torch

# The 16 numbers of 4 bits of MXFP4 (OCP Microscaling Formats 1.0), by their code.
FP4 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0])


def without_prefix(weights):
    return {name.removeprefix("transformer."): w for name, w in weights.items()}


def language_model_first(weights):
    """As the published models with a vision part have it; of that part a tensor is left, to be ignored."""
    out = {re.sub(r"^model\.language_model\.", "language_model.model.", name): w for name, w in weights.items()}
    return {re.sub(r"^model\.(vision_tower)\.", r"\1.vision_model.", re.sub(r"^model\.(multi_modal)", r"\1", name)): w
            for name, w in out.items()}


def split_experts(weights, folder, gate, up, down):
    out = {}
    for name, w in weights.items():
        if name.endswith("experts.gate_up_proj"):
            for e, both in enumerate(w):
                first, second = both.chunk(2)
                out[f"{name[:-13]}.{e}.{gate}.weight"], out[f"{name[:-13]}.{e}.{up}.weight"] = first, second
        elif name.endswith("experts.down_proj"):
            for e, one in enumerate(w):
                out[f"{name[:-10]}.{e}.{down}.weight"] = one
        else:
            out[name] = w
    return {re.sub(r"\bmlp\b", folder, name): w for name, w in out.items()}


def mixtral_experts(weights):
    return split_experts(weights, "block_sparse_moe", "w1", "w3", "w2")


def qwen_experts(weights):
    return split_experts(weights, "mlp", "gate_proj", "up_proj", "down_proj")


FP8_BLOCK = 16
FP8_PARTS = {}  # of the model that is being made: codes and scales by name


def fp8_experts(weights):
    """Experts one by one; the values of projections are those of fp8 (E4M3) with a scale for each block."""
    FP8_PARTS.clear()
    out = qwen_experts(weights)
    for name, w in out.items():
        if not re.search(r"_proj(_with_mqa)?\.weight$", name):
            continue
        rows, cols = (-(-size // FP8_BLOCK) for size in w.shape)
        padded = torch.zeros(rows * FP8_BLOCK, cols * FP8_BLOCK)
        padded[:w.shape[0], :w.shape[1]] = w
        blocks = padded.view(rows, FP8_BLOCK, cols, FP8_BLOCK)
        scales = blocks.abs().amax((1, 3)).clamp(min=1e-8) / 448
        codes = (blocks / scales[:, None, :, None]).view_as(padded)[:w.shape[0], :w.shape[1]].to(torch.float8_e4m3fn)
        of_each = scales.repeat_interleave(FP8_BLOCK, 0).repeat_interleave(FP8_BLOCK, 1)[:w.shape[0], :w.shape[1]]
        FP8_PARTS[name] = codes.contiguous(), scales.contiguous()
        out[name] = codes.float() * of_each
    return out


def kimi_fp8(config, weights):
    """As Kimi K2 is published: DeepSeek-V3 under a name of its own, projections in fp8."""
    published = {**config, "model_type": "kimi_k2", "quantization_config": {
        "activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8", "weight_block_size": [FP8_BLOCK, FP8_BLOCK]}}
    for name, (codes, scales) in FP8_PARTS.items():
        weights[name], weights[name + "_scale_inv"] = codes, scales
    return published, weights


def kimi_k2(config, weights):
    return {**config, "model_type": "kimi_k2"}, weights


def transposed_experts(weights):
    """[E, in, out], as Qwen3-VL-MoE is published."""
    return {name: w.transpose(1, 2).contiguous() if name.endswith((".gate_up_proj", "experts.down_proj")) else w
            for name, w in weights.items()}


def nemotron_h(weights):
    out = {}
    for name, w in weights.items():
        name = re.sub(r"^model\.", "backbone.", name)
        if re.search(r"experts\.(up|down)_proj$", name):
            out.update({re.sub(r"experts\.", f"experts.{e}.", name) + ".weight": one for e, one in enumerate(w)})
        else:
            out[name] = w
    return out


def ernie_experts(weights):
    return {name.replace("gate.moe_statics", "moe_statics"): w for name, w in qwen_experts(weights).items()}


def granite_experts(weights):
    names = {"experts.gate_up_proj": "input_linear.weight", "experts.down_proj": "output_linear.weight",
             "router.weight": "router.layer.weight"}
    return {re.sub("|".join(names), lambda m: names[m[0]], name): w for name, w in weights.items()}


def internlm2(config, weights):
    """q, k and v of a Llama in one matrix: for each KV head its query heads, k, v."""
    config = {**config, "model_type": "internlm2", "architectures": ["InternLM2ForCausalLM"], "bias": False}
    names = {"model.embed_tokens": "model.tok_embeddings", "input_layernorm": "attention_norm",
             "post_attention_layernorm": "ffn_norm", "self_attn.o_proj": "attention.wo", "lm_head": "output",
             "mlp.gate_proj": "feed_forward.w1", "mlp.up_proj": "feed_forward.w3", "mlp.down_proj": "feed_forward.w2"}
    kv_heads, hidden = config["num_key_value_heads"], config["hidden_size"]
    out = {}
    for name, w in weights.items():
        if "q_proj" in name:
            parts = [weights[name.replace("q_proj", p)].view(kv_heads, -1, hidden) for p in ("q_proj", "k_proj", "v_proj")]
            out[name.replace("self_attn.q_proj", "attention.wqkv")] = torch.cat(parts, 1).reshape(-1, hidden).contiguous()
        elif "k_proj" not in name and "v_proj" not in name:
            out[re.sub("|".join(names), lambda m: names[m[0]], name)] = w
    return config, out


def to_mxfp4(w):
    """[E, rows, cols] -> blocks [E, rows, cols / 32, 16] and scales [E, rows, cols / 32], both of bytes."""
    groups = w.float().unflatten(-1, (-1, 32))
    exponent = torch.ceil(torch.log2(groups.abs().amax(-1, keepdim=True) / 6.0)).clamp(-127, 127)
    codes = (groups / 2.0 ** exponent).unsqueeze(-1).sub(FP4).abs().argmin(-1).to(torch.uint8)
    return codes[..., 0::2] | codes[..., 1::2] << 4, (exponent.squeeze(-1) + 127).to(torch.uint8)


def mxfp4(weights):
    """The experts' matrices are stored with a row for each output feature, which transformers holds as a column."""
    out = {}
    for name, w in weights.items():
        if name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            out[name + "_blocks"], out[name + "_scales"] = to_mxfp4(w.transpose(1, 2))
        else:
            out[name] = w
    return out


def round_to_mxfp4(model):
    """Sets the experts' matrices to what mxfp4() stores, unpacked by transformers."""
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors
    for name, p in model.named_parameters():
        if name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            blocks, scales = to_mxfp4(p.data.transpose(1, 2))
            unpacked = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32)
            assert unpacked.shape == p.shape
            p.data = unpacked.contiguous()
