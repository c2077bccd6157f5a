"""Tiny checkpoints of 2:4 sparse weights as pruning tools store them, as make_golden_quantized.py's, under <out>.

The format's own code is that of compressed-tensors before 0.13, which writes it; later versions only read its name. Run
with 0.12.2 in place of the version of requirements.txt.
"""
import argparse
import pathlib

import torch
from compressed_tensors.compressors.sparse_compressors.sparse_24_bitmask import Sparse24BitMaskTensor

from golden_stored import make_stored

SPARSITY = {"format": "sparse-24-bitmask", "global_sparsity": 0.5, "ignore": ["lm_head"], "targets": ["Linear"],
            "registry_requires_subclass": False, "sparsity_structure": "2:4"}


def sparse24(weight, dtype):
    packed = Sparse24BitMaskTensor.from_dense(weight.to(dtype))
    parts = {name.removeprefix("m."): tensor for name, tensor in packed.dict("m.weight").items()}
    return parts, packed.decompress()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=pathlib.Path)
    out = parser.parse_args().out
    for i, (name, dtype) in enumerate((("sparse24", "bfloat16"), ("sparse24-f16", "float16"))):
        quantization = {"quant_method": "compressed-tensors", "quantization_status": "compressed", "sparsity_config": SPARSITY}
        make_stored(out, name, 60 + i, quantization, dtype,
                    lambda w, dtype=getattr(torch, dtype): sparse24(w, dtype))


if __name__ == "__main__":
    main()
