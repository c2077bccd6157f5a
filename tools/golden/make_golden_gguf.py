"""Tiny GGUF files with known contents, written with the gguf package as llama.cpp's converter lays models out.

<out>/blocks.gguf: two rows of each format, and beside each tensor T what the package makes of it, as T.expected (F32).
<out>/<name>.gguf and <name>.golden.jsonl: models, and what Hugging Face transformers says about them when it is given the
dequantised weights, in float32.
"""
import argparse
import json
import pathlib
import random

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as T
from transformers import AutoConfig, AutoModelForCausalLM

from make_golden_models import BASE, UNSWITCHED, golden_line, random_weights

LENGTHS = (1, 2, 15, 17, 33)
BLOCK_TYPES = (T.F32, T.F16, T.BF16, T.Q8_0, T.Q4_0, T.Q4_1, T.Q5_0, T.Q5_1, T.Q4_K, T.Q5_K, T.Q6_K)
LLAMA3 = dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=8192)
SMALL = dict(hidden_size=64, intermediate_size=96, head_dim=16)
LARGE = dict(hidden_size=256, intermediate_size=256, head_dim=64, num_hidden_layers=1)  # whole superblocks
QWEN2 = {**UNSWITCHED, "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "rms_norm_eps": 1e-6, "use_sliding_window": False}

# name: config, formats of the matrices in turn
VARIANTS = {
    "llama-f32": ({**BASE, "rope_scaling": LLAMA3, "rope_theta": 500000.0}, (T.F32,)),
    "llama-f16": ({**BASE, "head_dim": 16, "tie_word_embeddings": True}, (T.F16, T.BF16)),
    "llama-bias-q8_0": ({**BASE, **SMALL, "attention_bias": True, "mlp_bias": True}, (T.Q8_0,)),
    "llama-k": ({**BASE, **LARGE, "tie_word_embeddings": True}, (T.Q6_K, T.Q4_K, T.Q5_K)),
    "qwen2-q4_0": ({**QWEN2, **SMALL}, (T.Q4_0, T.Q8_0, T.Q5_0, T.Q4_1, T.Q5_1)),
}

LAYER_NAMES = {
    "input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "post_attention_layernorm": "ffn_norm", "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down"}
MODEL_NAMES = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


def gguf_name(name):
    stem, kind = name.rsplit(".", 1)
    if stem in MODEL_NAMES:
        return f"{MODEL_NAMES[stem]}.{kind}"
    _, _, layer, part = stem.split(".", 3)
    return f"blk.{layer}.{LAYER_NAMES[part]}.{kind}"


def interleave(weights, heads):
    """Rows of q and k as llama.cpp's rotation wants them: the two numbers of a pair beside each other."""
    rows = weights.shape[0]
    return weights.reshape(heads, 2, rows // heads // 2, -1).swapaxes(1, 2).reshape(weights.shape)


def pack_scales(scales, mins):
    """Eight scales and eight minima of six bits in twelve bytes."""
    out = np.zeros(scales.shape[:-1] + (12,), np.uint8)
    out[..., 0:4] = scales[..., :4] | (scales[..., 4:] >> 4) << 6
    out[..., 4:8] = mins[..., :4] | (mins[..., 4:] >> 4) << 6
    out[..., 8:12] = (scales[..., 4:] & 15) | (mins[..., 4:] & 15) << 4
    return out


def quantize_k(values, kind):
    """A plain quantiser for the superblocks that the package only reads."""
    x = values.reshape(-1, 256).astype(np.float32)
    halves = lambda a: a.astype(np.float16).reshape(-1, 1).view(np.uint8)
    if kind == T.Q6_K:
        sub = x.reshape(-1, 16, 16)
        scale = np.abs(sub).max(-1) / 31
        d = (scale.max(-1, keepdims=True) / 127).astype(np.float16).astype(np.float32)
        sc = np.round(scale / d).clip(1, 127)
        q = (np.round(sub / (d * sc)[..., None]).clip(-32, 31) + 32).astype(np.uint8).reshape(-1, 2, 4, 32)
        low = np.concatenate([q[:, :, 0:2] & 15 | (q[:, :, 2:4] & 15) << 4], -1).reshape(-1, 128)
        high = (q[:, :, 0] >> 4 | q[:, :, 1] >> 4 << 2 | q[:, :, 2] >> 4 << 4 | q[:, :, 3] >> 4 << 6).reshape(-1, 64)
        blocks = np.concatenate([low, high, sc.astype(np.int8).view(np.uint8), halves(d)], -1)
    else:
        top = 15 if kind == T.Q4_K else 31
        sub = x.reshape(-1, 8, 32)
        low_end = np.maximum(-sub.min(-1), 0)
        scale = (sub.max(-1) + low_end) / top
        d = (scale.max(-1, keepdims=True) / 63).astype(np.float16).astype(np.float32)
        dmin = (low_end.max(-1, keepdims=True) / 63).astype(np.float16).astype(np.float32)
        sc, m = np.round(scale / d).clip(1, 63), np.round(low_end / dmin).clip(0, 63)
        q = np.round((sub + (dmin * m)[..., None]) / (d * sc)[..., None]).clip(0, top).astype(np.uint8)
        pairs = q.reshape(-1, 4, 2, 32) & 15
        parts = [halves(d), halves(dmin), pack_scales(sc.astype(np.uint8), m.astype(np.uint8))]
        if kind == T.Q5_K:
            parts.append(np.bitwise_or.reduce((q >> 4) << np.arange(8, dtype=np.uint8)[None, :, None], 1))
        parts.append((pairs[:, :, 0] | pairs[:, :, 1] << 4).reshape(-1, 128))
        blocks = np.concatenate(parts, -1)
    return blocks.reshape(values.shape[0], -1)


def quantize(values, kind):
    if kind in (T.Q4_K, T.Q5_K, T.Q6_K):
        return quantize_k(values, kind)
    return gguf.quantize(values, kind)


def make_blocks(out):
    generator = np.random.default_rng(3)
    writer = gguf.GGUFWriter(out / "blocks.gguf", "none")
    for kind in BLOCK_TYPES:
        raw = quantize(generator.normal(size=(2, 256)).astype(np.float32), kind)
        if kind in (T.Q4_K, T.Q5_K, T.Q6_K):  # every bit of scales and numbers, not only what a quantiser would choose
            noise = generator.integers(0, 256, raw.shape, dtype=np.uint8)
            head, tail = (0, 2) if kind == T.Q6_K else (4, 0)
            raw[:, head:raw.shape[1] - tail] = noise[:, head:raw.shape[1] - tail]
        writer.add_tensor(kind.name, raw, raw_dtype=kind)
        writer.add_tensor(f"{kind.name}.expected", gguf.dequantize(raw, kind).astype(np.float32))
    write(writer)


def write(writer):
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def llama3_factors(config):
    """What each frequency is divided by, as the converter stores it."""
    dim, rope = config["head_dim"], config["rope_scaling"]
    factors = []
    for i in range(dim // 2):
        wavelength = 2 * np.pi * config["rope_theta"] ** (2 * i / dim)
        original = rope["original_max_position_embeddings"]
        low, high = original / rope["low_freq_factor"], original / rope["high_freq_factor"]
        if wavelength < high:
            factors.append(1.0)
        elif wavelength > low:
            factors.append(rope["factor"])
        else:
            smooth = (original / wavelength - rope["low_freq_factor"]) / (rope["high_freq_factor"] - rope["low_freq_factor"])
            factors.append(1 / ((1 - smooth) / rope["factor"] + smooth))
    return np.array(factors, np.float32)


def add_values(writer, config):
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])


def make_model(name, config, kinds, out, seed):
    config = {**config, "torch_dtype": "float32"}
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config), attn_implementation="eager", dtype=torch.float32).eval()
    random_weights(model, seed)
    writer = gguf.GGUFWriter(out / f"{name}.gguf", config["model_type"])
    add_values(writer, config)
    if config.get("rope_scaling"):
        writer.add_tensor("rope_freqs.weight", llama3_factors(config))
    matrices = 0
    for tensor, parameter in sorted(model.named_parameters()):
        if tensor == "lm_head.weight" and config["tie_word_embeddings"]:
            continue
        values = parameter.detach().numpy()
        rotated = config["model_type"] == "llama" and (".q_proj." in tensor or ".k_proj." in tensor)
        heads = config["num_attention_heads" if ".q_proj." in tensor else "num_key_value_heads"]
        if rotated:
            values = interleave(values, heads)
        if values.ndim == 1:
            writer.add_tensor(gguf_name(tensor), values)
            continue
        kind = kinds[matrices % len(kinds)]
        matrices += 1
        raw = quantize(np.ascontiguousarray(values), kind)
        writer.add_tensor(gguf_name(tensor), raw, raw_dtype=kind)
        read_back = gguf.dequantize(raw, kind).astype(np.float32).reshape(values.shape)
        assert np.abs(read_back - values).max() <= 0.2 * np.abs(values).max(), (tensor, kind)
        if rotated:
            rows = values.shape[0]
            read_back = read_back.reshape(heads, rows // heads // 2, 2, -1).swapaxes(1, 2).reshape(values.shape)
        parameter.data = torch.from_numpy(np.ascontiguousarray(read_back))
    write(writer)
    model.tie_weights()
    lines, rng = [], random.Random(f"{name} {seed}")
    for length in LENGTHS:
        for _ in range(200):
            prompt = [rng.randrange(config["vocab_size"]) for _ in range(length)]
            line, margin = golden_line(model, prompt, False)
            if margin > 0.02:
                break
        else:
            raise RuntimeError(f"{name}: no prompt of {length} tokens has a comfortable margin")
        lines.append(json.dumps(line, separators=(",", ":")))
    (out / f"{name}.golden.jsonl").write_text("\n".join(lines) + "\n")
    print(f"{name}: {(out / f'{name}.gguf').stat().st_size} bytes")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("data/fixtures/gguf"))
    parser.add_argument("--seed", type=int, default=7)
    args = parser.parse_args()
    torch.set_num_threads(1)
    args.out.mkdir(parents=True, exist_ok=True)
    make_blocks(args.out)
    for name, (config, kinds) in VARIANTS.items():
        make_model(name, config, kinds, args.out, args.seed)


if __name__ == "__main__":
    main()
