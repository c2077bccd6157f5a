"""Tiny models with a layer for multi-token prediction behind their last one, and what its definition says about them.

Writes <out>/<name>/config.json, model.safetensors and golden.jsonl for some of the models that make_golden_models.py
made. transformers ignores such layers, so the definition (DeepSeek-AI 2024, arXiv:2412.19437, section 2.2) stands here:
row i = layer(project([norm(embedding of token i + 1), norm(hidden state i)])), where the hidden state is that behind the
model's last norm; its own norm and the head give token i + 2. For tokens further on, a row takes what the row before it
gave in place of the hidden state. The layer is of transformers' class, and is trained here to follow the model, so
that some of its guesses are right. Weights as they are stored, arithmetic in float32.

A golden line: prompt_token_ids, `token`, which the model gives behind them, and `top`, for each of the next tokens along
the layer's best guesses its four best [id, logprob]. A prompt is left out where two of five best are closer than 0.005.
"""
import argparse
import copy
import json
import pathlib

import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM

NUM_AHEAD, NUM_BEST, LEAST_MARGIN = 3, 4, 0.005
QWEN = {"project": "fc", "embedding_norm": "pre_fc_norm_embedding", "hidden_norm": "pre_fc_norm_hidden",
        "norm": "norm", "layer": "layers.0"}
DEEPSEEK = {"project": "eh_proj", "embedding_norm": "enorm", "hidden_norm": "hnorm", "norm": "shared_head.norm",
            "layer": ""}
# Of each model: the names, whether it has a head of its own, and whether experts are stored one by one.
MODELS = {"qwen3_5-text": (QWEN, False, False), "qwen3_next": (QWEN, False, True),
          "deepseek_v3": (DEEPSEEK, False, True), "glm4_moe": (DEEPSEEK, True, True)}


class Predictor(nn.Module):
    def __init__(self, model, has_own_head):
        super().__init__()
        config = copy.deepcopy(model.config)
        index = config.num_hidden_layers - 1
        if hasattr(config, "layer_types") and config.layer_types is not None:
            config.layer_types = ["full_attention"] * config.num_hidden_layers
        if hasattr(config, "mlp_only_layers"):
            config.mlp_only_layers = []
        layers = model.model.layers
        self.layer = type(layers[-1])(config, index)
        norm, hidden = type(layers[-1].input_layernorm), config.hidden_size
        self.embedding_norm, self.hidden_norm, self.norm = (norm(hidden, eps=config.rms_norm_eps) for _ in range(3))
        self.project = nn.Linear(2 * hidden, hidden, bias=False)
        self.head = copy.deepcopy(model.lm_head) if has_own_head else None
        self.model = [model]  # whose parameters are not this one's

    def forward(self, tokens, hidden):
        """[rows, length] tokens and hidden states in front of them -> what stands in front of the head."""
        model = self.model[0].model
        x = self.project(torch.cat([self.embedding_norm(model.embed_tokens(tokens)), self.hidden_norm(hidden)], -1))
        length = tokens.shape[1]
        positions = torch.arange(length)[None]
        mask = torch.full((length, length), float("-inf")).triu(1)[None, None]
        x = self.layer(x, position_embeddings=model.rotary_emb(x, positions), attention_mask=mask,
                       position_ids=positions)
        return self.norm(x[0] if isinstance(x, tuple) else x)

    def logits(self, states):
        return (self.head or self.model[0].lm_head)(states)

    def inputs(self, tokens):
        """Of the model, for all tokens."""
        return hidden_states(self.model[0], tokens)

    def begin(self, inputs):
        """What stands in place of a hidden state."""
        return inputs


def hidden_states(model, tokens):
    return model.model(tokens, use_cache=False).last_hidden_state


def texts(model, count, length, generator):
    """Random beginnings, and how the model goes on at several temperatures."""
    tokens = torch.randint(1, model.config.vocab_size, (count, 4), generator=generator)
    heat = torch.linspace(0.05, 1, count)[:, None]
    while tokens.shape[1] < length:
        logits = model.lm_head(hidden_states(model, tokens)[:, -1]) / heat
        tokens = torch.cat([tokens, torch.multinomial(logits.softmax(-1), 1, generator=generator)], 1)
    return tokens


def train(predictor, model, steps, generator):
    for p in predictor.parameters():
        if p.dim() > 1:
            p.data = torch.randn(p.shape, generator=generator) * p.shape[-1] ** -0.5
    optimiser = torch.optim.Adam(predictor.parameters(), lr=3e-3)
    with torch.no_grad():
        tokens = texts(model, 192, 40, generator)
        states = hidden_states(model, tokens)
        wanted = model.lm_head(states).softmax(-1)
        inputs = predictor.inputs(tokens)
    for step in range(steps):
        some = torch.randperm(len(tokens), generator=generator)[:32]
        given = predictor.logits(predictor(tokens[some][:, 1:], predictor.begin(inputs[some][:, :-1])))
        loss = -(wanted[some][:, 1:] * given.log_softmax(-1).clamp_min(-50)).sum(-1).mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    right = (given.argmax(-1) == wanted[some][:, 1:].argmax(-1)).float().mean()
    print(f"  loss {loss:.3f}, {right:.2f} of the best tokens right")


