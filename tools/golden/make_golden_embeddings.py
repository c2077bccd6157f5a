"""Vectors of the golden models' prompts, as sentence-transformers makes them of the last token: its last hidden state
behind the last norm, scaled to a length of 1.

Writes data/fixtures/embeddings.jsonl: model, prompt_token_ids, embedding.
"""
import json
import pathlib

import torch
from transformers import AutoModel

FIXTURES = pathlib.Path("data/fixtures")
MODELS = ("qwen3", "llama-gqa", "gemma2")


@torch.no_grad()
def main():
    torch.set_num_threads(1)
    lines = []
    for name in MODELS:
        model = AutoModel.from_pretrained(FIXTURES / "models" / name, attn_implementation="eager", dtype=torch.float32)
        model.eval()
        for text in (FIXTURES / "models" / name / "golden.jsonl").read_text().splitlines():
            prompt = json.loads(text)["prompt_token_ids"]
            state = model(torch.tensor([prompt]), use_cache=False).last_hidden_state[0, -1].double()
            vector = torch.nn.functional.normalize(state, dim=0)
            lines.append({"model": name, "prompt_token_ids": prompt,
                          "embedding": [float(f"{x:.7g}") for x in vector.tolist()]})
    text = [json.dumps(line, separators=(",", ":")) for line in lines]
    (FIXTURES / "embeddings.jsonl").write_text("\n".join(text) + "\n")


if __name__ == "__main__":
    main()
