// The loader reads config.json files as they are published, and fills in the fields that they leave out.
#include <doctest/doctest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <string>

#include "model/architecture.h"
#include "model/config_loader.h"

namespace llmb::test {
namespace {

ModelConfig parsed(const char* json) {
  const auto config = parse_model_config(json);
  REQUIRE_MESSAGE(config.ok(), config.status().message());
  return *config;
}

// "ws" for a layer with a window that rope 0 turns, "f-" for one that sees everything and is not turned, …
std::string layers_of(const ModelConfig& c) {
  std::string text;
  for (int32_t i = 0; i < c.num_hidden_layers; ++i) {
    const LayerConfig layer = c.layer(i);
    text += layer.window > 0 ? 'w' : 'f';
    text += layer.rope < 0 ? '-' : static_cast<char>('0' + layer.rope);
    if (layer.has_experts) text += 'e';
  }
  return text;
}

TEST_CASE("gemma-2-2b: soft caps, alternating windows, norms on both sides, a tied head by default") {
  const ModelConfig c =
      parsed(R"({"architectures": ["Gemma2ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
      "attn_logit_softcapping": 50.0, "bos_token_id": 2, "cache_implementation": "hybrid", "eos_token_id": 1,
      "final_logit_softcapping": 30.0, "head_dim": 256, "hidden_act": "gelu_pytorch_tanh",
      "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 2304, "initializer_range": 0.02, "intermediate_size": 9216,
      "max_position_embeddings": 8192, "model_type": "gemma2", "num_attention_heads": 8, "num_hidden_layers": 26,
      "num_key_value_heads": 4, "pad_token_id": 0, "query_pre_attn_scalar": 256, "rms_norm_eps": 1e-06,
      "rope_theta": 10000.0, "sliding_window": 4096, "torch_dtype": "float32", "use_cache": true, "vocab_size": 256000})");
  CHECK(c.tie_word_embeddings);
  CHECK((c.pre_norm && c.post_norm && c.norm_weight_offset == 1 && c.norm == NormKind::kRms));
  CHECK((c.attention_softcap == 50 && c.logit_softcap == 30));
  CHECK(c.score_scale(0) == 1.0 / 16);
  CHECK(c.embedding_multiplier == 48);
  CHECK(c.activation == ActivationSpec{Activation::kGeluTanh});
  CHECK(layers_of(c) == "w0f0w0f0w0f0w0f0w0f0w0f0w0f0w0f0w0f0w0f0w0f0w0f0w0f0");
  CHECK(c.layer(0).window == 4096);
}

TEST_CASE("gemma-3-1b: five windows to one whole layer, each kind with a rope of its own, norms of q and k") {
  const ModelConfig c =
      parsed(R"({"architectures": ["Gemma3ForCausalLM"], "attention_bias": false, "attn_logit_softcapping": null,
      "bos_token_id": 2, "cache_implementation": "hybrid", "eos_token_id": [1, 106], "final_logit_softcapping": null,
      "head_dim": 256, "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 1152, "initializer_range": 0.02,
      "intermediate_size": 6912, "max_position_embeddings": 32768, "model_type": "gemma3_text", "num_attention_heads": 4,
      "num_hidden_layers": 26, "num_key_value_heads": 1, "pad_token_id": 0, "query_pre_attn_scalar": 256,
      "rms_norm_eps": 1e-06, "rope_local_base_freq": 10000, "rope_scaling": null, "rope_theta": 1000000,
      "sliding_window": 512, "sliding_window_pattern": 6, "torch_dtype": "bfloat16", "use_cache": true,
      "vocab_size": 262144})");
  CHECK(c.tie_word_embeddings);
  CHECK(c.qk_norm == QkNorm::kPerHead);
  CHECK((c.attention_softcap == 0 && c.logit_softcap == 0));
  CHECK((c.ropes[0].theta == 1000000 && c.ropes[1].theta == 10000));
  CHECK(layers_of(c) == "w1w1w1w1w1f0w1w1w1w1w1f0w1w1w1w1w1f0w1w1w1w1w1f0w1w1");
  CHECK(c.layer(0).window == 512);
}

