"""Tiny layers of EAGLE's behind models of data/fixtures/models, and what their definition says about them.

Writes <out>/<model>/config.json, model.safetensors and golden.jsonl, as make_golden_mtp.py does, whose training and golden
lines these are. The definition (Li et al. 2024, arXiv:2401.15077, section 4.1) stands here: row i = layer(fc([embedding of
token i + 1, hidden state i])), where the hidden state is that behind the model's last norm, and the layer is Llama's without
its first norm; the model's own head gives token i + 2. Names of tensors and fields are those of published checkpoints.
"""
import argparse
import json
import pathlib

import torch
from safetensors.torch import save_file
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRotaryEmbedding

from make_golden_mtp import golden, train

# Of each model: fields of the layer's config beside sizes, and whether fc has a bias.
MODELS = {"llama-gqa": ({"intermediate_size": 48}, True), "qwen3": ({"rope_theta": 5000.0}, False),
          "qwen3_moe": ({"attention_bias": True, "intermediate_size": 80}, True)}


class Predictor(nn.Module):
    def __init__(self, model, fields, has_bias):
        super().__init__()
        c = model.config
        head_dim = getattr(c, "head_dim", None) or c.hidden_size // c.num_attention_heads
        sizes = {"vocab_size": c.vocab_size, "hidden_size": c.hidden_size, "intermediate_size": c.intermediate_size,
                 "num_attention_heads": c.num_attention_heads, "num_key_value_heads": c.num_key_value_heads,
                 "head_dim": head_dim, "rms_norm_eps": c.rms_norm_eps, "max_position_embeddings": c.max_position_embeddings}
        self.fields = sizes | {"num_hidden_layers": 1, "hidden_act": "silu", "rope_theta": 10000.0} | fields
        self.config = LlamaConfig(**self.fields)
        self.config._attn_implementation = "eager"
        self.layer = LlamaDecoderLayer(self.config, 0)
        self.layer.input_layernorm = nn.Identity()
        self.rotary = LlamaRotaryEmbedding(self.config)
        self.fc = nn.Linear(2 * c.hidden_size, c.hidden_size, bias=has_bias)
        self.model = [model]  # whose parameters are not this one's

    def forward(self, tokens, hidden):
        """[rows, length] tokens and hidden states in front of them -> what stands in front of the head."""
        x = self.fc(torch.cat([self.model[0].model.embed_tokens(tokens), hidden], -1))
        length = tokens.shape[1]
        positions = torch.arange(length)[None]
        mask = torch.full((length, length), float("-inf")).triu(1)[None, None]
        x = self.layer(x, position_embeddings=self.rotary(x, positions), attention_mask=mask, position_ids=positions)
        return x[0] if isinstance(x, tuple) else x

    def logits(self, states):
        return self.model[0].lm_head(states)

    def tensors(self):
        out = {f"layers.0.{name}": value.data for name, value in self.layer.named_parameters()}
        out |= {f"fc.{name}": value.data for name, value in self.fc.named_parameters()}
        return {name: value.bfloat16().contiguous().clone() for name, value in out.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", type=pathlib.Path, default=pathlib.Path("data/fixtures/models"))
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("data/fixtures/eagle"))
    parser.add_argument("--steps", type=int, default=400)
    args = parser.parse_args()
    torch.set_num_threads(1)
    for name, (fields, has_bias) in MODELS.items():
        print(name)
        torch.manual_seed(5)
        generator = torch.Generator().manual_seed(5)
        config = AutoConfig.from_pretrained(args.models / name)
        model = AutoModelForCausalLM.from_pretrained(args.models / name, config=config, dtype=torch.float32,
                                                     attn_implementation="eager").eval()
        for p in model.parameters():
            p.requires_grad = False
        predictor = Predictor(model, fields, has_bias).float()
        train(predictor, model, args.steps, generator)
        for p in predictor.parameters():
            p.data = p.data.bfloat16().float()
            p.requires_grad = False
        out = args.out / name
        out.mkdir(parents=True, exist_ok=True)
        save_file(predictor.tensors(), out / "model.safetensors", metadata={"format": "pt"})
        fields = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "torch_dtype": "bfloat16"} | predictor.fields
        (out / "config.json").write_text(json.dumps(fields, indent=2) + "\n")
        with torch.no_grad():
            (out / "golden.jsonl").write_text("\n".join(golden(predictor, model, generator)) + "\n")


if __name__ == "__main__":
    main()
