"""Llama in plain PyTorch, with Hugging Face's parameter names so that the export is a copy."""
import dataclasses
import json
import pathlib

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import nn

from tokenizer import END, EOS, VOCAB_SIZE


@dataclasses.dataclass
class Shape:
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int = VOCAB_SIZE
    max_position_embeddings: int = 2048
    rope_theta: float = 10000.0
    rms_norm_eps: float = 1e-5


SHAPES = {"main": Shape(192, 4, 6, 2, 32, 512), "draft": Shape(64, 2, 2, 1, 32, 192)}


class Norm(nn.Module):
    def __init__(self, size, eps):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(size)), eps

    def forward(self, x):
        return F.rms_norm(x, x.shape[-1:], self.weight, self.eps)


def linear(n_in, n_out, zero=False):
    layer = nn.Linear(n_in, n_out, bias=False)
    nn.init.zeros_(layer.weight) if zero else nn.init.normal_(layer.weight, std=n_in ** -0.5)
    return layer


class Attention(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.s = s
        self.q_proj = linear(s.hidden_size, s.num_attention_heads * s.head_dim)
        self.k_proj = linear(s.hidden_size, s.num_key_value_heads * s.head_dim)
        self.v_proj = linear(s.hidden_size, s.num_key_value_heads * s.head_dim)
        self.o_proj = linear(s.num_attention_heads * s.head_dim, s.hidden_size, zero=True)

    def forward(self, x, cos, sin):
        b, t, _ = x.shape

        def heads(y):
            return y.view(b, t, -1, self.s.head_dim).transpose(1, 2)

        def rotate(y):
            low, high = y.chunk(2, dim=-1)
            return y * cos + torch.cat((-high, low), dim=-1) * sin

        q, k, v = rotate(heads(self.q_proj(x))), rotate(heads(self.k_proj(x))), heads(self.v_proj(x))
        group = self.s.num_attention_heads // self.s.num_key_value_heads
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o_proj(y.transpose(1, 2).reshape(b, t, -1))


class Mlp(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.gate_proj = linear(s.hidden_size, s.intermediate_size)
        self.up_proj = linear(s.hidden_size, s.intermediate_size)
        self.down_proj = linear(s.intermediate_size, s.hidden_size, zero=True)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.input_layernorm = Norm(s.hidden_size, s.rms_norm_eps)
        self.self_attn = Attention(s)
        self.post_attention_layernorm = Norm(s.hidden_size, s.rms_norm_eps)
        self.mlp = Mlp(s)

    def forward(self, x, cos, sin):
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        return x + self.mlp(self.post_attention_layernorm(x))


class Llama(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.s = s
        self.model = nn.Module()
        self.model.embed_tokens = nn.Embedding(s.vocab_size, s.hidden_size)
        nn.init.normal_(self.model.embed_tokens.weight, std=0.05)
        self.model.layers = nn.ModuleList(Layer(s) for _ in range(s.num_hidden_layers))
        self.model.norm = Norm(s.hidden_size, s.rms_norm_eps)
        frequency = s.rope_theta ** (-torch.arange(0, s.head_dim, 2).float() / s.head_dim)
        angle = torch.arange(s.max_position_embeddings).float()[:, None] * torch.cat((frequency, frequency))
        self.register_buffer("cos", angle.cos(), persistent=False)
        self.register_buffer("sin", angle.sin(), persistent=False)

    def forward(self, ids, wanted):
        """Logits at the wanted positions only: the output matrix is tied to the embedding."""
        x = self.model.embed_tokens(ids)
        cos, sin = self.cos[:ids.shape[1]], self.sin[:ids.shape[1]]
        for layer in self.model.layers:
            x = layer(x, cos, sin)
        return F.linear(self.model.norm(x[wanted]), self.model.embed_tokens.weight)


def export(model, out):
    """Writes bf16 weights and config in Hugging Face's layout."""
    out = pathlib.Path(out)
    weights = {k: v.detach().cpu().bfloat16().contiguous() for k, v in model.state_dict().items()}
    save_file(weights, out / "model.safetensors", metadata={"format": "pt"})
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", **dataclasses.asdict(model.s),
              "hidden_act": "silu", "attention_bias": False, "attention_dropout": 0.0, "mlp_bias": False,
              "tie_word_embeddings": True, "rope_scaling": None, "initializer_range": 0.02, "use_cache": True,
              "pretraining_tp": 1, "bos_token_id": None, "eos_token_id": [END, EOS], "pad_token_id": EOS,
              "torch_dtype": "bfloat16"}
    (out / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    generation = {"do_sample": False, "eos_token_id": [END, EOS], "pad_token_id": EOS}
    (out / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n")


def load(out):
    """The exported model, with its rounded weights, in float32."""
    config = json.loads((pathlib.Path(out) / "config.json").read_text())
    model = Llama(Shape(**{f.name: config[f.name] for f in dataclasses.fields(Shape)}))
    model.load_state_dict({k: v.float() for k, v in load_file(pathlib.Path(out) / "model.safetensors").items()})
    return model.eval()