TEST_CASE("gemma-3-4b: the text part of a model that also sees, sparse as it is published") {
  const ModelConfig c = parsed(R"({"architectures": ["Gemma3ForConditionalGeneration"], "boi_token_index": 255999,
      "eoi_token_index": 256000, "eos_token_id": [1, 106], "image_token_index": 262144, "initializer_range": 0.02,
      "mm_tokens_per_image": 256, "model_type": "gemma3", "text_config": {"hidden_size": 2560, "intermediate_size": 10240,
      "model_type": "gemma3_text", "num_hidden_layers": 34, "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
      "sliding_window": 1024}, "torch_dtype": "bfloat16", "vision_config": {"hidden_size": 1152, "image_size": 896,
      "intermediate_size": 4304, "model_type": "siglip_vision_model", "num_attention_heads": 16, "num_hidden_layers": 27,
      "patch_size": 14, "vision_use_head": false}})");
  CHECK(c.model_type == "gemma3_text");
  CHECK((c.vocab_size == 262208 && c.num_attention_heads == 8 && c.num_key_value_heads == 4 && c.head_dim == 256));
  CHECK((c.tie_word_embeddings && c.dtype == DType::kBF16 && c.eos_token_ids == std::vector<TokenId>{1, 106}));
  CHECK((c.max_position_embeddings == 131072 && c.layer(0).window == 1024 && c.layer(5).window == 0));
  CHECK((c.ropes[0].scaling.kind == RopeScalingKind::kLinear && c.ropes[1].scaling.kind == RopeScalingKind::kNone));
  const ModelConfig mistral =
      parsed(R"({"model_type": "mistral3", "text_config": {"model_type": "mistral", "head_dim": 128,
      "hidden_size": 5120, "intermediate_size": 32768, "max_position_embeddings": 131072, "num_attention_heads": 32,
      "num_hidden_layers": 40, "num_key_value_heads": 8, "rms_norm_eps": 1e-05, "rope_theta": 1000000000.0,
      "sliding_window": null, "vocab_size": 131072}, "torch_dtype": "bfloat16", "vision_config": {}})");
  CHECK((mistral.model_type == "mistral" && mistral.q_size() == 4096 && !mistral.tie_word_embeddings));
  // As transformers saves a tied one: its text part says that it is not.
  const ModelConfig tied = parsed(R"({"model_type": "mistral3", "tie_word_embeddings": true, "text_config": {
      "model_type": "mistral", "head_dim": 8, "hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4,
      "num_hidden_layers": 2, "num_key_value_heads": 2, "tie_word_embeddings": false, "vocab_size": 96}})");
  CHECK((tied.tie_word_embeddings && tied.tied_unless_stored));
  CHECK_FALSE(mistral.tied_unless_stored);
  // A model that is not one of these is refused by its own name, not by its text part's.
  const auto other = parse_model_config(R"({"model_type": "llava", "text_config": {"model_type": "llama"}})");
  CHECK(other.status().message().find("\"llava\"") != std::string::npos);
  CHECK_FALSE(parse_model_config(R"({"model_type": "gemma3", "text_config": 5})").ok());
}

TEST_CASE("gemma-2b: what its file calls gelu is the approximation") {
  const ModelConfig c = parsed(R"({"architectures": ["GemmaForCausalLM"], "attention_bias": false, "head_dim": 256,
      "hidden_act": "gelu", "hidden_activation": null, "hidden_size": 2048, "intermediate_size": 16384,
      "max_position_embeddings": 8192, "model_type": "gemma", "num_attention_heads": 8, "num_hidden_layers": 18,
      "num_key_value_heads": 1, "rms_norm_eps": 1e-06, "rope_scaling": null, "rope_theta": 10000.0,
      "torch_dtype": "bfloat16", "vocab_size": 256000})");
  CHECK(c.activation == ActivationSpec{Activation::kGeluTanh});
  CHECK((c.pre_norm && !c.post_norm && c.tie_word_embeddings));
}

TEST_CASE("Phi-3.5-mini: longrope, whose attention factor follows from the two context lengths") {
  nlohmann::json json = nlohmann::json::parse(R"({"architectures": ["Phi3ForCausalLM"], "attention_bias": false,
      "bos_token_id": 1, "embd_pdrop": 0.0, "eos_token_id": 32000, "hidden_act": "silu", "hidden_size": 3072,
      "intermediate_size": 8192, "max_position_embeddings": 131072, "model_type": "phi3", "num_attention_heads": 32,
      "num_hidden_layers": 32, "num_key_value_heads": 32, "original_max_position_embeddings": 4096, "pad_token_id": 32000,
      "resid_pdrop": 0.0, "rms_norm_eps": 1e-05, "rope_scaling": {"type": "longrope"}, "rope_theta": 10000.0,
      "sliding_window": 262144, "tie_word_embeddings": false, "torch_dtype": "bfloat16", "vocab_size": 32064})");
  json["rope_scaling"]["short_factor"] = std::vector<double>(48, 1.5);
  json["rope_scaling"]["long_factor"] = std::vector<double>(48, 30);
  const ModelConfig c = parsed(json.dump().c_str());
  CHECK(c.ropes[0].scaling.kind == RopeScalingKind::kLongRope);
  CHECK(c.ropes[0].scaling.attention_factor == doctest::Approx(std::sqrt(1 + std::log(32.0) / std::log(4096.0))));
  CHECK(c.ropes[0].scaling.long_factor.size() == 48);
  CHECK(c.layer(0).window == 0);  // longer than any sequence
  json["rope_scaling"]["type"] = "su";
  CHECK(parsed(json.dump().c_str()).ropes[0].scaling.kind == RopeScalingKind::kLongRope);
}

