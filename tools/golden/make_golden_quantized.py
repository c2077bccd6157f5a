"""Tiny checkpoints as quantisation tools store them, one directory a format under <out>: GPTQ, AWQ, compressed-tensors,
bitsandbytes.

golden.jsonl: what Hugging Face transformers says, in float32, when it is given the dequantised weights.
expected.safetensors: some matrices as the format's own code dequantises them. That is the package itself for
compressed-tensors and bitsandbytes; GPTQ and AWQ are packed and dequantised here by the definitions of AutoGPTQ and
AutoAWQ in torch, in the dtype of the scales.
"""
import argparse
import pathlib

import bitsandbytes.functional as bnb
import torch
from compressed_tensors.compressors.nvfp4 import NVFP4PackedCompressor
from compressed_tensors.compressors.pack_quantized.helpers import pack_to_int32
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from compressed_tensors.quantization.lifecycle.forward import dequantize, quantize
from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam

from golden_stored import make_stored

GROUP = 16


def pack_words(codes, bits, dim):
    """Codes one after the other in words of 32 bits, the lowest bits first, along `dim`."""
    per_word = 32 // bits
    codes = codes.to(torch.int64).movedim(dim, -1)
    codes = codes.reshape(*codes.shape[:-1], -1, per_word)
    words = (codes << (torch.arange(per_word) * bits)).sum(-1)
    words = torch.where(words >= 1 << 31, words - (1 << 32), words)
    return words.to(torch.int32).movedim(-1, dim).contiguous()


def grouped(weight, bits, index, dtype):
    """Codes [in, out], scales and zeros [groups, out] of an asymmetric quantiser; index: the group of each input."""
    w = weight.t().float()
    top = (1 << bits) - 1
    scales, zeros = [], []
    for g in range(int(index.max()) + 1):
        part = w[index == g]
        low, high = part.min(0).values.clamp(max=0), part.max(0).values.clamp(min=0)
        scale = ((high - low) / top).to(dtype)
        scales.append(scale)
        zeros.append((-low / scale.float()).round().clamp(1, top))  # AutoGPTQ's packer cannot store 0
    scales, zeros = torch.stack(scales), torch.stack(zeros)
    codes = (w / scales[index].float() + zeros[index]).round().clamp(0, top)
    return codes.to(torch.int32), scales, zeros.to(torch.int32)


def gptq(weight, bits=4, group=GROUP, act_order=False, version=1, with_index=True):
    cols = weight.shape[1]
    group = cols if group < 0 else group
    index = torch.arange(cols) // group
    if act_order:
        index = index[torch.randperm(cols, generator=torch.Generator().manual_seed(cols))]
    codes, scales, zeros = grouped(weight, bits, index, torch.float16)
    tensors = {"qweight": pack_words(codes, bits, 0), "qzeros": pack_words(zeros - int(version == 1), bits, 1),
               "scales": scales}
    if with_index:
        tensors["g_idx"] = index.to(torch.int32)
    return tensors, (scales[index] * (codes - zeros[index])).t().contiguous()


def awq(weight):
    index = torch.arange(weight.shape[1]) // GROUP
    codes, scales, zeros = grouped(weight, 4, index, torch.float16)
    order = torch.tensor([0, 2, 4, 6, 1, 3, 5, 7])
    shuffled = lambda a: a.reshape(a.shape[0], -1, 8)[:, :, order].reshape(a.shape)
    tensors = {"qweight": pack_words(shuffled(codes), 4, 1), "qzeros": pack_words(shuffled(zeros), 4, 1),
               "scales": scales}
    return tensors, ((codes - zeros[index]) * scales[index]).t().contiguous()


def compressed(weight, bits=4, strategy="group", symmetric=True, packed=True, dtype=torch.bfloat16):
    args = QuantizationArgs(num_bits=bits, type="int", strategy=strategy, symmetric=symmetric,
                            group_size=GROUP if strategy == "group" else None)
    parts = weight.reshape(weight.shape[0], -1, GROUP if strategy == "group" else weight.shape[1])
    low, high = parts.min(-1).values.clamp(max=0), parts.max(-1).values.clamp(min=0)
    bottom, top = -(1 << (bits - 1)), (1 << (bits - 1)) - 1
    scale = (torch.maximum(-low, high) / -bottom if symmetric else (high - low) / (top - bottom)).to(dtype)
    zero = None if symmetric else (bottom - low / scale.float()).round().clamp(bottom, top).to(torch.int8)
    codes = quantize(weight.to(dtype), scale, zero, args, dtype=torch.int8)
    tensors = {"weight_scale": scale}
    if packed:
        tensors |= {"weight_packed": pack_to_int32(codes, bits), "weight_shape": torch.tensor(weight.shape)}
        if zero is not None:
            tensors["weight_zero_point"] = pack_to_int32(zero, bits, packed_dim=0).contiguous()
    else:
        tensors["weight"] = codes
    return tensors, dequantize(codes, scale, zero, args)


