"""The tiny models of make_golden_models.py: their config.json, and what is special about each.

A variant is a config; "_" keys are for the tool alone: _lengths (of prompts), _new_tokens, _shards, _cached (the oracle
generates with its cache, one token at a time), _attention (the oracle's implementation), _save (a function of
golden_checkpoints.py that spells the checkpoint as it is published), _published (one that spells the config and the
checkpoint of a type that transformers does not have).
"""

BASE = dict(
    architectures=["LlamaForCausalLM"], model_type="llama", hidden_size=32, intermediate_size=64, num_hidden_layers=2,
    num_attention_heads=4, num_key_value_heads=2, head_dim=8, vocab_size=128, max_position_embeddings=256,
    rope_theta=10000.0, rope_scaling=None, rms_norm_eps=1e-5, hidden_act="silu", attention_bias=False, mlp_bias=False,
    attention_dropout=0.0, tie_word_embeddings=False, bos_token_id=None, eos_token_id=None, torch_dtype="float32",
    _lengths=(1, 2, 7, 15, 16, 17, 33), _new_tokens=24)
LLAMA3_ROPE = dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                   original_max_position_embeddings=32)
# Neither qwen2 nor mistral has the two bias switches: qwen2 always has biases on q, k and v, mistral never has any.
UNSWITCHED = {k: v for k, v in BASE.items() if k not in ("attention_bias", "mlp_bias", "rope_scaling")}

LLAMAS = {
    "llama-mha": {**BASE, "num_key_value_heads": 4},
    "llama-gqa": BASE,
    "llama-mqa-tied": {**BASE, "num_key_value_heads": 1, "tie_word_embeddings": True},
    "llama-bias": {**BASE, "attention_bias": True, "mlp_bias": True},
    "llama-fp16": {**BASE, "torch_dtype": "float16"},
    "llama-bf16": {**BASE, "torch_dtype": "bfloat16"},
    "llama-headdim": {**BASE, "head_dim": 16, "num_hidden_layers": 3,
                      "hidden_size": 24, "intermediate_size": 48},
    # With this theta the four wavelengths fall in all three ranges of the llama3 rule: kept, blended, stretched.
    "llama-rope-llama3": {**BASE, "rope_theta": 100.0, "rope_scaling": LLAMA3_ROPE},
    "llama-sharded": {**BASE, "_shards": 2},
    "qwen2": {**UNSWITCHED, "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "rms_norm_eps": 1e-6,
              "use_sliding_window": False},
    "mistral": {**UNSWITCHED, "architectures": ["MistralForCausalLM"], "model_type": "mistral",
                "sliding_window": None},
}

# Prompts well past the windows of 11 positions, which are no multiple of a block. Stored in bfloat16 to be small.
WINDOW = 11
SMALL = dict(
    vocab_size=96, hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=4,
    num_key_value_heads=2, max_position_embeddings=128, bos_token_id=None, eos_token_id=None, pad_token_id=None,
    torch_dtype="bfloat16", _lengths=(1, 2, 7, 16, 17, 33, 60), _new_tokens=16)
ROPED = {**SMALL, "rope_theta": 10000.0, "rms_norm_eps": 1e-5}


def of(class_name, model_type, base=ROPED, without=(), **changes):
    config = {"architectures": [class_name], "model_type": model_type, **base, **changes}
    return {k: v for k, v in config.items() if k not in without}


GEMMA = dict(head_dim=12, hidden_activation="gelu_pytorch_tanh", query_pre_attn_scalar=20, sliding_window=WINDOW)
GEMMA4 = dict(base=SMALL, rms_norm_eps=1e-6, head_dim=12, global_head_dim=24, hidden_activation="gelu_pytorch_tanh",
              sliding_window=WINDOW, hidden_size_per_layer_input=6, tie_word_embeddings=True)
LONG = dict(short_factor=[1.0, 1.1, 1.3, 1.7], long_factor=[1.0, 1.5, 3.0, 7.0])
LLAMA = ("LlamaForCausalLM", "llama")
PHI3 = ("Phi3ForCausalLM", "phi3")
GPT_NEOX = ("GPTNeoXForCausalLM", "gpt_neox")
FALCON = ("FalconForCausalLM", "falcon")
NO_ROPE = ("num_key_value_heads", "max_position_embeddings", "intermediate_size")