TEST_CASE("Qwen3-0.6B and SmolLM3-3B") {
  const ModelConfig qwen =
      parsed(R"({"architectures": ["Qwen3ForCausalLM"], "attention_bias": false, "bos_token_id": 151643,
      "eos_token_id": 151645, "head_dim": 128, "hidden_act": "silu", "hidden_size": 1024, "intermediate_size": 3072,
      "max_position_embeddings": 40960, "max_window_layers": 28, "model_type": "qwen3", "num_attention_heads": 16,
      "num_hidden_layers": 28, "num_key_value_heads": 8, "rms_norm_eps": 1e-06, "rope_scaling": null,
      "rope_theta": 1000000, "sliding_window": null, "tie_word_embeddings": true, "torch_dtype": "bfloat16",
      "use_sliding_window": false, "vocab_size": 151936})");
  CHECK((qwen.qk_norm == QkNorm::kPerHead && qwen.head_dim == 128 && qwen.q_size() == 2048 && !qwen.qkv_bias));
  const ModelConfig smol =
      parsed(R"({"architectures": ["SmolLM3ForCausalLM"], "attention_bias": false, "bos_token_id": null,
      "eos_token_id": 128012, "hidden_act": "silu", "hidden_size": 2048, "intermediate_size": 11008,
      "max_position_embeddings": 65536, "max_window_layers": 28, "mlp_bias": false, "model_type": "smollm3",
      "no_rope_layer_interval": 4, "no_rope_layers": [1, 1, 1, 0, 1, 1, 1, 0, 1, 1, 1, 0, 1, 1, 1, 0, 1, 1, 1, 0, 1, 1, 1, 0,
      1, 1, 1, 0, 1, 1, 1, 0, 1, 1, 1, 0], "num_attention_heads": 16, "num_hidden_layers": 36, "num_key_value_heads": 4,
      "pad_token_id": 128004, "rms_norm_eps": 1e-06, "rope_scaling": null, "rope_theta": 5000000.0, "sliding_window": null,
      "torch_dtype": "bfloat16", "use_sliding_window": false, "vocab_size": 128256})");
  CHECK(smol.tie_word_embeddings);  // the class's default: the file does not say
  CHECK(layers_of(smol).substr(0, 16) == "f0f0f0f-f0f0f0f-");
}

