"""Tiny GGUF files with known contents, written with the gguf package as llama.cpp's converter lays models out.

<out>/blocks.gguf: two rows of each format, and beside each tensor T what the package makes of it, as T.expected (F32).
<out>/<name>.gguf and <name>.golden.jsonl: models, and what Hugging Face transformers says about them when it is given
the dequantised weights, in float32.
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

import golden_gguf_decoders as decoders
import golden_gguf_layouts as layouts
import golden_gguf_newer as newer
from gguf_quantisers import quantize
from golden_variants import BASE, FALCON, GPT_NEOX, NO_ROPE, UNSWITCHED, of
from golden_variants import SMALL as OTHER
from make_golden_models import golden_line, random_weights, stored

LENGTHS = (1, 2, 15, 17, 33)
NEW_TOKENS = 16
BLOCK_TYPES = (T.F32, T.F16, T.BF16, T.Q8_0, T.Q4_0, T.Q4_1, T.Q5_0, T.Q5_1, T.Q4_K, T.Q5_K, T.Q6_K,
               T.MXFP4, T.Q2_K, T.Q3_K, T.IQ4_NL, T.IQ4_XS)
LLAMA3 = dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
              original_max_position_embeddings=8192)
SMALL = dict(hidden_size=64, intermediate_size=96, head_dim=16)
LARGE = dict(hidden_size=256, intermediate_size=256, head_dim=64, num_hidden_layers=1)  # whole superblocks
QWEN2 = {**UNSWITCHED, "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "rms_norm_eps": 1e-6,
         "use_sliding_window": False}

TINY = dict(vocab_size=96, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, max_position_embeddings=128, rope_theta=10000.0, rms_norm_eps=1e-5,
            bos_token_id=None, eos_token_id=None, pad_token_id=None)
GEMMA = dict(head_dim=16, hidden_activation="gelu_pytorch_tanh", query_pre_attn_scalar=16, sliding_window=11,
             num_key_value_heads=1)
LONG = dict(short_factor=[1.0, 1.1, 1.3, 1.7], long_factor=[1.0, 1.5, 3.0, 7.0])
MIX = (T.Q8_0, T.Q4_0, T.F16)
OTHER = {**OTHER, "num_hidden_layers": 2, "intermediate_size": 64}
WITHOUT_ROPE = {k: v for k, v in OTHER.items() if k not in NO_ROPE}
SIZES = ("hidden_size", "num_hidden_layers", "num_attention_heads")

# name: config, formats of the matrices in turn, and of some the file's architecture
VARIANTS = {
    "qwen3": (of("Qwen3ForCausalLM", "qwen3", TINY, head_dim=16), MIX),
    "gemma": (of("GemmaForCausalLM", "gemma", TINY, head_dim=16, hidden_act="gelu_pytorch_tanh",
                 num_key_value_heads=1), MIX),
    "gemma2": (of("Gemma2ForCausalLM", "gemma2", TINY, **GEMMA, attn_logit_softcapping=3.0,
                  final_logit_softcapping=5.0), MIX),
    "gemma3": (of("Gemma3ForCausalLM", "gemma3_text", TINY,
                  **{**GEMMA, "num_hidden_layers": 7, "rope_theta": 1000000.0},
                  rope_local_base_freq=10000.0, rope_scaling={"rope_type": "linear", "factor": 8.0}), MIX),
    "phi3": (of("Phi3ForCausalLM", "phi3", TINY, partial_rotary_factor=0.5, sliding_window=11, head_dim=8), MIX),
    "phi3-longrope": (of("Phi3ForCausalLM", "phi3", TINY, head_dim=8, original_max_position_embeddings=128,
                         rope_scaling={"type": "longrope", **LONG}), MIX),
    "granite": (of("GraniteForCausalLM", "granite", TINY, head_dim=8, embedding_multiplier=3.0, residual_multiplier=0.4,
                   attention_multiplier=0.25, logits_scaling=2.5, tie_word_embeddings=True), MIX),
    "smollm3": (of("SmolLM3ForCausalLM", "smollm3", TINY, head_dim=8, num_hidden_layers=4,
                   tie_word_embeddings=True), MIX),
    "olmo2": (of("Olmo2ForCausalLM", "olmo2", TINY, head_dim=8), MIX),
    "starcoder2": (of("Starcoder2ForCausalLM", "starcoder2", TINY, head_dim=8, sliding_window=11, norm_epsilon=1e-5,
                      without=("rms_norm_eps",)), MIX),
    "mixtral": (of("MixtralForCausalLM", "mixtral", TINY, head_dim=8, num_local_experts=4, num_experts_per_tok=2), MIX),
    "qwen3moe": (of("Qwen3MoeForCausalLM", "qwen3_moe", TINY, head_dim=16, num_experts=6, num_experts_per_tok=3,
                    moe_intermediate_size=32, norm_topk_prob=True), MIX),
    "split": (of("Qwen3ForCausalLM", "qwen3", TINY, head_dim=16), MIX),  # in several files
    "gpt2": (of("GPT2LMHeadModel", "gpt2", WITHOUT_ROPE, n_embd=32, n_layer=2, n_head=4, n_positions=128, n_inner=None,
                without=SIZES), MIX),
    "gpt_neox": (of(*GPT_NEOX, OTHER, rotary_pct=0.5, rotary_emb_base=10000, layer_norm_eps=1e-5, hidden_act="gelu",
                    use_parallel_residual=True, without=("num_key_value_heads",)), MIX),
    "falcon": (of(*FALCON, OTHER, multi_query=True, parallel_attn=True, new_decoder_architecture=False, bias=False,
                  without=NO_ROPE), MIX),
    "falcon-new": (of(*FALCON, OTHER, new_decoder_architecture=True, num_kv_heads=2, bias=False, ffn_hidden_size=64,
                      without=NO_ROPE), MIX),
    "bloom": (of("BloomForCausalLM", "bloom", WITHOUT_ROPE, n_layer=2, n_head=4, hidden_size=32, seq_length=128,
                 without=SIZES[1:]), MIX),
    "mpt": (of("MptForCausalLM", "mpt", WITHOUT_ROPE, d_model=32, n_layers=2, n_heads=4, max_seq_len=128,
               attn_config={"clip_qkv": 1.5, "alibi": True, "alibi_bias_max": 8}, without=SIZES), MIX),
    "gpt_oss": (of("GptOssForCausalLM", "gpt_oss", TINY, head_dim=8, num_local_experts=4, num_experts_per_tok=2,
                   sliding_window=11, rope_theta=150000.0,
                   rope_scaling=dict(rope_type="yarn", factor=4.0, beta_fast=32.0, beta_slow=1.0, truncate=False,
                                     original_max_position_embeddings=32)), (T.Q8_0, T.MXFP4, T.F16)),
    **newer.variants(TINY, of, T),
    **decoders.variants(TINY, of, T),
    "llama-f32": ({**BASE, "rope_scaling": LLAMA3, "rope_theta": 500000.0}, (T.F32,)),
    "llama-f16": ({**BASE, "head_dim": 16, "tie_word_embeddings": True}, (T.F16, T.BF16)),
    "llama-bias-q8_0": ({**BASE, **SMALL, "attention_bias": True, "mlp_bias": True}, (T.Q8_0,)),
    "llama-k": ({**BASE, **LARGE, "tie_word_embeddings": True}, (T.Q6_K, T.Q4_K, T.Q5_K)),
    "llama-few": ({**BASE, **LARGE, "tie_word_embeddings": True}, (T.Q2_K, T.IQ4_XS, T.Q3_K, T.IQ4_NL, T.MXFP4)),
    "qwen2-q4_0": ({**QWEN2, **SMALL}, (T.Q4_0, T.Q8_0, T.Q5_0, T.Q4_1, T.Q5_1)),
}

LAYER_NAMES = {
    "input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "self_attn.qkv_proj": "attn_qkv",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm", "post_attention_layernorm": "ffn_norm", "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down", "mlp.gate_up_proj": "ffn_up", "mlp.c_fc": "ffn_up",
    "mlp.c_proj": "ffn_down", "pre_feedforward_layernorm": "ffn_norm", "post_feedforward_layernorm": "post_ffw_norm",
    "mlp.gate": "ffn_gate_inp", **newer.LAYER_NAMES}
AROUND = {"gemma2", "gemma3_text", "olmo2", "glm4_moe", "seed_oss"}  # a norm before a sublayer and one after it, or only after
ARCHITECTURES = {"gemma3_text": "gemma3", "mixtral": "llama", "qwen3_moe": "qwen3moe", **newer.ARCHITECTURES}
PERMUTED = {"llama", "mixtral", "granite", "smollm3"}
MODEL_NAMES = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


def gguf_name(name, model_type):
    stem, kind = name.rsplit(".", 1)
    if kind == "e_score_correction_bias":
        return f"blk.{stem.split('.')[2]}.exp_probs_b.bias"
    if stem in MODEL_NAMES:
        return f"{MODEL_NAMES[stem]}.{kind}"
    _, _, layer, part = stem.split(".", 3)
    if part == "post_attention_layernorm" and model_type in AROUND:
        return f"blk.{layer}.post_attention_norm.{kind}"
    return f"blk.{layer}.{LAYER_NAMES[part]}.{kind}"


def interleave(weights, heads):
    """Rows of q and k as llama.cpp's rotation wants them: the two numbers of a pair beside each other."""
    rows = weights.shape[0]
    return weights.reshape(heads, 2, rows // heads // 2, -1).swapaxes(1, 2).reshape(weights.shape)


HALVES = {T.Q2_K: (80, 82), T.Q3_K: (108,), T.IQ4_NL: (0,), T.IQ4_XS: (0,)}  # where a block's scales in fp16 are


def random_blocks(generator, kind, rows=2, cols=256):
    """Blocks of formats that the package only reads: any codes, and scales that are numbers."""
    size, num_bytes = gguf.GGML_QUANT_SIZES[kind]
    raw = generator.integers(0, 256, (rows, cols // size, num_bytes), dtype=np.uint8)
    for at in HALVES[kind]:
        scales = generator.normal(size=(rows, cols // size, 1), scale=0.01).astype(np.float16)
        raw[:, :, at:at + 2] = scales.view(np.uint8)
    return raw.reshape(rows, -1)


def make_blocks(out):
    generator = np.random.default_rng(3)
    writer = gguf.GGUFWriter(out / "blocks.gguf", "none")
    for kind in BLOCK_TYPES:
        raw = (random_blocks(generator, kind) if kind in HALVES else
               quantize(generator.normal(size=(2, 256)).astype(np.float32), kind))
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
            low_factor, high_factor = rope["low_freq_factor"], rope["high_freq_factor"]
            smooth = (original / wavelength - low_factor) / (high_factor - low_factor)
            factors.append(1 / ((1 - smooth) / rope["factor"] + smooth))
    return np.array(factors, np.float32)


def add_values(writer, config):
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    newer.add_values(writer, config)
    if "kv_lora_rank" not in config:
        writer.add_head_count_kv(config["num_key_value_heads"])
        writer.add_key_length(config["head_dim"])
        writer.add_value_length(config["head_dim"])
        writer.add_rope_dimension_count(int(config["head_dim"] * config.get("partial_rotary_factor", 1)))
    writer.add_rope_freq_base(config["rope_theta"])
    if "norm_epsilon" in config:
        writer.add_layer_norm_eps(config["norm_epsilon"])
    else:
        writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    for field, add in (("sliding_window", writer.add_sliding_window),
                       ("attn_logit_softcapping", writer.add_attn_logit_softcapping),
                       ("final_logit_softcapping", writer.add_final_logit_softcapping),
                       ("logits_scaling", writer.add_logit_scale),
                       ("embedding_multiplier", writer.add_embedding_scale),
                       ("residual_multiplier", writer.add_residual_scale),
                       ("attention_multiplier", writer.add_attention_scale),
                       ("num_local_experts", writer.add_expert_count),
                       ("num_experts", writer.add_expert_count), ("num_experts_per_tok", writer.add_expert_used_count),
                       ("moe_intermediate_size", writer.add_expert_feed_forward_length),
                       ("original_max_position_embeddings", writer.add_rope_scaling_orig_ctx_len)):
        if config.get(field) is not None:
            add(config[field])
    scaling = config.get("rope_scaling") or {}
    if scaling.get("rope_type") == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(scaling["factor"])
    if scaling.get("rope_type") == "llama3":
        writer.add_tensor("rope_freqs.weight", llama3_factors(config))
    if scaling.get("type") == "longrope":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LONGROPE)
        writer.add_tensor("rope_factors_long.weight", np.array(scaling["long_factor"], np.float32))
        writer.add_tensor("rope_factors_short.weight", np.array(scaling["short_factor"], np.float32))


class Quantiser:
    """Writes matrices in the formats of a variant in turn; gives back what a reader makes of them."""

    def __init__(self, writer, kinds):
        self.writer, self.kinds, self.count = writer, kinds, 0

    def write(self, name, values):
        kind = T.F32 if name.endswith("bias") else self.kinds[self.count % len(self.kinds)]
        self.count += 1
        raw = quantize(np.ascontiguousarray(values), kind)
        self.writer.add_tensor(name, raw, raw_dtype=kind)
        read_back = gguf.dequantize(raw, kind).astype(np.float32).reshape(values.shape)
        assert np.abs(read_back - values).max() <= 0.3 * np.abs(values).max(), (name, kind)
        return read_back


def write_parameter(tensor, values, config, quantiser):
    """Writes one parameter as the converter would; gives back what the model has to compute with."""
    model_type = config["model_type"]
    if ".mlp.experts." in tensor:  # gate and up of all experts in one, or down
        layer = tensor.split(".")[2]
        if tensor.endswith("down_proj"):
            return quantiser.write(f"blk.{layer}.ffn_down_exps.weight", values)
        half = values.shape[1] // 2
        return np.concatenate([quantiser.write(f"blk.{layer}.ffn_{part}_exps.weight", rows)
                               for part, rows in (("gate", values[:, :half]), ("up", values[:, half:]))], 1)
    if tensor.endswith("kv_b_proj.weight"):
        return newer.write_latent_heads(tensor, values, config, quantiser)
    name = gguf_name(tensor, model_type)
    if values.ndim == 1 and "norm" in tensor and model_type.startswith("gemma"):
        quantiser.writer.add_tensor(name, values + 1)
        return values + np.float32(1) - np.float32(1)
    rotated = model_type in PERMUTED and (".q_proj." in tensor or ".k_proj." in tensor)
    heads = config["num_attention_heads" if ".q_proj." in tensor else "num_key_value_heads"]
    if rotated:
        values = interleave(values, heads)
    if values.ndim == 1:
        quantiser.writer.add_tensor(name, np.ascontiguousarray(values))
        read_back = values
    else:
        read_back = quantiser.write(name, values)
    if not rotated:
        return read_back
    rows = values.shape[0]
    return read_back.reshape(heads, rows // heads // 2, 2, -1).swapaxes(1, 2).reshape(values.shape)


def write_other_parameter(tensor, values, config, quantiser):
    """The same of an architecture that is not Llama's kin."""
    if ".mlp.experts." in tensor:
        return layouts.from_expert_parts(tensor, [quantiser.write(name, part)
                                                  for name, part in layouts.expert_parts(tensor, values).items()])
    name = layouts.name_of(tensor, config)
    laid_out = np.ascontiguousarray(layouts.to_gguf(tensor, values, config))
    if laid_out.ndim == 1:
        quantiser.writer.add_tensor(name, laid_out)
        return values
    return layouts.from_gguf(tensor, quantiser.write(name, laid_out), config)


def make_model(name, config, kinds, out, seed, decoder=None):
    config = {**config, "torch_dtype": "float32"}
    model_type = config["model_type"]
    parsed = AutoConfig.for_model(**config)
    model = AutoModelForCausalLM.from_config(parsed, attn_implementation="eager", dtype=torch.float32).eval()
    random_weights(model, seed, 4.0 if parsed.tie_word_embeddings else 1.0)
    is_other = not decoder and model_type in layouts.ARCHITECTURES
    in_package = decoder or (layouts.ARCHITECTURES[model_type] if is_other else None)
    arch = gguf.MODEL_ARCH_NAMES[getattr(gguf.MODEL_ARCH, in_package)] if in_package else None
    writer = gguf.GGUFWriter(out / f"{name}.gguf", arch or ARCHITECTURES.get(model_type, model_type),
                             split_max_tensors=10 if name == "split" else 0)
    quantiser = Quantiser(writer, kinds)
    if decoder:
        decoders.add_values(writer, decoder, config)
        decoder_writer = decoders.Writer(decoder, config, quantiser, quantize, interleave)
    elif is_other:
        layouts.add_values(writer, parsed)
    else:
        add_values(writer, config)
    for tensor, parameter in sorted(stored(model)):
        if tensor in ("lm_head.weight", "embed_out.weight") and parsed.tie_word_embeddings:
            continue
        values = parameter.detach().numpy()
        read_back = (decoder_writer.write(tensor, values) if decoder
                     else write_other_parameter(tensor, values, parsed, quantiser) if is_other
                     else write_parameter(tensor, values, config, quantiser))
        parameter.data = torch.from_numpy(np.ascontiguousarray(read_back))
    write(writer)
    model.tie_weights()
    lines, rng = [], random.Random(f"{name} {seed}")
    for length in LENGTHS:
        for _ in range(200):
            prompt = [rng.randrange(config["vocab_size"]) for _ in range(length)]
            line, margin = golden_line(model, prompt, NEW_TOKENS, False, False)
            if margin > 0.02:
                break
        else:
            raise RuntimeError(f"{name}: no prompt of {length} tokens has a comfortable margin")
        lines.append(json.dumps(line, separators=(",", ":")))
    (out / f"{name}.golden.jsonl").write_text("\n".join(lines) + "\n")
    print(f"{name}: {sum(f.stat().st_size for f in out.glob(f'{name}*.gguf'))} bytes")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("data/fixtures/gguf"))
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--only", nargs="*", help="names of models, or blocks; default: all")
    args = parser.parse_args()
    torch.set_num_threads(1)
    args.out.mkdir(parents=True, exist_ok=True)
    if not args.only or "blocks" in args.only:
        make_blocks(args.out)
    for name, (config, kinds, *arch) in VARIANTS.items():
        if not args.only or name in args.only:
            make_model(name, config, kinds, args.out, args.seed, *arch)


if __name__ == "__main__":
    main()
