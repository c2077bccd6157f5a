"""GGUF files of the tiny models in data/fixtures whose layers are of several kinds, and of encoders.

Writes <out>/<name>.gguf with the numbers of the model's own checkpoint, laid out as llama.cpp's converter does: matrices
in 16 bits, all else in float32. The answers that transformers gave for the checkpoint are the file's, too. Needs numpy
and gguf.
"""
import argparse
import json
import pathlib

import gguf
import numpy as np
from gguf import MODEL_ARCH as A

import gguf_of_models_values as values

FIXTURES = pathlib.Path("data/fixtures")
# name: directory, architecture
MODELS = {
    "qwen35": ("models/qwen3_5-text", A.QWEN35), "qwen35-mtp": ("mtp/qwen3_5-text", A.QWEN35),
    "qwen35moe": ("models/qwen3_5_moe", A.QWEN35MOE), "qwen3next": ("models/qwen3_next", A.QWEN3NEXT),
    "qwen3next-mtp": ("mtp/qwen3_next", A.QWEN3NEXT),
    "gemma4": ("models/gemma4", A.GEMMA4), "gemma4-experts": ("models/gemma4-experts", A.GEMMA4),
    "gemma4-keys": ("models/gemma4-keys", A.GEMMA4), "lfm2": ("models/lfm2", A.LFM2),
    "granitehybrid": ("models/granitemoehybrid", A.GRANITE_HYBRID),
    "granitehybrid-dense": ("models/granitemoehybrid-dense", A.GRANITE_HYBRID),
    "nemotron_h": ("models/nemotron_h", A.NEMOTRON_H),
    "nemotron_h_moe": ("models/nemotron_h-experts", A.NEMOTRON_H_MOE),
    "bert": ("encoders/bert", A.BERT), "roberta": ("encoders/roberta", A.BERT),
    "xlm-roberta": ("encoders/xlm-roberta", A.BERT), "nomic-bert": ("encoders/nomic_bert", A.NOMIC_BERT),
    "modern-bert": ("encoders/modernbert", A.MODERN_BERT),
    "embeddinggemma": ("encoders/embeddinggemma", A.GEMMA_EMBEDDING),
    "xlm-roberta-classifier": ("classifiers/xlm-roberta", A.BERT),
    "modern-bert-classifier": ("classifiers/modernbert", A.MODERN_BERT), "bert-classifier": ("classifiers/bert", A.BERT)}
PLUS_ONE = {A.QWEN35, A.QWEN35MOE, A.QWEN3NEXT, A.GEMMA_EMBEDDING}
IN_FP32 = ("ssm_conv1d", "ssm_norm", "ssm_a", "ssm_d", "shortconv.conv", "ffn_gate_inp")
PREFIXES = ("bert.", "roberta.")
NAMES = {"dt_bias": "dt_proj.bias", "e_score_correction_bias": "e_score_correction.bias",
         "layer_scalar": "layer_scalar.weight"}
MTP = {"fc": "eh_proj", "pre_fc_norm_embedding": "enorm", "pre_fc_norm_hidden": "hnorm", "norm": "shared_head.norm"}


def read_tensors(path):
    """A safetensors file of 16-bit numbers, as float32."""
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    out = {}
    for name, entry in json.loads(data[8:8 + size]).items():
        if name == "__metadata__":
            continue
        begin, end = entry["data_offsets"]
        raw = np.frombuffer(data[8 + size + begin:8 + size + end], np.uint16)
        is_bf16 = entry["dtype"] == "BF16"
        assert is_bf16 or entry["dtype"] == "F16", name
        numbers = (raw.astype(np.uint32) << 16).view(np.float32) if is_bf16 else raw.view(np.float16).astype(np.float32)
        out[name] = numbers.reshape(entry["shape"])
    return out