TEST_CASE("gpt-oss-20b: sinks, alternating windows, 32 experts in MXFP4, yarn that is not truncated") {
  nlohmann::json json = nlohmann::json::parse(R"({"architectures": ["GptOssForCausalLM"], "attention_bias": true,
      "attention_dropout": 0.0, "eos_token_id": 200002, "experts_per_token": 4, "head_dim": 64, "hidden_act": "silu",
      "hidden_size": 2880, "initial_context_length": 4096, "initializer_range": 0.02, "intermediate_size": 2880,
      "max_position_embeddings": 131072, "model_type": "gpt_oss", "num_attention_heads": 64, "num_experts_per_tok": 4,
      "num_hidden_layers": 24, "num_key_value_heads": 8, "num_local_experts": 32, "output_router_logits": false,
      "pad_token_id": 199999, "quantization_config": {"modules_to_not_convert": ["model.layers.*.self_attn",
      "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"], "quant_method": "mxfp4"}, "rms_norm_eps": 1e-05,
      "rope_scaling": {"beta_fast": 32.0, "beta_slow": 1.0, "factor": 32.0, "original_max_position_embeddings": 4096,
      "rope_type": "yarn", "truncate": false}, "rope_theta": 150000, "router_aux_loss_coef": 0.9, "sliding_window": 128,
      "swiglu_limit": 7.0, "tie_word_embeddings": false, "use_cache": true, "vocab_size": 201088})");
  const ModelConfig c = parsed(json.dump().c_str());
  CHECK((c.attention_sinks && c.qkv_bias && c.o_bias && c.experts.bias));
  CHECK((c.experts.num_experts == 32 && c.experts.top_k == 4 && c.experts.intermediate_size == 2880));
  CHECK(c.activation == ActivationSpec{Activation::kClampedSwiglu, true, 1.702f, 7});
  CHECK(layers_of(c).substr(0, 12) == "w0ef0ew0ef0e");
  CHECK((c.ropes[0].scaling.kind == RopeScalingKind::kYarn && !c.ropes[0].scaling.truncate));
  CHECK(c.ropes[0].scaling.attention_factor == doctest::Approx(0.1 * std::log(32.0) + 1));
  CHECK(c.num_stored_matmul_params() > 20'000'000'000);
  CHECK(c.num_matmul_params() < 4'000'000'000);
  json["model_type"] = "llama";
  CHECK(parse_model_config(json.dump()).status().message().find("mxfp4") != std::string::npos);
}

TEST_CASE("granite-3.3-8b: its four multipliers; OLMo-2-7B: norms after, none before") {
  const ModelConfig granite = parsed(R"({"architectures": ["GraniteForCausalLM"], "attention_bias": false,
      "attention_multiplier": 0.0078125, "bos_token_id": 0, "embedding_multiplier": 12.0, "eos_token_id": 0,
      "hidden_act": "silu", "hidden_size": 4096, "intermediate_size": 12800, "logits_scaling": 16.0,
      "max_position_embeddings": 131072, "mlp_bias": false, "model_type": "granite", "num_attention_heads": 32,
      "num_hidden_layers": 40, "num_key_value_heads": 8, "pad_token_id": 0, "residual_multiplier": 0.22,
      "rms_norm_eps": 1e-05, "rope_scaling": null, "rope_theta": 10000000.0, "tie_word_embeddings": true,
      "torch_dtype": "bfloat16", "vocab_size": 49159})");
  CHECK((granite.embedding_multiplier == 12 && granite.residual_multiplier == 0.22));
  CHECK((granite.score_scale(3) == 0.0078125 && granite.logit_multiplier == 1.0 / 16));
  const ModelConfig olmo =
      parsed(R"({"architectures": ["Olmo2ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
      "eos_token_id": 100257, "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02,
      "intermediate_size": 11008, "max_position_embeddings": 4096, "model_type": "olmo2", "num_attention_heads": 32,
      "num_hidden_layers": 32, "num_key_value_heads": 32, "pad_token_id": 100277, "rms_norm_eps": 1e-06,
      "rope_scaling": null, "rope_theta": 500000, "tie_word_embeddings": false, "torch_dtype": "float32",
      "vocab_size": 100352})");
  CHECK((!olmo.pre_norm && olmo.post_norm && olmo.qk_norm == QkNorm::kAllHeads));
}

TEST_CASE("gpt2, pythia-160m, starcoder2-3b: LayerNorm, biases, plain MLPs") {
  const ModelConfig gpt2 = parsed(R"({"activation_function": "gelu_new", "architectures": ["GPT2LMHeadModel"],
      "attn_pdrop": 0.1, "bos_token_id": 50256, "embd_pdrop": 0.1, "eos_token_id": 50256, "initializer_range": 0.02,
      "layer_norm_epsilon": 1e-05, "model_type": "gpt2", "n_ctx": 1024, "n_embd": 768, "n_head": 12, "n_layer": 12,
      "n_positions": 1024, "resid_pdrop": 0.1, "vocab_size": 50257})");
  CHECK((gpt2.learned_positions && gpt2.ropes.empty() && gpt2.tie_word_embeddings));
  CHECK((gpt2.norm == NormKind::kLayer && gpt2.norm_bias && gpt2.qkv_bias && gpt2.o_bias && gpt2.mlp_bias));
  CHECK((gpt2.intermediate_size == 3072 && gpt2.max_position_embeddings == 1024));
  CHECK(gpt2.activation == ActivationSpec{Activation::kGeluTanh, false});
  const ModelConfig pythia = parsed(R"({"architectures": ["GPTNeoXForCausalLM"], "bos_token_id": 0, "eos_token_id": 0,
      "hidden_act": "gelu", "hidden_size": 768, "initializer_range": 0.02, "intermediate_size": 3072,
      "layer_norm_eps": 1e-05, "max_position_embeddings": 2048, "model_type": "gpt_neox", "num_attention_heads": 12,
      "num_hidden_layers": 12, "rotary_emb_base": 10000, "rotary_pct": 0.25, "tie_word_embeddings": false,
      "torch_dtype": "float16", "use_parallel_residual": true, "vocab_size": 50304})");
  CHECK(
      (pythia.residual == ResidualKind::kParallel && pythia.ropes[0].rotary_dim == 16 && !pythia.tie_word_embeddings));
  CHECK(pythia.activation == ActivationSpec{Activation::kGelu, false});
  const ModelConfig starcoder =
      parsed(R"({"architectures": ["Starcoder2ForCausalLM"], "bos_token_id": 0, "eos_token_id": 0,
      "hidden_act": "gelu_pytorch_tanh", "hidden_size": 3072, "intermediate_size": 12288, "max_position_embeddings": 16384,
      "mlp_type": "default", "model_type": "starcoder2", "norm_epsilon": 1e-05, "norm_type": "layer_norm",
      "num_attention_heads": 24, "num_hidden_layers": 30, "num_key_value_heads": 2, "rope_theta": 999999.4420358813,
      "sliding_window": 4096, "use_bias": true, "vocab_size": 49152})");
  CHECK((starcoder.tie_word_embeddings && starcoder.norm_eps == 1e-5 && starcoder.mlp_bias));
  CHECK(starcoder.layer(29).window == 4096);
}