# Layers with a state, whose chunks of 16 tokens the prompts end in front of, at and behind.
STATE_LENGTHS = (1, 2, 15, 16, 17, 33, 60)
STATES = dict(head_dim=8, linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=12,
              linear_value_head_dim=10, linear_conv_kernel_dim=4,
              layer_types=["linear_attention", "full_attention", "linear_attention"], num_hidden_layers=3)

MAMBA = dict(layer_types=["mamba", "attention", "mamba"], num_hidden_layers=3, mamba_n_heads=4, mamba_n_groups=2,
             mamba_d_state=12, mamba_d_conv=4, mamba_expand=2, embedding_multiplier=2.0, attention_multiplier=0.2,
             logits_scaling=0.5, residual_multiplier=0.7)

# transformers bounds a Mamba layer's steps from below by time_step_min, the published code does not.
NEMOTRON_H = dict(num_hidden_layers=5, hybrid_override_pattern="M-*M-", mamba_num_heads=4, mamba_head_dim=6, n_groups=2,
                  ssm_state_size=12, conv_kernel=4, head_dim=8, mlp_hidden_act="relu2", layer_norm_epsilon=1e-5,
                  time_step_min=1e-30, time_step_limit=[0.0, float("inf")], _save="nemotron_h", _lengths=STATE_LENGTHS,
                  without=("rms_norm_eps", "rope_theta"))

