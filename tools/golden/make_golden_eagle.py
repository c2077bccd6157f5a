"""Tiny layers of EAGLE's behind models of data/fixtures/models, and what their definition says about them.

Writes <out>/<model>/config.json, model.safetensors and golden.jsonl, as make_golden_mtp.py does, whose training and golden
lines these are. The definition (Li et al. 2024, arXiv:2401.15077, section 4.1) stands here: row i = layer(fc([embedding of
token i + 1, hidden state i])), where the hidden state is that behind the model's last norm, and the layer is Llama's without
its first norm; the model's own head gives token i + 2.

Of EAGLE-3 (Li et al. 2025, arXiv:2503.01840, section 3.1; <out>/<model>-3): state i = fc(the residual streams in front of
three of the model's layers), q, k and v are of [norm(embedding of token i + 1), norm(state i)], the layer adds to state i,
and its own norm and head, for some of the tokens, give token i + 2. For tokens further on, a row takes what the row before
it gave in place of the state. Names of tensors and fields are those of published checkpoints.
"""
import argparse
import json
import pathlib

import torch
from safetensors.torch import save_file
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRotaryEmbedding

from make_golden_mtp import golden, hidden_states, train

# Of each model: fields of the layer's config beside sizes, and whether fc has a bias.
MODELS_3 = {"llama-gqa": ({"intermediate_size": 48}, [0, 1, 1]), "qwen3": ({"rope_theta": 5000.0}, [0, 1, 2])}
NUM_HEAD_TOKENS = 72  # of EAGLE-3's head
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

    def inputs(self, tokens):
        return hidden_states(self.model[0], tokens)

    def begin(self, inputs):
        return inputs

    def tensors(self):
        out = {f"layers.0.{name}": value.data for name, value in self.layer.named_parameters()}
        out |= {f"fc.{name}": value.data for name, value in self.fc.named_parameters()}
        return {name: value.bfloat16().contiguous().clone() for name, value in out.items()}


class Predictor3(Predictor):
    def __init__(self, model, fields, state_layers):
        super().__init__(model, fields, False)
        c, norm = model.config, type(self.layer.post_attention_layernorm)
        self.state_layers = state_layers
        self.fields |= {"draft_vocab_size": NUM_HEAD_TOKENS,
                        "eagle_config": {"eagle_aux_hidden_state_layer_ids": state_layers}}
        self.fc = nn.Linear(3 * c.hidden_size, c.hidden_size, bias=False)
        self.input_layernorm, self.hidden_norm, self.norm = (norm(c.hidden_size, eps=c.rms_norm_eps) for _ in range(3))
        attention = self.layer.self_attn
        for name in ("q_proj", "k_proj", "v_proj"):
            setattr(attention, name, nn.Linear(2 * c.hidden_size, getattr(attention, name).out_features, bias=False))
        self.lm_head = nn.Linear(c.hidden_size, NUM_HEAD_TOKENS, bias=False)
        # Neighbours and gaps.
        self.tokens = torch.randperm(c.vocab_size, generator=torch.Generator().manual_seed(3))[:NUM_HEAD_TOKENS].sort().values

    def inputs(self, tokens):
        hidden = self.model[0].model(tokens, use_cache=False, output_hidden_states=True).hidden_states
        return torch.cat([hidden[i] for i in self.state_layers], -1)

    def begin(self, inputs):
        return self.fc(inputs)

    def forward(self, tokens, state):
        embedding = self.model[0].model.embed_tokens(tokens)
        x = torch.cat([self.input_layernorm(embedding), self.hidden_norm(state)], -1)
        length = tokens.shape[1]
        positions = torch.arange(length)[None]
        mask = torch.full((length, length), float("-inf")).triu(1)[None, None]
        attended = self.layer.self_attn(hidden_states=x, position_embeddings=self.rotary(state, positions), attention_mask=mask)
        x = state + attended[0]
        return x + self.layer.mlp(self.layer.post_attention_layernorm(x))

    def logits(self, states):
        logits = self.lm_head(self.norm(states))
        all_tokens = torch.full((*logits.shape[:-1], self.model[0].config.vocab_size), -1e30, dtype=logits.dtype)
        return all_tokens.index_copy(-1, self.tokens, logits)

    def tensors(self):
        parts = {"midlayer": self.layer, "midlayer.input_layernorm": self.input_layernorm, "fc": self.fc, "norm": self.norm,
                 "midlayer.hidden_norm": self.hidden_norm, "lm_head": self.lm_head}
        out = {f"{part}.{name}": p.data for part, module in parts.items() for name, p in module.named_parameters()}
        out = {name: value.bfloat16().contiguous().clone() for name, value in out.items()}
        out["d2t"] = self.tokens - torch.arange(NUM_HEAD_TOKENS)
        return out


def make(model, predictor, steps, out, generator):
    train(predictor, model, steps, generator)
    for p in predictor.parameters():
        p.data = p.data.bfloat16().float()
        p.requires_grad = False
    out.mkdir(parents=True, exist_ok=True)
    save_file(predictor.tensors(), out / "model.safetensors", metadata={"format": "pt"})
    fields = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "torch_dtype": "bfloat16"} | predictor.fields
    (out / "config.json").write_text(json.dumps(fields, indent=2) + "\n")
    with torch.no_grad():
        (out / "golden.jsonl").write_text("\n".join(golden(predictor, model, generator)) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", type=pathlib.Path, default=pathlib.Path("data/fixtures/models"))
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("data/fixtures/eagle"))
    parser.add_argument("--steps", type=int, default=400)
    args = parser.parse_args()
    torch.set_num_threads(1)
    for name in [*MODELS, *(f"{name}-3" for name in MODELS_3)]:
        print(name)
        torch.manual_seed(5)
        generator = torch.Generator().manual_seed(5)
        path = args.models / name.removesuffix("-3")
        model = AutoModelForCausalLM.from_pretrained(path, config=AutoConfig.from_pretrained(path), dtype=torch.float32,
                                                     attn_implementation="eager").eval()
        for p in model.parameters():
            p.requires_grad = False
        predictor = Predictor(model, *MODELS[name]) if name in MODELS else Predictor3(model, *MODELS_3[path.name])
        make(model, predictor.float(), args.steps, args.out / name, generator)


if __name__ == "__main__":
    main()