TEST_CASE("falcon-7b, falcon-40b and falcon-rw-1b: three layouts of one family") {
  const ModelConfig small = parsed(R"({"alibi": false, "apply_residual_connection_post_layernorm": false,
      "architectures": ["FalconForCausalLM"], "attention_dropout": 0.0, "bias": false, "bos_token_id": 11,
      "eos_token_id": 11, "hidden_dropout": 0.0, "hidden_size": 4544, "initializer_range": 0.02,
      "layer_norm_epsilon": 1e-05, "model_type": "falcon", "multi_query": true, "new_decoder_architecture": false,
      "num_attention_heads": 71, "num_hidden_layers": 32, "parallel_attn": true, "torch_dtype": "bfloat16",
      "vocab_size": 65024})");
  CHECK((small.num_key_value_heads == 1 && small.head_dim == 64 && small.intermediate_size == 18176));
  CHECK((small.residual == ResidualKind::kParallelSharedNorm && small.tie_word_embeddings && small.ropes.size() == 1));
  const ModelConfig large = parsed(R"({"alibi": false, "bias": false, "hidden_size": 8192, "layer_norm_epsilon": 1e-05,
      "model_type": "falcon", "new_decoder_architecture": true, "num_attention_heads": 128, "num_hidden_layers": 60,
      "num_kv_heads": 8, "parallel_attn": true, "torch_dtype": "bfloat16", "vocab_size": 65024})");
  CHECK((large.num_key_value_heads == 8 && large.residual == ResidualKind::kParallel));
  const ModelConfig rw = parsed(R"({"alibi": true, "bias": true, "hidden_size": 2048, "layer_norm_epsilon": 1e-05,
      "model_type": "falcon", "multi_query": false, "new_decoder_architecture": false, "num_attention_heads": 32,
      "num_hidden_layers": 24, "parallel_attn": false, "torch_dtype": "bfloat16", "vocab_size": 50304})");
  CHECK((rw.num_key_value_heads == 32 && rw.residual == ResidualKind::kSequential && rw.qkv_bias));
  CHECK((rw.ropes.empty() && rw.alibi_slopes.size() == 32));
}

TEST_CASE("bloom-560m and mpt-7b: ALiBi") {
  const ModelConfig bloom = parsed(R"({"apply_residual_connection_post_layernorm": false, "attention_dropout": 0.0,
      "attention_softmax_in_fp32": true, "bias_dropout_fusion": true, "bos_token_id": 1, "eos_token_id": 2,
      "hidden_dropout": 0.0, "initializer_range": 0.02, "layer_norm_epsilon": 1e-05, "masked_softmax_fusion": true,
      "model_type": "bloom", "n_embed": 1024, "n_inner": null, "n_layer": 24, "num_attention_heads": 16,
      "offset_alibi": 100, "pad_token_id": 3, "pretraining_tp": 1, "seq_length": 2048, "skip_bias_add": true,
      "skip_bias_add_qkv": false, "unk_token_id": 0, "use_cache": true, "vocab_size": 250880})");
  CHECK((bloom.hidden_size == 1024 && bloom.num_hidden_layers == 24 && bloom.head_dim == 64));
  CHECK((bloom.embedding_norm && bloom.tie_word_embeddings && bloom.max_position_embeddings == 2048));
  CHECK((bloom.alibi_slopes[0] == std::exp2(-0.5f) && bloom.alibi_slopes[15] == std::exp2(-8.0f)));
  const ModelConfig mpt =
      parsed(R"({"architectures": ["MPTForCausalLM"], "attn_config": {"alibi": true, "alibi_bias_max": 8,
      "attn_impl": "torch", "attn_pdrop": 0, "attn_type": "multihead_attention", "attn_uses_sequence_id": false,
      "clip_qkv": null, "prefix_lm": false, "qk_ln": false, "softmax_scale": null}, "d_model": 4096, "emb_pdrop": 0,
      "embedding_fraction": 1.0, "expansion_ratio": 4, "init_config": {"name": "kaiming_normal_"}, "init_device": "cpu",
      "learned_pos_emb": true, "logit_scale": null, "max_seq_len": 2048, "model_type": "mpt", "n_heads": 32, "n_layers": 32,
      "no_bias": true, "norm_type": "low_precision_layernorm", "resid_pdrop": 0, "torch_dtype": "bfloat16", "verbose": 0,
      "vocab_size": 50432})");
  CHECK((mpt.norm == NormKind::kLayer && !mpt.norm_bias && !mpt.qkv_bias && mpt.qkv_clip == 0));
  CHECK((mpt.intermediate_size == 16384 && mpt.alibi_slopes.size() == 32 && !mpt.learned_positions));
  CHECK(mpt.score_scale(0) == 1 / std::sqrt(128.0));
}