ARCHITECTURES = {
    "llama-rope-linear": of(*LLAMA, rope_scaling={"type": "linear", "factor": 2.5}),
    # Past 32 positions the oracle's frequencies depend on how long the sequence is when a token is first seen.
    "llama-rope-dynamic": of(*LLAMA, max_position_embeddings=32, rope_scaling={"rope_type": "dynamic", "factor": 4.0},
                             _cached=True, _lengths=(1, 7, 17, 31, 32), _new_tokens=40),
    "llama-rope-yarn": of(*LLAMA, rope_theta=100.0, head_dim=16, rope_scaling=dict(
        rope_type="yarn", factor=4.0, original_max_position_embeddings=24)),
    "llama-rope-yarn-whole": of(*LLAMA, rope_theta=100.0, head_dim=16, rope_scaling=dict(
        rope_type="yarn", factor=8.0, original_max_position_embeddings=16, truncate=False, beta_fast=4.0, beta_slow=0.5,
        mscale=1.0, mscale_all_dim=0.5)),
    "mistral-window": of("MistralForCausalLM", "mistral", sliding_window=WINDOW),
    "qwen2-window": of("Qwen2ForCausalLM", "qwen2", use_sliding_window=True, sliding_window=WINDOW,
                       max_window_layers=1),
    "qwen3": of("Qwen3ForCausalLM", "qwen3", head_dim=16),
    "qwen3-window-tied": of("Qwen3ForCausalLM", "qwen3", head_dim=10, attention_bias=True, tie_word_embeddings=True,
                            use_sliding_window=True, sliding_window=WINDOW,
                            layer_types=["sliding_attention", "full_attention", "sliding_attention"]),
    "smollm3": of("SmolLM3ForCausalLM", "smollm3", no_rope_layer_interval=2, rope_theta=2000000.0, num_hidden_layers=4),
    "smollm3-window": of("SmolLM3ForCausalLM", "smollm3", no_rope_layers=[1, 0, 1], attention_bias=True, mlp_bias=True,
                         use_sliding_window=True, sliding_window=WINDOW, tie_word_embeddings=False),
    "gemma": of("GemmaForCausalLM", "gemma", head_dim=16, hidden_act="gelu", num_key_value_heads=1),
    "gemma2": of("Gemma2ForCausalLM", "gemma2", num_hidden_layers=4, **GEMMA, attn_logit_softcapping=3.0,
                 final_logit_softcapping=5.0),
    "gemma3": of("Gemma3ForCausalLM", "gemma3_text", num_hidden_layers=4, **GEMMA, sliding_window_pattern=3,
                 rope_theta=1000000.0, rope_local_base_freq=10000.0, rope_scaling={"rope_type": "linear", "factor": 8.0}),
    "gemma3-nested": of("Gemma3ForCausalLM", "gemma3_text", without=("rope_theta",), **GEMMA, rope_parameters={
        "full_attention": {"rope_type": "default", "rope_theta": 500000.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 2000.0}},
        layer_types=["full_attention", "sliding_attention", "full_attention"]),
    "gemma3-vision": dict(
        architectures=["Gemma3ForConditionalGeneration"], model_type="gemma3", boi_token_index=90, eoi_token_index=91,
        image_token_index=92, mm_tokens_per_image=4, eos_token_id=None, torch_dtype="bfloat16",
        text_config=dict(model_type="gemma3_text", hidden_size=32, intermediate_size=48, num_hidden_layers=2, head_dim=12,
                         num_attention_heads=4, num_key_value_heads=2, vocab_size=96, sliding_window=WINDOW,
                         max_position_embeddings=128, query_pre_attn_scalar=20, pad_token_id=None, bos_token_id=None,
                         rope_scaling={"factor": 8.0, "rope_type": "linear"}),
        vision_config=dict(model_type="siglip_vision_model", hidden_size=8, image_size=8, intermediate_size=8,
                           num_attention_heads=2, num_hidden_layers=1, patch_size=4, vision_use_head=False),
        _lengths=(1, 7, 17, 33, 60), _new_tokens=16, _save="language_model_first"),
    "gemma4": of("Gemma4ForCausalLM", "gemma4_text", num_hidden_layers=6, vocab_size_per_layer_input=96,
                 num_kv_shared_layers=2, use_double_wide_mlp=True, final_logit_softcapping=5.0,
                 **{**GEMMA4, "tie_word_embeddings": False},
                 layer_types=["sliding_attention", "sliding_attention", "full_attention", "sliding_attention",
                              "sliding_attention", "full_attention"]),
    # As in the largest one: keys are values, with other numbers of heads; no inputs of layers.
    "gemma4-keys": of("Gemma4ForCausalLM", "gemma4_text", num_hidden_layers=4, attention_k_eq_v=True,
                      num_global_key_value_heads=1,
                      **{**GEMMA4, "global_head_dim": 10, "hidden_size_per_layer_input": 0}, attention_bias=True,
                      layer_types=["sliding_attention", "full_attention", "sliding_attention", "full_attention"]),
    "phi3": of(*PHI3, partial_rotary_factor=0.5, sliding_window=WINDOW),
    "phi3-longrope-short": of(*PHI3, original_max_position_embeddings=128, rope_scaling={"type": "longrope", **LONG}),
    # The oracle turns short sequences by other factors, so that prompts begin where it turns them by these.
    "phi3-longrope-long": of(*PHI3, original_max_position_embeddings=8, rope_scaling={"type": "longrope", **LONG},
                             _lengths=(9, 15, 16, 17, 33, 60)),
    "granite": of("GraniteForCausalLM", "granite", embedding_multiplier=3.0, residual_multiplier=0.4,
                  attention_multiplier=0.25, logits_scaling=2.5, attention_bias=True, tie_word_embeddings=True),
    "olmo2": of("Olmo2ForCausalLM", "olmo2"),
    "gpt2": of("GPT2LMHeadModel", "gpt2", {k: v for k, v in SMALL.items() if k not in NO_ROPE}, n_embd=32, n_layer=3,
               n_head=4, n_positions=128, n_inner=None, scale_attn_by_inverse_layer_idx=True,
               without=("hidden_size", "num_hidden_layers", "num_attention_heads"), _save="without_prefix"),
    "gpt_neox": of(*GPT_NEOX, SMALL, rotary_pct=0.5, rotary_emb_base=10000, layer_norm_eps=1e-5, hidden_act="gelu",
                   use_parallel_residual=True, without=("num_key_value_heads",)),
    "gpt_neox-sequential": of(*GPT_NEOX, SMALL, rotary_pct=0.25, hidden_act="gelu_new", use_parallel_residual=False,
                              attention_bias=False, without=("num_key_value_heads",)),
    "starcoder2": of("Starcoder2ForCausalLM", "starcoder2", sliding_window=WINDOW, norm_epsilon=1e-5,
                     without=("rms_norm_eps",)),
    "falcon": of(*FALCON, SMALL, multi_query=True, parallel_attn=True, new_decoder_architecture=False, bias=False,
                 without=NO_ROPE),
    "falcon-new": of(*FALCON, SMALL, new_decoder_architecture=True, num_kv_heads=2, bias=True, ffn_hidden_size=80,
                     without=NO_ROPE),
    "falcon-new-one-norm": of(*FALCON, SMALL, new_decoder_architecture=True, num_kv_heads=2, num_ln_in_parallel_attn=1,
                              without=NO_ROPE, tie_word_embeddings=False),
    "falcon-rw": of(*FALCON, SMALL, multi_query=False, parallel_attn=False, alibi=True, bias=True, without=NO_ROPE,
                    _attention="sdpa"),  # the eager one adds ALiBi twice
    "bloom": of("BloomForCausalLM", "bloom", {k: v for k, v in SMALL.items() if k not in NO_ROPE}, n_layer=3, n_head=6,
                hidden_size=36, seq_length=128, without=("num_hidden_layers", "num_attention_heads")),
    "mpt": of("MptForCausalLM", "mpt", {k: v for k, v in SMALL.items() if k not in NO_ROPE}, d_model=36, n_layers=3,
              n_heads=6, max_seq_len=128, attn_config={"clip_qkv": 1.5, "alibi": True, "alibi_bias_max": 8},
              without=("hidden_size", "num_hidden_layers", "num_attention_heads")),
    "mixtral": of("MixtralForCausalLM", "mixtral", num_local_experts=5, num_experts_per_tok=2, num_hidden_layers=2,
                  sliding_window=WINDOW, _save="mixtral_experts"),
    "qwen3_moe": of("Qwen3MoeForCausalLM", "qwen3_moe", head_dim=16, num_experts=6, num_experts_per_tok=3,
                    moe_intermediate_size=16, norm_topk_prob=True, mlp_only_layers=[1], _save="qwen_experts"),
    "qwen3_moe-stacked": of("Qwen3MoeForCausalLM", "qwen3_moe", head_dim=16, num_experts=6, num_experts_per_tok=3,
                            moe_intermediate_size=16, norm_topk_prob=False, decoder_sparse_step=2),
    "gpt_oss": of("GptOssForCausalLM", "gpt_oss", head_dim=8, num_local_experts=5, num_experts_per_tok=2,
                  sliding_window=WINDOW, rope_theta=150000.0, swiglu_limit=1.5, num_hidden_layers=2,
                  rope_scaling=dict(rope_type="yarn", factor=4.0, beta_fast=32.0, beta_slow=1.0, truncate=False,
                                    original_max_position_embeddings=32)),
    "gpt_oss-mxfp4": of("GptOssForCausalLM", "gpt_oss", head_dim=8, num_local_experts=4, num_experts_per_tok=2,
                        intermediate_size=64, sliding_window=WINDOW, rope_theta=150000.0, num_hidden_layers=2,
                        rope_scaling=dict(rope_type="yarn", factor=4.0, beta_fast=32.0, beta_slow=1.0, truncate=False,
                                          original_max_position_embeddings=32),
                        quantization_config={"quant_method": "mxfp4"}, _save="mxfp4"),
}