def nvfp4(weight):
    args = QuantizationArgs(num_bits=4, type="float", strategy="tensor_group", group_size=16, symmetric=True,
                            scale_dtype=torch.float8_e4m3fn, zp_dtype=torch.float8_e4m3fn)
    scheme = QuantizationScheme(targets=["Linear"], weights=args)
    weight = weight.to(torch.bfloat16)
    parts = weight.float().reshape(weight.shape[0], -1, 16)
    global_scale = generate_gparam(weight.float().min(), weight.float().max())
    scale, _ = calculate_qparams(parts.min(-1).values, parts.max(-1).values, args, global_scale)
    tensors = NVFP4PackedCompressor.compress({"weight": weight, "weight_scale": scale,
                                              "weight_global_scale": global_scale}, scheme)
    return tensors, NVFP4PackedCompressor.decompress(dict(tensors), scheme)["weight"]


def four_bit(weight, kind="nf4", nested=True):
    codes, state = bnb.quantize_4bit(weight.to(torch.bfloat16), blocksize=64, quant_type=kind,
                                     compress_statistics=nested)
    tensors = {"weight": codes}
    tensors |= {f"weight.{k}": v for k, v in state.as_dict(packed=True).items()}
    state.shape = torch.Size((1, weight.numel()))  # the package's code for CPUs takes no rows shorter than a block
    return tensors, bnb.dequantize_4bit(codes, state).reshape(weight.shape)


def eight_bit(weight):
    codes, largest, _ = bnb.int8_vectorwise_quant(weight.to(torch.float16))
    tensors = {"weight": codes, "SCB": largest, "weight_format": torch.tensor(0, dtype=torch.uint8)}
    return tensors, bnb.int8_vectorwise_dequant(codes, largest).to(torch.float16)


def of_groups(fmt, **weights):
    return {"quant_method": "compressed-tensors", "format": fmt, "quantization_status": "compressed", "ignore": ["lm_head"],
            "config_groups": {"group_0": {"targets": ["Linear"], "weights": {"type": "int", **weights}}}}


NVFP4 = of_groups("nvfp4-pack-quantized", num_bits=4, strategy="tensor_group", group_size=16, symmetric=True)
NVFP4["config_groups"]["group_0"]["weights"]["type"] = "float"

# name: quantization_config, dtype of the rest, quantiser
FORMATS = {
    "gptq-4": ({"quant_method": "gptq", "bits": 4, "group_size": GROUP, "desc_act": False}, "float16", gptq),
    "gptq-4-order": ({"quant_method": "gptq", "bits": 4, "group_size": GROUP, "desc_act": True}, "float16",
                     lambda w: gptq(w, act_order=True)),
    "gptq-8-v2": ({"quant_method": "gptq", "bits": 8, "group_size": -1, "desc_act": False,
                   "checkpoint_format": "gptq_v2"}, "float16",
                  lambda w: gptq(w, bits=8, group=-1, version=2, with_index=False)),
    "awq": ({"quant_method": "awq", "bits": 4, "group_size": GROUP, "zero_point": True, "version": "gemm"}, "float16",
            awq),
    "w4a16": (of_groups("pack-quantized", num_bits=4, strategy="group", group_size=GROUP, symmetric=True), "bfloat16",
              compressed),
    "w4a16-zeros": (of_groups("pack-quantized", num_bits=4, strategy="group", group_size=GROUP, symmetric=False),
                    "float16", lambda w: compressed(w, symmetric=False, dtype=torch.float16)),
    "w8a16": (of_groups("pack-quantized", num_bits=8, strategy="channel", symmetric=True), "bfloat16",
              lambda w: compressed(w, bits=8, strategy="channel")),
    "w8a8": (of_groups("int-quantized", num_bits=8, strategy="channel", symmetric=True), "bfloat16",
             lambda w: compressed(w, bits=8, strategy="channel", packed=False)),
    "nf4": ({"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}, "bfloat16", four_bit),
    "fp4": ({"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "fp4"}, "bfloat16",
            lambda w: four_bit(w, "fp4", nested=False)),
    "llm-int8": ({"quant_method": "bitsandbytes", "load_in_8bit": True}, "float16", eight_bit),
    "nvfp4": (NVFP4, "bfloat16", nvfp4),
}


def make(out, name, seed):
    make_stored(out, name, seed, *FORMATS[name])


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=pathlib.Path)
    out = parser.parse_args().out
    for i, name in enumerate(FORMATS):
        make(out, name, 40 + i)


if __name__ == "__main__":
    main()