TEST_CASE("Mixtral-8x7B and Qwen3-30B-A3B: every layer has experts") {
  const ModelConfig mixtral = parsed(R"({"architectures": ["MixtralForCausalLM"], "bos_token_id": 1, "eos_token_id": 2,
      "hidden_act": "silu", "hidden_size": 4096, "intermediate_size": 14336, "max_position_embeddings": 32768,
      "model_type": "mixtral", "num_attention_heads": 32, "num_experts_per_tok": 2, "num_hidden_layers": 32,
      "num_key_value_heads": 8, "num_local_experts": 8, "output_router_logits": false, "rms_norm_eps": 1e-05,
      "rope_theta": 1000000.0, "sliding_window": null, "tie_word_embeddings": false, "torch_dtype": "bfloat16",
      "vocab_size": 32000})");
  CHECK((mixtral.experts.num_experts == 8 && mixtral.experts.top_k == 2 && mixtral.experts.norm_topk_prob));
  CHECK(mixtral.num_stored_matmul_params() / 1'000'000'000 == 46);
  const ModelConfig qwen =
      parsed(R"({"architectures": ["Qwen3MoeForCausalLM"], "attention_bias": false, "decoder_sparse_step": 1,
      "eos_token_id": 151645, "head_dim": 128, "hidden_act": "silu", "hidden_size": 2048, "intermediate_size": 6144,
      "max_position_embeddings": 40960, "max_window_layers": 48, "mlp_only_layers": [], "model_type": "qwen3_moe",
      "moe_intermediate_size": 768, "norm_topk_prob": true, "num_attention_heads": 32, "num_experts": 128,
      "num_experts_per_tok": 8, "num_hidden_layers": 48, "num_key_value_heads": 4, "rms_norm_eps": 1e-06,
      "rope_scaling": null, "rope_theta": 1000000.0, "sliding_window": null, "tie_word_embeddings": false,
      "torch_dtype": "bfloat16", "use_sliding_window": false, "vocab_size": 151936})");
  CHECK((qwen.experts.num_experts == 128 && qwen.experts.top_k == 8 && qwen.experts.intermediate_size == 768));
  CHECK(layers_of(qwen).substr(0, 6) == "f0ef0e");
  CHECK(qwen.num_stored_matmul_params() / 1'000'000'000 == 30);
  CHECK(qwen.num_matmul_params() / 1'000'000'000 == 3);
}

TEST_CASE("OLMo-1B, OLMo-3-7B, EXAONE-4.0-32B: norms without weights; windows that alone are rotated, or are not scaled") {
  const ModelConfig olmo = parsed(R"({"hidden_size": 2048, "intermediate_size": 8192, "max_position_embeddings":
      2048, "model_type": "olmo", "num_attention_heads": 16, "num_hidden_layers": 16, "num_key_value_heads": 16,
      "rope_theta": 10000.0, "tie_word_embeddings": true, "vocab_size": 50304})");
  CHECK((olmo.norm == NormKind::kLayer && !olmo.norm_bias && olmo.norm_eps == 1e-5 && olmo.qkv_clip == 0));
  const ModelConfig olmo3 = parsed(R"({"hidden_size": 4096, "intermediate_size": 11008, "max_position_embeddings":
      65536, "model_type": "olmo3", "num_attention_heads": 32, "num_hidden_layers": 8, "num_key_value_heads": 32,
      "rms_norm_eps": 1e-06, "rope_scaling": {"attention_factor": 1.2079441541679836, "beta_fast": 32.0,
      "beta_slow": 1.0, "factor": 8.0, "original_max_position_embeddings": 8192, "rope_type": "yarn"}, "rope_theta":
      500000, "sliding_window": 4096, "vocab_size": 100278})");
  CHECK(layers_of(olmo3) == "w1w1w1f0w1w1w1f0");
  CHECK((olmo3.ropes[0].scaling.kind == RopeScalingKind::kYarn && olmo3.ropes[1].theta == 500000));
  CHECK(olmo3.ropes[1].scaling.kind == RopeScalingKind::kNone);
  const ModelConfig exaone = parsed(R"({"head_dim": 128, "hidden_size": 5120, "intermediate_size": 27392,
      "max_position_embeddings": 131072, "model_type": "exaone4", "num_attention_heads": 40, "num_hidden_layers": 8,
      "num_key_value_heads": 8, "rms_norm_eps": 1e-05, "rope_theta": 1000000, "sliding_window": 4096,
      "sliding_window_pattern": "LLLG", "vocab_size": 102400})");
  CHECK(layers_of(exaone) == "w0w0w0f-w0w0w0f-");
  const ModelConfig small = parsed(R"({"head_dim": 64, "hidden_size": 2048, "intermediate_size": 4096, "model_type":
      "exaone4", "num_attention_heads": 32, "num_hidden_layers": 2, "num_key_value_heads": 8, "rope_theta": 1000000,
      "sliding_window": null, "sliding_window_pattern": null, "vocab_size": 102400})");
  CHECK(layers_of(small) == "f0f0");
}