# The least that shows all that is special about a type.
TINY = {**ROPED, "vocab_size": 64, "intermediate_size": 40, "num_hidden_layers": 2, "_lengths": (1, 17, 40),
        "_new_tokens": 12}
TINY_GPT = {k: v for k, v in TINY.items() if k not in (*NO_ROPE, "rope_theta", "rms_norm_eps", "hidden_size",
                                                       "num_hidden_layers", "num_attention_heads")}
# Keys of 18 + 6 channels, the latent part of which are the values.
LATENT = dict(num_key_value_heads=4, kv_lora_rank=18, qk_rope_head_dim=6, qk_nope_head_dim=10, v_head_dim=12)
LAYER_NORM = dict(without=("rms_norm_eps",), layer_norm_eps=1e-5)


def tiny(class_name, model_type, base=TINY, **changes):
    return of(class_name, model_type, base, **changes)


SMALL_ONES = {
    "olmo": tiny("OlmoForCausalLM", "olmo", clip_qkv=1.5, without=("rms_norm_eps",)),
    "olmo3": tiny("Olmo3ForCausalLM", "olmo3", num_hidden_layers=4, sliding_window=WINDOW, rope_theta=500000.0,
                  rope_scaling=dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=24)),
    "olmoe": tiny("OlmoeForCausalLM", "olmoe", num_experts=5, num_experts_per_tok=2, intermediate_size=16,
                  _save="qwen_experts"),
    "cohere": tiny("CohereForCausalLM", "cohere", logit_scale=0.5, attention_bias=True, **LAYER_NORM),
    "cohere2": tiny("Cohere2ForCausalLM", "cohere2", num_hidden_layers=3, logit_scale=0.5, sliding_window=WINDOW,
                    layer_types=["sliding_attention", "sliding_attention", "full_attention"], **LAYER_NORM),
    "glm": tiny("GlmForCausalLM", "glm", head_dim=8, attention_bias=True),
    "glm4": tiny("Glm4ForCausalLM", "glm4", head_dim=12, attention_bias=False),
    "exaone4": tiny("Exaone4ForCausalLM", "exaone4", sliding_window=WINDOW, sliding_window_pattern="LG",
                    layer_types=["sliding_attention", "full_attention"]),
    "ernie4_5": tiny("Ernie4_5ForCausalLM", "ernie4_5", head_dim=8, use_bias=True),
    "helium": tiny("HeliumForCausalLM", "helium", head_dim=8),
    "seed_oss": tiny("SeedOssForCausalLM", "seed_oss", head_dim=12, attention_bias=True),
    "ministral": tiny("MinistralForCausalLM", "ministral", head_dim=8, sliding_window=WINDOW,
                      layer_types=["full_attention", "sliding_attention"]),
    "ministral3": tiny("Ministral3ForCausalLM", "ministral3", head_dim=8, sliding_window=None, without=("rope_theta",),
                       rope_parameters=dict(rope_type="yarn", rope_theta=1e6, factor=2.0, beta_fast=32.0, beta_slow=1.0,
                                            original_max_position_embeddings=64, mscale=1.0, mscale_all_dim=1.0,
                                            llama_4_scaling_beta=0.1)),
    # The oracle is a Llama: the published type's own code is not part of transformers.
    "internlm2": tiny(*LLAMA, rope_scaling={"type": "linear", "factor": 2.0}, _published="internlm2"),
    "granitemoe": tiny("GraniteMoeForCausalLM", "granitemoe", num_local_experts=5, num_experts_per_tok=2,
                       embedding_multiplier=3.0, residual_multiplier=0.4, attention_multiplier=0.25, logits_scaling=2.5,
                       _save="granite_experts"),
    "granitemoeshared": tiny("GraniteMoeSharedForCausalLM", "granitemoeshared", num_local_experts=4,
                             num_experts_per_tok=2, intermediate_size=16, shared_intermediate_size=24,
                             embedding_multiplier=3.0, residual_multiplier=0.4, attention_multiplier=0.25,
                             logits_scaling=2.5, _save="granite_experts"),
    "arcee": tiny("ArceeForCausalLM", "arcee", head_dim=8, hidden_act="relu2", mlp_bias=True),
    "dots1": tiny("Dots1ForCausalLM", "dots1", head_dim=8, n_routed_experts=6, n_group=3, topk_group=2,
                  num_experts_per_tok=2, moe_intermediate_size=16, n_shared_experts=1, norm_topk_prob=True,
                  routed_scaling_factor=2.5, first_k_dense_replace=1, sliding_window=WINDOW, max_window_layers=1,
                  _save="qwen_experts"),
    "qwen2_5_vl": tiny("Qwen2_5_VLForConditionalGeneration", "qwen2_5_vl", _new_tokens=8,
                       rope_scaling={"type": "mrope", "mrope_section": [1, 1, 2]}, image_token_id=90, video_token_id=91,
                       vision_start_token_id=92, vision_end_token_id=93,
                       vision_config=dict(model_type="qwen2_5_vl", depth=1, hidden_size=8, intermediate_size=8,
                                          num_heads=2, patch_size=2, out_hidden_size=32, window_size=4,
                                          fullatt_block_indexes=[0])),
    "qwen3_vl": dict(
        architectures=["Qwen3VLForConditionalGeneration"], model_type="qwen3_vl", vocab_size=64, torch_dtype="bfloat16",
        image_token_id=90, video_token_id=91, vision_start_token_id=92, vision_end_token_id=93,
        text_config={**{k: v for k, v in TINY.items() if not k.startswith("_")}, "model_type": "qwen3_vl_text",
                     "head_dim": 8, "rope_scaling": {"mrope_interleaved": True, "mrope_section": [2, 1, 1],
                                                     "rope_type": "default"}},
        vision_config=dict(model_type="qwen3_vl", depth=1, hidden_size=8, intermediate_size=8, num_heads=2, patch_size=2,
                           out_hidden_size=32, num_position_embeddings=16, deepstack_visual_indexes=[0]),
        _lengths=(1, 17, 40), _new_tokens=8),
    "qwen3_vl_moe": dict(
        architectures=["Qwen3VLMoeForConditionalGeneration"], model_type="qwen3_vl_moe", vocab_size=64,
        torch_dtype="bfloat16", image_token_id=90, video_token_id=91, vision_start_token_id=92, vision_end_token_id=93,
        text_config={**{k: v for k, v in TINY.items() if not k.startswith("_")}, "model_type": "qwen3_vl_moe_text",
                     "head_dim": 8, "num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 12,
                     "rope_scaling": {"mrope_interleaved": True, "mrope_section": [2, 1, 1], "rope_type": "default"}},
        vision_config=dict(model_type="qwen3_vl_moe_vision", depth=1, hidden_size=8, intermediate_size=8, num_heads=2,
                           patch_size=2, out_hidden_size=32, num_position_embeddings=16, deepstack_visual_indexes=[0]),
        _lengths=(1, 17, 40), _new_tokens=8, _save="transposed_experts"),
    "qwen3_5": dict(
        architectures=["Qwen3_5ForConditionalGeneration"], model_type="qwen3_5", vocab_size=64, torch_dtype="bfloat16",
        image_token_id=90, video_token_id=91, vision_start_token_id=92, vision_end_token_id=93,
        text_config={**{k: v for k, v in TINY.items() if not k.startswith("_")}, "model_type": "qwen3_5_text", **STATES,
                     "rope_parameters": {"mrope_interleaved": True, "mrope_section": [1, 1, 0], "rope_type": "default",
                                         "rope_theta": 10000.0, "partial_rotary_factor": 0.5}},
        vision_config=dict(model_type="qwen3_5", depth=1, hidden_size=8, intermediate_size=8, num_heads=2, patch_size=2,
                           out_hidden_size=32, num_position_embeddings=16),
        _lengths=STATE_LENGTHS, _new_tokens=20),
    "qwen3_5-text": tiny("Qwen3_5ForCausalLM", "qwen3_5_text", **STATES, tie_word_embeddings=True, _lengths=(1, 17, 40),
                         _new_tokens=8),
    "qwen3_5_moe": tiny("Qwen3_5MoeForCausalLM", "qwen3_5_moe_text", **STATES, num_experts=5, num_experts_per_tok=2,
                        moe_intermediate_size=16, shared_expert_intermediate_size=24, without=("intermediate_size",),
                        _lengths=(1, 17, 40), _new_tokens=8),
    "qwen3_next": tiny("Qwen3NextForCausalLM", "qwen3_next", **{**STATES, "linear_num_value_heads": 2}, num_experts=5,
                       num_experts_per_tok=2, moe_intermediate_size=16, shared_expert_intermediate_size=24,
                       mlp_only_layers=[1], norm_topk_prob=True, _save="qwen_experts", _lengths=(1, 17, 40), _new_tokens=8),
    "granitemoehybrid": tiny("GraniteMoeHybridForCausalLM", "granitemoehybrid", **MAMBA, num_local_experts=4,
                             num_experts_per_tok=2, intermediate_size=16, shared_intermediate_size=24,
                             position_embedding_type="rope", _save="granite_experts"),
    "granitemoehybrid-dense": tiny("GraniteMoeHybridForCausalLM", "granitemoehybrid", **{**MAMBA, "mamba_n_groups": 1},
                                   num_local_experts=0, shared_intermediate_size=40, position_embedding_type="nope",
                                   tie_word_embeddings=True, _lengths=STATE_LENGTHS),
    "lfm2": tiny("Lfm2ForCausalLM", "lfm2", num_hidden_layers=3, layer_types=["conv", "full_attention", "conv"],
                 conv_L_cache=3, conv_bias=False, block_multiple_of=8, norm_eps=1e-5, without=("rms_norm_eps",)),
    "nemotron_h": tiny("NemotronHForCausalLM", "nemotron_h", **NEMOTRON_H),
    "nemotron_h-experts": tiny("NemotronHForCausalLM", "nemotron_h", **{**NEMOTRON_H, "hybrid_override_pattern": "EM*-E"},
                               n_routed_experts=6, n_group=3, topk_group=2, num_experts_per_tok=2,
                               moe_intermediate_size=16, moe_shared_expert_intermediate_size=24, n_shared_experts=1,
                               routed_scaling_factor=2.5, use_conv_bias=False, mlp_bias=True),
    "gemma4-experts": of("Gemma4ForCausalLM", "gemma4_text", **{**GEMMA4, "hidden_size_per_layer_input": 0},
                         enable_moe_block=True, num_experts=5, top_k_experts=2, moe_intermediate_size=16,
                         vocab_size_per_layer_input=96, num_kv_shared_layers=0, num_hidden_layers=2,
                         layer_types=["sliding_attention", "full_attention"], _lengths=(1, 7, 17, 33, 60), _new_tokens=16),
    "deepseek_v2": tiny("DeepseekV2ForCausalLM", "deepseek_v2", **LATENT, q_lora_rank=None, n_routed_experts=6,
                        topk_method="group_limited_greedy", n_group=3, topk_group=2, num_experts_per_tok=3,
                        n_shared_experts=2, routed_scaling_factor=1.5, moe_intermediate_size=16,
                        first_k_dense_replace=1, _save="qwen_experts"),
    "deepseek_v3": tiny("DeepseekV3ForCausalLM", "deepseek_v3", **LATENT, q_lora_rank=20, attention_bias=True,
                        n_routed_experts=8, n_group=4, topk_group=2, num_experts_per_tok=3, n_shared_experts=1,
                        routed_scaling_factor=2.5, moe_intermediate_size=16, first_k_dense_replace=1,
                        rope_scaling={"type": "yarn", "factor": 4.0, "mscale": 0.8, "mscale_all_dim": 0.7,
                                      "beta_fast": 32, "beta_slow": 1, "original_max_position_embeddings": 32},
                        _save="qwen_experts"),
    "kimi_k2-fp8": tiny("DeepseekV3ForCausalLM", "deepseek_v3", **LATENT, q_lora_rank=20, n_routed_experts=6, n_group=1,
                        topk_group=1, num_experts_per_tok=3, n_shared_experts=1, routed_scaling_factor=2.827,
                        moe_intermediate_size=24, first_k_dense_replace=1, torch_dtype="float32",
                        _save="fp8_experts", _published="kimi_fp8"),
    "glm4_moe_lite": tiny("Glm4MoeLiteForCausalLM", "glm4_moe_lite", **LATENT, q_lora_rank=12, rope_interleave=False,
                          n_routed_experts=5, num_experts_per_tok=2, n_shared_experts=1, moe_intermediate_size=16,
                          mlp_layer_types=["sparse", "dense"], _save="qwen_experts"),
    "youtu": tiny("YoutuForCausalLM", "youtu", **LATENT, q_lora_rank=16, tie_word_embeddings=True),
    "stablelm": tiny("StableLmForCausalLM", "stablelm", head_dim=8, use_qkv_bias=True, **LAYER_NORM),
    "stablelm-parallel": tiny("StableLmForCausalLM", "stablelm", partial_rotary_factor=0.5, use_parallel_residual=True,
                              **LAYER_NORM),
    "phi": tiny("PhiForCausalLM", "phi", partial_rotary_factor=0.5, **LAYER_NORM),
    "gptj": tiny("GPTJForCausalLM", "gptj", TINY_GPT, n_embd=32, n_layer=2, n_head=4, n_positions=128, rotary_dim=4),
    "codegen": tiny("CodeGenForCausalLM", "codegen", TINY_GPT, n_embd=48, n_layer=2, n_head=8, n_positions=128,
                    rotary_dim=4),
    "gpt_bigcode": tiny("GPTBigCodeForCausalLM", "gpt_bigcode", TINY_GPT, n_embd=32, n_layer=2, n_head=4,
                        n_positions=128, multi_query=True),
    "gpt_neo": tiny("GPTNeoForCausalLM", "gpt_neo", TINY_GPT, hidden_size=32, num_layers=2, num_heads=4,
                    max_position_embeddings=128, window_size=WINDOW, attention_types=[[["global", "local"], 1]]),
    "qwen2_moe": tiny("Qwen2MoeForCausalLM", "qwen2_moe", num_experts=5, num_experts_per_tok=2,
                      moe_intermediate_size=16, shared_expert_intermediate_size=24, norm_topk_prob=False, mlp_only_layers=[1],
                      use_sliding_window=True, sliding_window=WINDOW, max_window_layers=1, _save="qwen_experts"),
    "glm4_moe": tiny("Glm4MoeForCausalLM", "glm4_moe", head_dim=8, n_routed_experts=8, n_group=4, topk_group=2,
                     num_experts_per_tok=3, moe_intermediate_size=16, n_shared_experts=2, routed_scaling_factor=1.5,
                     first_k_dense_replace=1, use_qk_norm=True, attention_bias=True, _save="qwen_experts"),
    "ernie4_5_moe": tiny("Ernie4_5_MoeForCausalLM", "ernie4_5_moe", moe_num_experts=6, moe_k=2,
                         moe_intermediate_size=16, moe_num_shared_experts=2, moe_layer_start_index=1,
                         _save="ernie_experts"),
    "hunyuan_v1_dense": tiny("HunYuanDenseV1ForCausalLM", "hunyuan_v1_dense", head_dim=8, attention_bias=True,
                             rope_scaling={"type": "dynamic", "alpha": 50.0, "factor": 1.0}),
    "hunyuan_v1_moe": tiny("HunYuanMoEV1ForCausalLM", "hunyuan_v1_moe", head_dim=8, num_experts=5, moe_topk=2,
                           intermediate_size=16, _save="qwen_experts"),
    "llama4": tiny("Llama4ForCausalLM", "llama4_text", head_dim=8, num_hidden_layers=3, num_local_experts=4,
                   num_experts_per_tok=2, intermediate_size=16, intermediate_size_mlp=40, moe_layers=[0, 2],
                   no_rope_layers=[1, 0, 1], attention_chunk_size=WINDOW, floor_scale=8, attn_scale=0.5),
    "nemotron": tiny("NemotronForCausalLM", "nemotron", hidden_act="relu2", mlp_bias=True, norm_eps=1e-5,
                     without=("rms_norm_eps",)),
    "cohere-qk_norm": tiny("CohereForCausalLM", "cohere", logit_scale=0.5, use_qk_norm=True, **LAYER_NORM),
    "stablelm-qk_norm": tiny("StableLmForCausalLM", "stablelm", partial_rotary_factor=0.5, qk_layernorm=True,
                             use_parallel_residual=True, **LAYER_NORM),
    "phi-qk_norm": tiny("PhiForCausalLM", "phi", partial_rotary_factor=0.5, qk_layernorm=True, **LAYER_NORM),
    "opt": tiny("OPTForCausalLM", "opt", TINY_GPT, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
                ffn_dim=48, max_position_embeddings=128, word_embed_proj_dim=32),
}

VARIANTS = {**LLAMAS, **ARCHITECTURES, **SMALL_ONES}
