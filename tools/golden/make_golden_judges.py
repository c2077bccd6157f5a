"""Tiny random models that judge pairs of texts by the logits of "yes" and "no", as Qwen3-Reranker does, and the scores
that transformers and sentence-transformers give to pairs.

Writes data/fixtures/judges/<name>/: the model with a tokenizer, and golden.jsonl with query, document, prompt_name,
instruction, num_tokens and score. "published" has tied embeddings and the text that was published for Qwen3-Reranker,
judged by transformers; "modules" has an LM head of its own, a chat template for the two roles and a module LogitScore,
judged by sentence-transformers. Weights are stored in fp16 and computed in fp32.
"""
import json
import pathlib
import shutil

import torch
from make_golden_encoders import CORPUS, random_weights, write_json
from safetensors.torch import save_file
from sentence_transformers import CrossEncoder
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

OUT = pathlib.Path("data/fixtures/judges")
SIZES = {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "hidden_size": 32, "num_hidden_layers": 3,
         "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "intermediate_size": 40,
         "max_position_embeddings": 512, "eos_token_id": 1}
SYSTEM = ("<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
          "provided. Note that the answer can only be \"yes\" or \"no\".<|im_end|>\n<|im_start|>user\n")
INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"
AFTER = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
TEMPLATE = """{%- set task = messages | selectattr("role", "eq", "system") | map(attribute="content") | first \
| default("Find passages.") -%}
<|im_start|>user
Judge by: {{ task }}
Query: {{ messages | selectattr("role", "eq", "query") | map(attribute="content") | first }}
Document: {{ messages | selectattr("role", "eq", "document") | map(attribute="content") | first | trim }}<|im_end|>
<|im_start|>assistant
"""
PROMPTS = {"news": "Is the document news about the query?", "code": "Is it code?"}
PAIRS = [(CORPUS[i], CORPUS[(2 * i + 1) % 6]) for i in range(6)]
PAIRS += [("a", "b"), ("What is the capital of France?", CORPUS[3]), ("Café naïve", "  spaces around \n"),
          ("漢字", "emoji 🙂"), ("marked <|im_end|>\n<|im_start|>user", "x <think> y")]


def make_tokenizer():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.train_from_iterator(CORPUS + [SYSTEM, INSTRUCTION] + ["yes", "no"] * 50, trainers.BpeTrainer(
        vocab_size=330, special_tokens=["<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    tokenizer.add_tokens([AddedToken("<think>", normalized=False), AddedToken("</think>", normalized=False)])
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|im_end|>",
                                   padding_side="left")


def make_model(out, tokenizer, seed, **members):
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    write_json(out / "config.json", {**SIZES, "vocab_size": len(tokenizer), "torch_dtype": "float16", **members})
    tokenizer.save_pretrained(out)
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(out), dtype=torch.float32,
                                             attn_implementation="eager").eval()
    random_weights(model, seed)
    weights = {n: p.detach().half().contiguous() for n, p in sorted(model.named_parameters())}
    save_file(weights, out / "model.safetensors", metadata={"format": "pt"})
    return model


def write(out, lines):
    (out / "golden.jsonl").write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))
    size = sum(f.stat().st_size for f in out.rglob("*") if f.is_file())
    print(out.name, size, "bytes;", len(lines), "lines", [line["score"] for line in lines[:4]], flush=True)


@torch.no_grad()
def make_published(seed):
    out, tokenizer = OUT / "published", make_tokenizer()
    model = make_model(out, tokenizer, seed, tie_word_embeddings=True)
    yes, no = tokenizer.convert_tokens_to_ids("yes"), tokenizer.convert_tokens_to_ids("no")
    assert tokenizer.encode("yes") == [yes] and tokenizer.encode("no") == [no]
    lines = []
    for i, (query, document) in enumerate(PAIRS):
        instruction = "Find what contradicts the query." if i % 3 == 2 else None
        text = f"<Instruct>: {instruction or INSTRUCTION}\n<Query>: {query}\n<Document>: {document}"
        ids = [token for part in (SYSTEM, text, AFTER) for token in tokenizer.encode(part, add_special_tokens=False)]
        logits = model(torch.tensor([ids])).logits[0, -1].double()
        score = torch.softmax(logits[[no, yes]], 0)[1].item()
        lines.append({"query": query, "document": document, "prompt_name": None, "instruction": instruction,
                      "num_tokens": len(ids), "score": float(f"{score:.7g}")})
    write(out, lines)


@torch.no_grad()
def make_modules(seed):
    out, tokenizer = OUT / "modules", make_tokenizer()
    tokenizer.chat_template = TEMPLATE
    make_model(out, tokenizer, seed, tie_word_embeddings=False)
    yes, no = tokenizer.convert_tokens_to_ids("yes"), tokenizer.convert_tokens_to_ids("no")
    kinds = ["sentence_transformers.base.modules.transformer.Transformer",
             "sentence_transformers.cross_encoder.modules.logit_score.LogitScore"]
    write_json(out / "modules.json", [{"idx": i, "name": str(i), "path": path, "type": kind}
                                      for i, (path, kind) in enumerate(zip(["", "1_LogitScore"], kinds))])
    write_json(out / "1_LogitScore" / "config.json", {"true_token_id": yes, "false_token_id": no,
                                                      "module_input_name": "causal_logits"})
    write_json(out / "config_sentence_transformers.json", {
        "model_type": "CrossEncoder", "prompts": PROMPTS, "default_prompt_name": None,
        "activation_fn": "torch.nn.modules.linear.Identity"})
    write_json(out / "sentence_bert_config.json", {
        "transformer_task": "text-generation", "modality_config": {
            "text": {"method": "forward", "method_output_name": "logits"},
            "message": {"method": "forward", "method_output_name": "logits", "format": "flat"}},
        "module_output_name": "causal_logits"})
    encoder = CrossEncoder(str(out), model_kwargs={"dtype": torch.float32, "attn_implementation": "eager"}, device="cpu")
    lines = []
    for i, (query, document) in enumerate(PAIRS):
        name = [None, "news", "code", None][i % 4]
        score = encoder.predict([(query, document)], prompt_name=name, convert_to_tensor=True)[0].item()
        messages = [{"role": "query", "content": query}, {"role": "document", "content": document}]
        if name:
            messages.insert(0, {"role": "system", "content": PROMPTS[name]})
        ids = tokenizer.apply_chat_template(messages, return_dict=True)["input_ids"]
        lines.append({"query": query, "document": document, "prompt_name": name, "instruction": None,
                      "num_tokens": len(ids), "score": float(f"{score:.7g}")})
    write(out, lines)


if __name__ == "__main__":
    torch.set_num_threads(1)
    make_published(6000)
    make_modules(6001)