TEST_CASE("aya-expanse-8b, command-r7b, phi-2, gpt-j-6b: attention and MLP side by side") {
  const ModelConfig aya = parsed(R"({"hidden_size": 4096, "intermediate_size": 14336, "layer_norm_eps": 1e-05,
      "logit_scale": 0.125, "max_position_embeddings": 8192, "model_type": "cohere", "num_attention_heads": 32,
      "num_hidden_layers": 32, "num_key_value_heads": 8, "rope_theta": 10000, "vocab_size": 256000})");
  CHECK((aya.residual == ResidualKind::kParallelSharedNorm && aya.tie_word_embeddings && aya.logit_multiplier == 0.125));
  const ModelConfig command = parsed(R"({"head_dim": 128, "hidden_size": 4096, "intermediate_size": 14336,
      "layer_norm_eps": 1e-05, "logit_scale": 0.25, "max_position_embeddings": 132096, "model_type": "cohere2",
      "num_attention_heads": 32, "num_hidden_layers": 8, "num_key_value_heads": 8, "rope_theta": 50000,
      "sliding_window": 4096, "sliding_window_pattern": 4, "vocab_size": 256000})");
  CHECK(layers_of(command) == "w0w0w0f-w0w0w0f-");
  const ModelConfig phi = parsed(R"({"hidden_act": "gelu_new", "hidden_size": 2560, "intermediate_size": 10240,
      "layer_norm_eps": 1e-05, "max_position_embeddings": 2048, "model_type": "phi", "num_attention_heads": 32,
      "num_hidden_layers": 32, "num_key_value_heads": 32, "partial_rotary_factor": 0.4, "rope_theta": 10000.0,
      "vocab_size": 51200})");
  CHECK((phi.ropes[0].rotary_dim == 32 && phi.mlp_bias && phi.activation == ActivationSpec{Activation::kGeluTanh, false}));
  const ModelConfig gptj = parsed(R"({"activation_function": "gelu_new", "layer_norm_epsilon": 1e-05, "model_type":
      "gptj", "n_embd": 4096, "n_head": 16, "n_inner": null, "n_layer": 28, "n_positions": 2048, "rotary_dim": 64,
      "vocab_size": 50400})");
  CHECK((gptj.ropes[0].rotary_dim == 64 && gptj.head_dim == 256 && !gptj.qkv_bias && gptj.intermediate_size == 16384));
}