def tensors(predictor, model, names, one_by_one):
    """As they are stored."""
    depth = model.config.num_hidden_layers
    folder = "mtp." if names is QWEN else f"model.layers.{depth}."
    out = {}
    for part in ("project", "embedding_norm", "hidden_norm", "norm"):
        out[folder + names[part] + ".weight"] = getattr(predictor, part).weight.data
    inside = folder + names["layer"] + ("." if names["layer"] else "")
    stored = dict(predictor.layer.named_parameters())
    stored |= {n: b for n, b in predictor.layer.named_buffers() if n.endswith("e_score_correction_bias")}
    for name, value in stored.items():
        if not one_by_one or not name.endswith(("gate_up_proj", "experts.down_proj")):
            out[inside + name] = value.data
            continue
        base, part = name.rsplit(".", 1)
        for i, expert in enumerate(value.data):
            parts = dict(zip(("gate_proj", "up_proj"), expert.chunk(2))) if part == "gate_up_proj" else {part: expert}
            for own, matrix in parts.items():
                out[f"{inside}{base}.{i}.{own}.weight"] = matrix
    if names is DEEPSEEK:
        out[folder + "embed_tokens.weight"] = model.model.embed_tokens.weight.data
        out[folder + "shared_head.head.weight"] = (predictor.head or model.lm_head).weight.data
    return {name: value.bfloat16().contiguous().clone() for name, value in out.items()}


def golden(predictor, model, generator):
    lines = []
    for length in (1, 2, 3, 4, 7, 12, 15, 16, 17, 20, 31, 32, 33, 34, 40):
        ids = [int(i) for i in torch.randint(1, model.config.vocab_size, (length,), generator=generator)]
        states = hidden_states(model, torch.tensor([ids]))
        first = model.lm_head(states[0, -1]).double().log_softmax(-1).topk(2)
        states = predictor.begin(predictor.inputs(torch.tensor([ids])))
        tokens, best = ids[1:] + [int(first.indices[0])], []
        for _ in range(NUM_AHEAD):
            behind = predictor(torch.tensor([tokens]), states)[:, -1:]
            best.append(predictor.logits(behind[0, 0]).double().log_softmax(-1).topk(NUM_BEST + 1))
            tokens, states = tokens + [int(best[-1].indices[0])], torch.cat([states, behind], 1)
        if any((one.values[:-1] - one.values[1:]).min() < LEAST_MARGIN for one in [first, *best]):
            continue
        top = [[[int(i), round(float(v), 6)] for i, v in zip(one.indices[:NUM_BEST], one.values)] for one in best]
        lines.append(json.dumps({"prompt_token_ids": ids, "token": int(first.indices[0]), "top": top}))
    print(" ", len(lines), "prompts")
    return lines


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", type=pathlib.Path, default=pathlib.Path("data/fixtures/models"))
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("data/fixtures/mtp"))
    parser.add_argument("--steps", type=int, default=400)
    args = parser.parse_args()
    torch.set_num_threads(1)
    for name, (names, has_own_head, one_by_one) in MODELS.items():
        print(name)
        torch.manual_seed(11)
        generator = torch.Generator().manual_seed(11)
        config = AutoConfig.from_pretrained(args.models / name)
        model = AutoModelForCausalLM.from_pretrained(args.models / name, config=config, dtype=torch.float32,
                                                     attn_implementation="eager").eval()
        for p in model.parameters():
            p.requires_grad = False
        predictor = Predictor(model, has_own_head).float()
        train(predictor, model, args.steps, generator)
        for p in [*predictor.parameters(), *predictor.buffers()]:
            p.data = p.data.bfloat16().float()
            p.requires_grad = False
        out = args.out / name
        out.mkdir(parents=True, exist_ok=True)
        weights = load_file(args.models / name / "model.safetensors")
        weights |= tensors(predictor, model, names, one_by_one)
        save_file(weights, out / "model.safetensors", metadata={"format": "pt"})
        fields = json.loads((args.models / name / "config.json").read_text())
        fields["mtp_num_hidden_layers" if names is QWEN else "num_nextn_predict_layers"] = 1
        (out / "config.json").write_text(json.dumps(fields, indent=2) + "\n")
        with torch.no_grad():
            (out / "golden.jsonl").write_text("\n".join(golden(predictor, model, generator)) + "\n")


if __name__ == "__main__":
    main()