def value_heads_last(rows, config, width, first=0):
    """Value heads that have the same place beside their key head together, not those of a key head."""
    keys, heads = config["linear_num_key_heads"], config["linear_num_value_heads"]
    if keys == heads:
        return rows
    turned = rows[first:].reshape((keys, heads // keys, width) + rows.shape[1:]).swapaxes(0, 1)
    return np.concatenate([rows[:first], turned.reshape(rows[first:].shape)])


def delta_tensors(part, tensor, arch, config):
    """A tensor of Gated DeltaNet: (part of the name, numbers) for each that it becomes."""
    keys, heads = config["linear_num_key_heads"], config["linear_num_value_heads"]
    key_dim, width = config["linear_key_head_dim"], config["linear_value_head_dim"]
    if part == "in_proj_qkvz.weight":
        group = heads // keys * width
        by_head = tensor.reshape(keys, 2 * key_dim + 2 * group, -1)
        q, k, v, z = (piece.reshape(-1, tensor.shape[1])
                      for piece in np.split(by_head, np.cumsum([key_dim, key_dim, group]), axis=1))
        return [("in_proj_qkv.weight", np.concatenate([q, k, v])), ("in_proj_z.weight", z)]
    if part == "conv1d.weight":
        tensor = tensor[:, 0]
    if part == "A_log":
        tensor = -np.exp(tensor)
    if arch == A.QWEN3NEXT:
        return [(part, tensor)]
    if part in ("in_proj_qkv.weight", "conv1d.weight"):
        tensor = value_heads_last(tensor, config, width, 2 * keys * key_dim)
    elif part == "in_proj_z.weight":
        tensor = value_heads_last(tensor, config, width)
    elif part in ("in_proj_a.weight", "in_proj_b.weight", "A_log", "dt_bias"):
        tensor = value_heads_last(tensor, config, 1)
    elif part == "out_proj.weight":
        tensor = value_heads_last(tensor.T, config, width).T
    return [(part, tensor)]


def mamba_tensor(part, tensor, groups):
    if part == "A_log":
        tensor = -np.exp(tensor)
    if part in ("A_log", "D"):
        return tensor[:, None]
    if part == "norm.weight":
        return tensor.reshape(groups, -1)
    return tensor[:, 0] if part == "conv1d.weight" else tensor


def pairs_together(tensor, heads):
    return tensor.reshape(heads, 2, tensor.shape[0] // heads // 2, -1).swapaxes(1, 2).reshape(tensor.shape)


def laid_out(name, tensor, arch, config):
    """The checkpoint's tensor as one or more of the names that the gguf package knows."""
    if ".linear_attn." in name:
        stem, part = name.split(".linear_attn.")
        return [(f"{stem}.linear_attn.{p}", t) for p, t in delta_tensors(part, tensor, arch, config)]
    for folder in (".mamba.", ".mixer."):
        if folder in name and arch in (A.GRANITE_HYBRID, A.NEMOTRON_H, A.NEMOTRON_H_MOE):
            groups = config.get("mamba_n_groups", config.get("n_groups", 1))
            return [(name, mamba_tensor(name.split(folder)[1], tensor, groups))]
    if arch == A.GRANITE_HYBRID and (".q_proj." in name or ".k_proj." in name):
        heads = config["num_attention_heads" if ".q_proj." in name else "num_key_value_heads"]
        return [(name, pairs_together(tensor, heads))]
    if "input_linear" in name or (name.endswith("experts.gate_up_proj") and arch == A.QWEN35MOE):
        half = tensor.shape[-2] // 2
        return [(name.replace("input_linear", part).replace("gate_up_proj", f"{part}_proj"), rows)
                for part, rows in (("gate", tensor[..., :half, :]), ("up", tensor[..., half:, :]))]
    if ".conv.conv." in name:
        return [(name, tensor[:, 0])]
    if name == "embeddings.position_embeddings.weight" and "roberta" in config["model_type"]:
        return [(name, tensor[config["pad_token_id"] + 1:])]
    if arch in PLUS_ONE and name.endswith("norm.weight"):
        return [(name, tensor + 1)]
    return [(name, tensor)]


GRANITE = {"gate": "ffn_gate", "up": "ffn_up", "output_linear": "ffn_down"}


def file_name(name, arch, config, names):
    if name.startswith(("dense_2.", "dense_3.")):
        return name
    if "shared_mlp" in name or "block_sparse_moe" in name and "router" not in name:
        kind = "_exps" if "block_sparse_moe" in name else "_shexp" if config["num_local_experts"] else ""
        return f"blk.{name.split('.')[2]}.{GRANITE[name.split('.')[-2]]}{kind}.weight"
    if name.endswith("router.scale"):
        return f"blk.{name.split('.')[2]}.ffn_gate_inp.scale"
    if name.endswith("router.per_expert_scale"):
        return f"blk.{name.split('.')[2]}.ffn_down_exps.scale"
    if name in ("classifier.weight", "classifier.bias"):
        name = name.replace("classifier.", "classifier.out_proj.")
    for old, new in NAMES.items():
        name = name.removesuffix(old) + new if name.endswith("." + old) else name
    if ".experts." in name and not name.endswith(".weight"):
        name += ".weight"
    if arch == A.QWEN3NEXT and ".mlp." in name and "expert" not in name and name.endswith("_proj.weight"):
        return f"blk.{name.split('.')[2]}.ffn_{name.split('.')[-2].removesuffix('_proj')}.weight"
    part = name.split(".", 3)[-1].removesuffix(".weight")
    if part in MTP.values():
        return f"blk.{name.split('.')[2]}.nextn.{part.replace('.', '_')}.weight"
    found = names.get_name(name, try_suffixes=(".weight", ".bias"))
    assert found is not None, name
    return found


def checkpoint(directory, arch, config):
    """Tensors under the names that the converter sees."""
    tensors = read_tensors(directory / "model.safetensors")
    if arch == A.GEMMA_EMBEDDING:
        for folder, name in (("2_Dense", "dense_2.weight"), ("3_Dense", "dense_3.weight")):
            tensors[name] = read_tensors(directory / folder / "model.safetensors")["linear.weight"]
    if arch == A.NOMIC_BERT:
        tensors = values.older_nomic(tensors)
    experts = {}
    for name, tensor in tensors.items():
        for prefix in PREFIXES:
            name = name.removeprefix(prefix)
        if arch == A.MODERN_BERT:
            name = name.removeprefix("model.")
        if "pooler.dense" in name or name.endswith("rotary_emb.inv_freq"):
            continue
        if name.startswith("mtp.layers.0."):
            name = f"model.layers.{config['num_hidden_layers']}.{name.removeprefix('mtp.layers.0.')}"
        elif name.startswith("mtp."):
            stem, kind = name.removeprefix("mtp.").rsplit(".", 1)
            name = f"model.layers.{config['num_hidden_layers']}.{MTP[stem]}.{kind}"
        parts = name.split(".experts.")
        if len(parts) == 2 and parts[1][0].isdigit():
            index, rest = parts[1].split(".", 1)
            experts.setdefault(f"{parts[0]}.experts.{rest}", {})[int(index)] = tensor
        else:
            yield name, tensor
    for name, by_index in experts.items():
        stacked = np.stack([by_index[i] for i in range(len(by_index))])
        yield name.replace("backbone.", "model.").replace(".mixer.", ".mlp."), stacked


def write(name, out):
    directory, arch = FIXTURES / MODELS[name][0], MODELS[name][1]
    config = json.loads((directory / "config.json").read_text())
    config = {"architectures": [""], **config}
    num_mtp = 1 if name.endswith("-mtp") else 0
    writer = gguf.GGUFWriter(out / f"{name}.gguf", gguf.MODEL_ARCH_NAMES[arch])
    values.add_values(writer, arch, config, directory, num_mtp)
    names = gguf.get_tensor_name_map(arch, config["num_hidden_layers"] + num_mtp)
    if arch == A.GEMMA4:
        values.add_rope_factors(writer, config)
    for stored_name, stored in checkpoint(directory, arch, config):
        for part_name, part in laid_out(stored_name, stored, arch, config):
            target = file_name(part_name, arch, config, names)
            is_matrix = part.ndim > 1 and not target.split(".", 2)[-1].startswith(IN_FP32)
            part = np.ascontiguousarray(part)
            if is_matrix and config["torch_dtype"] == "bfloat16":
                bits = (part.view(np.uint32) >> 16).astype(np.uint16)
                writer.add_tensor(target, bits.view(np.uint8), raw_dtype=gguf.GGMLQuantizationType.BF16)
            else:
                writer.add_tensor(target, part.astype(np.float16) if is_matrix else part)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    print(f"{name}: {(out / f'{name}.gguf').stat().st_size} bytes")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=pathlib.Path, default=FIXTURES / "gguf/of_models")
    parser.add_argument("--only", nargs="*", help="names of models; default: all")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    for name in args.only or MODELS:
        write(name, args.out)


if __name__ == "__main__":
    main()