TEST_CASE("TinyStories-1M, opt-125m, starcoder: learned positions") {
  const ModelConfig neo = parsed(R"({"activation_function": "gelu_new", "attention_types": [[["global", "local"],
      4]], "hidden_size": 64, "intermediate_size": null, "layer_norm_epsilon": 1e-05, "max_position_embeddings":
      2048, "model_type": "gpt_neo", "num_heads": 16, "num_layers": 8, "vocab_size": 50257, "window_size": 256})");
  CHECK((layers_of(neo) == "f0w0f0w0f0w0f0w0" && neo.layer(1).window == 256 && neo.score_scale(0) == 1));
  const ModelConfig opt = parsed(R"({"activation_function": "relu", "do_layer_norm_before": true, "ffn_dim": 3072,
      "hidden_size": 768, "max_position_embeddings": 2048, "model_type": "opt", "num_attention_heads": 12,
      "num_hidden_layers": 12, "vocab_size": 50272, "word_embed_proj_dim": 768})");
  CHECK((opt.learned_positions && opt.tie_word_embeddings && opt.intermediate_size == 3072));
  CHECK(opt.activation == ActivationSpec{Activation::kRelu, false});
  const ModelConfig coder = parsed(R"({"activation_function": "gelu_pytorch_tanh", "layer_norm_epsilon": 1e-05,
      "model_type": "gpt_bigcode", "multi_query": true, "n_embd": 6144, "n_head": 48, "n_inner": 24576, "n_layer":
      40, "n_positions": 8192, "vocab_size": 49152})");
  CHECK((coder.num_key_value_heads == 1 && coder.head_dim == 128 && coder.qkv_bias));
}

TEST_CASE("what an architecture has and the forward pass has not is refused by name") {
  const std::pair<const char*, const char*> cases[] = {
      {R"("model_type": "gemma2", "use_bidirectional_attention": true)", "use_bidirectional_attention"},
      {R"("model_type": "bloom", "apply_residual_connection_post_layernorm": true)", "apply_residual_connection"},
      {R"("model_type": "gpt2", "add_cross_attention": true)", "add_cross_attention"},
      {R"("model_type": "mpt", "no_bias": false)", "no_bias"},
      {R"("model_type": "mpt", "expansion_ratio": 2)", "expansion_ratio"},
      {R"("model_type": "mpt", "attn_config": {"qk_ln": true})", "qk_ln"},
      {R"("model_type": "mpt", "attn_config": {"alibi": false})", "alibi"},
      {R"("model_type": "mpt", "attn_config": {"attn_type": "multiquery_attention"})", "attn_type"},
      {R"("model_type": "mpt", "attn_config": 5)", "attn_config"},
      {R"("model_type": "falcon", "new_decoder_architecture": true, "parallel_attn": false)", "parallel_attn"},
      {R"("model_type": "qwen3_moe", "num_experts_per_tok": 129)", "num_experts_per_tok"},
      {R"("model_type": "mixtral", "num_local_experts": 100000)", "num_local_experts"},
      {R"("model_type": "gpt_neox", "rotary_pct": 0.001)", "rotates 0 of 64 channels"},
      {R"("model_type": "phi3", "partial_rotary_factor": 2)", "partial_rotary_factor"},
      {R"("model_type": "llama", "partial_rotary_factor": 0.5)", "partial_rotary_factor"},
      {R"("model_type": "smollm3", "no_rope_layers": [1])", "no_rope_layers"},
      {R"("model_type": "gemma3_text", "rope_parameters": {"full_attention": 1})", "full_attention"},
      {R"("model_type": "granite", "logits_scaling": 0)", "logits_scaling"},
      {R"("model_type": "cohere2", "use_qk_norm": true)", "use_qk_norm"},
      {R"("model_type": "gptj", "rotary_dim": 9)", "rotary_dim"},
      {R"("model_type": "codegen", "n_head": 2)", "n_head"},
      {R"("model_type": "olmoe", "clip_qkv": 3.0)", "clip_qkv"},
      {R"("model_type": "gpt_neo", "attention_types": [[["global"], 1]])", "attention_types"},
      {R"("model_type": "opt", "ffn_dim": 512, "do_layer_norm_before": false)", "do_layer_norm_before"},
      {R"("model_type": "opt", "ffn_dim": 512, "word_embed_proj_dim": 64)", "word_embed_proj_dim"},
  };
  for (const auto& c : cases) {
    const std::string fields = c.first, message = c.second;
    CAPTURE(fields);
    const std::string json = std::string(
                                 "{\"vocab_size\": 100, \"hidden_size\": 256, \"d_model\": 256, \"n_embd\": 256, "
                                 "\"intermediate_size\": 512, "
                                 "\"num_hidden_layers\": 2, \"num_attention_heads\": 4, \"num_key_value_heads\": 4, ") +
                             fields + "}";
    const auto config = parse_model_config(json);
    REQUIRE_FALSE(config.ok());
    CAPTURE(config.status().message());
    CHECK(config.status().message().find(message) != std::string::npos);
  }
}

}  // namespace
}  // namespace llmb::test
