"""LoRA adapters as GGUF files, as llama.cpp's convert_lora_to_gguf.py lays them out, of those that make_golden_adapters.py made.

Writes <out>/<model>.<adapter>.gguf: general.type, adapter.type, adapter.lora.alpha, and blk.<i>.<projection>.weight.lora_a
and .lora_b. In a llama the rows of q's and k's lora_b are permuted as those of the weights are. Needs gguf.
"""
import argparse
import json
import pathlib

import gguf
from safetensors.torch import load_file

ADAPTERS = {"llama-gqa/rank-8": "llama", "llama-gqa/rank-1": "llama", "phi3/rank-8": "phi3"}
NAMES = {"self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
         "self_attn.qkv_proj": "attn_qkv", "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate",
         "mlp.up_proj": "ffn_up", "mlp.gate_up_proj": "ffn_up", "mlp.down_proj": "ffn_down"}


def permuted(rows, num_heads):
    """As LlamaModel.permute: the halves of a head become neighbours."""
    half = rows.shape[0] // num_heads // 2
    return rows.reshape(num_heads, 2, half, -1).swapaxes(1, 2).reshape(rows.shape)


def convert(folder, architecture, model_config, out):
    config = json.loads((folder / "adapter_config.json").read_text())
    writer = gguf.GGUFWriter(out, architecture)
    writer.add_type(gguf.GGUFType.ADAPTER)
    writer.add_string(gguf.Keys.Adapter.TYPE, "lora")
    writer.add_float32(gguf.Keys.Adapter.LORA_ALPHA, config["lora_alpha"])
    heads = {"attn_q": model_config["num_attention_heads"], "attn_k": model_config["num_key_value_heads"]}
    for name, tensor in sorted(load_file(folder / "adapter_model.safetensors").items()):
        layer, module = name.removeprefix("base_model.model.model.layers.").split(".", 1)
        module, factor = module.rsplit(".lora_", 1)
        values = tensor.float().numpy()
        if architecture == "llama" and factor == "B.weight" and NAMES[module] in heads:
            values = permuted(values, heads[NAMES[module]])
        writer.add_tensor(f"blk.{layer}.{NAMES[module]}.weight.lora_{factor[0].lower()}", values.copy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fixtures", type=pathlib.Path, default=pathlib.Path("data/fixtures"))
    args = parser.parse_args()
    out = args.fixtures / "gguf" / "adapters"
    out.mkdir(parents=True, exist_ok=True)
    for adapter, architecture in ADAPTERS.items():
        model = json.loads((args.fixtures / "models" / adapter.split("/")[0] / "config.json").read_text())
        convert(args.fixtures / "adapters" / adapter, architecture, model, out / (adapter.replace("/", ".") + ".gguf"))


if __name__ == "__main__":
    main()
