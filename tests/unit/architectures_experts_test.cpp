// The loader reads config.json files as they are published: those of mixtures of experts, and of models that see.
#include <doctest/doctest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "model/config_loader.h"

namespace llmb::test {
namespace {

ModelConfig parsed(const char* json) {
  const auto config = parse_model_config(json);
  REQUIRE_MESSAGE(config.ok(), config.status().message());
  return *config;
}

TEST_CASE("Qwen1.5-MoE-A2.7B: 60 experts and a shared one behind a gate") {
  const ModelConfig c = parsed(R"({"architectures": ["Qwen2MoeForCausalLM"], "bos_token_id": 151643,
      "decoder_sparse_step": 1, "eos_token_id": 151643, "hidden_act": "silu", "hidden_size": 2048,
      "intermediate_size": 5632, "max_position_embeddings": 8192, "max_window_layers": 21, "model_type": "qwen2_moe",
      "moe_intermediate_size": 1408, "norm_topk_prob": false, "num_attention_heads": 16, "num_experts": 60,
      "num_experts_per_tok": 4, "num_hidden_layers": 24, "num_key_value_heads": 16, "rms_norm_eps": 1e-06,
      "rope_theta": 1000000.0, "shared_expert_intermediate_size": 5632, "sliding_window": 32768,
      "tie_word_embeddings": false, "torch_dtype": "bfloat16", "use_sliding_window": false, "vocab_size": 151936})");
  CHECK((c.qkv_bias && !c.o_bias && c.layer(0).has_experts && c.layer(23).has_experts && c.layer(0).window == 0));
  CHECK((c.experts.num_experts == 60 && c.experts.top_k == 4 && !c.experts.norm_topk_prob));
  CHECK((c.experts.shared_intermediate_size == 5632 && c.experts.shared_gate));
  // 14.3 billion parameters, of which 2.7 billion take part in a token's products, the embedding aside.
  CHECK(c.num_stored_matmul_params() / 100'000'000 == 140);
  CHECK(c.num_matmul_params() / 100'000'000 == 23);
}

TEST_CASE("GLM-4.5-Air: logistic scores with a bias, a dense layer first, half of each head rotated") {
  const ModelConfig c = parsed(R"({"architectures": ["Glm4MoeForCausalLM"], "attention_bias": true,
      "eos_token_id": [151329, 151336, 151338], "first_k_dense_replace": 1, "head_dim": 128, "hidden_act": "silu",
      "hidden_size": 4096, "intermediate_size": 10944, "max_position_embeddings": 131072, "model_type": "glm4_moe",
      "moe_intermediate_size": 1408, "n_group": 1, "n_routed_experts": 128, "n_shared_experts": 1,
      "norm_topk_prob": true, "num_attention_heads": 96, "num_experts_per_tok": 8, "num_hidden_layers": 46,
      "num_key_value_heads": 8, "num_nextn_predict_layers": 1, "partial_rotary_factor": 0.5, "rms_norm_eps": 1e-05,
      "rope_scaling": null, "rope_theta": 1000000, "routed_scaling_factor": 1.0, "tie_word_embeddings": false,
      "topk_group": 1, "torch_dtype": "bfloat16", "use_qk_norm": false, "vocab_size": 151552})");
  CHECK((c.qkv_bias && !c.o_bias && c.qk_norm == QkNorm::kNone && c.ropes[0].rotary_dim == 64));
  CHECK((!c.layer(0).has_experts && c.layer(1).has_experts && c.layer(45).has_experts));
  CHECK((c.experts.scores == ExpertScores::kLogistic && c.experts.choice_bias && c.experts.norm_topk_prob));
  CHECK((c.experts.num_groups == 1 && c.experts.shared_intermediate_size == 1408));
}

TEST_CASE("ERNIE-4.5-21B-A3B: a bias beside softmax, two shared experts") {
  const ModelConfig c = parsed(R"({"architectures": ["Ernie4_5_MoeForCausalLM"], "bos_token_id": 1, "eos_token_id": 2,
      "hidden_act": "silu", "hidden_size": 2560, "intermediate_size": 12288, "max_position_embeddings": 131072,
      "model_type": "ernie4_5_moe", "moe_capacity": [64, 64, 64], "moe_gate": "topk", "moe_intermediate_size": 1536,
      "moe_k": 6, "moe_layer_interval": 1, "moe_layer_start_index": 1, "moe_num_experts": 64,
      "moe_num_shared_experts": 2, "moe_use_aux_free": true, "num_attention_heads": 20, "num_hidden_layers": 28,
      "num_key_value_heads": 4, "rms_norm_eps": 1e-05, "rope_scaling": null, "rope_theta": 500000.0,
      "tie_word_embeddings": true, "torch_dtype": "bfloat16", "use_bias": false, "vocab_size": 103424})");
  CHECK((c.head_dim == 128 && c.tie_word_embeddings && !c.qkv_bias));
  CHECK((!c.layer(0).has_experts && c.layer(1).has_experts && c.layer(27).has_experts));
  CHECK((c.experts.scores == ExpertScores::kSoftmax && c.experts.choice_bias && c.experts.top_k == 6));
  CHECK(c.experts.shared_intermediate_size == 3072);
}

TEST_CASE("Hunyuan-A13B: lists of numbers that are alike, norms behind the rotation, alpha in place of theta") {
  const std::string json = R"({"architectures": ["HunYuanMoEV1ForCausalLM"], "attention_head_dim": 128, "head_dim": 128,
      "hidden_act": "silu", "hidden_size": 4096, "intermediate_size": 3072, "max_position_embeddings": 32768,
      "model_type": "hunyuan_v1_moe", "moe_topk": [8, 8], "num_attention_heads": 32, "num_experts": 64,
      "num_hidden_layers": 2, "num_key_value_heads": 8, "num_shared_expert": [1, 1], "rms_norm_eps": 1e-05,
      "rope_scaling": {"alpha": 1000.0, "beta_fast": 32, "beta_slow": 1, "factor": 1.0, "mscale": 1.0,
      "mscale_all_dim": 1.0, "type": "dynamic"}, "rope_theta": 10000.0, "tie_word_embeddings": true,
      "torch_dtype": "bfloat16", "use_cla": false, "use_qk_norm": true, "vocab_size": 128167})";
  const ModelConfig c = parsed(json.c_str());
  CHECK((c.qk_norm == QkNorm::kRotatedPerHead && c.experts.top_k == 8 && c.experts.norm_topk_prob));
  CHECK((c.experts.intermediate_size == 3072 && c.experts.shared_intermediate_size == 3072));
  CHECK(c.ropes[0].scaling.kind == RopeScalingKind::kNone);
  CHECK(c.ropes[0].theta == doctest::Approx(1e4 * std::pow(1000.0, 128.0 / 126)));
  nlohmann::json other = nlohmann::json::parse(json);
  other["moe_topk"] = {8, 4};
  CHECK(parse_model_config(other.dump()).status().message().find("differs by layer") != std::string::npos);
}

TEST_CASE("Llama-4-Scout: the text part, chunks in three of four layers, queries of the fourth that grow") {
  const ModelConfig c = parsed(R"({"architectures": ["Llama4ForConditionalGeneration"], "model_type": "llama4",
      "text_config": {"attention_bias": false, "attention_chunk_size": 8192, "attn_scale": 0.1,
      "attn_temperature_tuning": 4, "floor_scale": 8192, "head_dim": 128, "hidden_act": "silu", "hidden_size": 5120,
      "interleave_moe_layer_step": 1, "intermediate_size": 8192, "intermediate_size_mlp": 16384,
      "max_position_embeddings": 10485760, "model_type": "llama4_text", "no_rope_layers": [], "num_attention_heads": 40,
      "num_experts_per_tok": 1, "num_hidden_layers": 48, "num_key_value_heads": 8, "num_local_experts": 16,
      "rms_norm_eps": 1e-05, "rope_scaling": {"factor": 16.0, "high_freq_factor": 1.0, "low_freq_factor": 1.0,
      "original_max_position_embeddings": 8192, "rope_type": "llama3"}, "rope_theta": 500000.0, "use_qk_norm": true,
      "vocab_size": 202048}, "torch_dtype": "bfloat16", "vision_config": {}})");
  CHECK((c.model_type == "llama4_text" && c.qk_norm == QkNorm::kWeightless));
  CHECK((c.layer(0).chunk == 8192 && c.layer(0).rope == 0 && c.layer(3).chunk == 0 && c.layer(3).rope == -1));
  CHECK((c.query_growth.scale == 0.1 && c.query_growth.step == 8192));
  CHECK((c.experts.weighs_input && c.experts.scores == ExpertScores::kLogistic && !c.experts.norm_topk_prob));
  CHECK((c.experts.shared_intermediate_size == 8192 && c.layer(0).has_experts && c.layer(47).has_experts));
}

TEST_CASE("Qwen2.5-VL-3B: the text part stands beside the others; Qwen3-VL: inside") {
  const ModelConfig c = parsed(R"({"architectures": ["Qwen2_5_VLForConditionalGeneration"], "hidden_act": "silu",
      "hidden_size": 2048, "image_token_id": 151655, "intermediate_size": 11008, "max_position_embeddings": 128000,
      "max_window_layers": 70, "model_type": "qwen2_5_vl", "num_attention_heads": 16, "num_hidden_layers": 36,
      "num_key_value_heads": 2, "rms_norm_eps": 1e-06, "rope_scaling": {"mrope_section": [16, 24, 24], "type": "mrope"},
      "rope_theta": 1000000.0, "sliding_window": 32768, "tie_word_embeddings": true, "torch_dtype": "bfloat16",
      "use_sliding_window": false, "vision_config": {"depth": 32}, "vocab_size": 151936})");
  CHECK((c.qkv_bias && c.tie_word_embeddings && c.ropes[0].scaling.kind == RopeScalingKind::kNone));
  CHECK((c.ropes[0].theta == 1000000 && c.head_dim == 128 && c.layer(0).window == 0));
  const ModelConfig inside = parsed(R"({"architectures": ["Qwen3VLForConditionalGeneration"], "model_type": "qwen3_vl",
      "text_config": {"attention_bias": false, "dtype": "bfloat16", "head_dim": 128, "hidden_act": "silu",
      "hidden_size": 2560, "intermediate_size": 9728, "max_position_embeddings": 262144, "model_type": "qwen3_vl_text",
      "num_attention_heads": 32, "num_hidden_layers": 36, "num_key_value_heads": 8, "rms_norm_eps": 1e-06,
      "rope_scaling": {"mrope_interleaved": true, "mrope_section": [24, 20, 20], "rope_type": "default"},
      "rope_theta": 5000000, "tie_word_embeddings": true, "vocab_size": 151936}, "tie_word_embeddings": true,
      "vision_config": {"depth": 24}})");
  CHECK((inside.qk_norm == QkNorm::kPerHead && inside.ropes[0].theta == 5000000 && inside.tie_word_embeddings));
}

TEST_CASE("Qwen3-VL-30B-A3B: the text part inside; Ministral-3-8B: as far as its rope was trained, before its queries grow") {
  const ModelConfig c = parsed(R"({"architectures": ["Qwen3VLMoeForConditionalGeneration"], "model_type": "qwen3_vl_moe",
      "text_config": {"attention_bias": false, "decoder_sparse_step": 1, "dtype": "bfloat16", "head_dim": 128,
      "hidden_act": "silu", "hidden_size": 2048, "intermediate_size": 6144, "max_position_embeddings": 262144,
      "mlp_only_layers": [], "model_type": "qwen3_vl_moe_text", "moe_intermediate_size": 768, "norm_topk_prob": true,
      "num_attention_heads": 32, "num_experts": 128, "num_experts_per_tok": 8, "num_hidden_layers": 48,
      "num_key_value_heads": 4, "rms_norm_eps": 1e-06, "rope_scaling": {"mrope_interleaved": true,
      "mrope_section": [24, 20, 20], "rope_type": "default"}, "rope_theta": 5000000, "vocab_size": 151936},
      "tie_word_embeddings": false, "vision_config": {"depth": 27}})");
  CHECK((c.experts.num_experts == 128 && c.experts.top_k == 8 && c.experts.norm_topk_prob && c.layer(47).has_experts));
  CHECK((c.qk_norm == QkNorm::kPerHead && c.ropes[0].theta == 5000000 && !c.tie_word_embeddings));
  const ModelConfig ministral = parsed(R"({"architectures": ["Mistral3ForConditionalGeneration"], "model_type": "mistral3",
      "text_config": {"head_dim": 128, "hidden_act": "silu", "hidden_size": 4096, "intermediate_size": 14336,
      "max_position_embeddings": 262144, "model_type": "ministral3", "num_attention_heads": 32, "num_hidden_layers": 34,
      "num_key_value_heads": 8, "rms_norm_eps": 1e-05, "rope_parameters": {"beta_fast": 32.0, "beta_slow": 1.0,
      "factor": 16.0, "llama_4_scaling_beta": 0.1, "mscale": 1.0, "mscale_all_dim": 1.0,
      "original_max_position_embeddings": 16384, "rope_theta": 1000000.0, "rope_type": "yarn", "type": "yarn"},
      "sliding_window": null, "tie_word_embeddings": false, "vocab_size": 131072}, "vision_config": {"model_type": "pixtral"}})");
  CHECK((ministral.max_position_embeddings == 16384 && ministral.ropes[0].scaling.attention_factor == 1));
  CHECK((ministral.ropes[0].scaling.factor == 16 && ministral.layer(0).window == 0));
}

TEST_CASE("groups that cannot be, and sizes that cannot be, are refused by name") {
  const std::pair<const char*, const char*> cases[] = {
      {R"("model_type": "glm4_moe", "n_routed_experts": 10, "n_group": 4)", "n_routed_experts"},
      {R"("model_type": "glm4_moe", "n_routed_experts": 16, "n_group": 8, "topk_group": 1)", "num_experts_per_tok"},
      {R"("model_type": "glm4_moe", "n_group": 2, "topk_group": 3)", "topk_group"},
      {R"("model_type": "glm4_moe", "n_shared_experts": 4096)", "shared experts"},
      {R"("model_type": "ernie4_5_moe", "use_bias": true)", "use_bias"},
      {R"("model_type": "hunyuan_v1_dense", "use_cla": true)", "use_cla"},
      {R"("model_type": "hunyuan_v1_dense", "rope_scaling": {"type": "yarn", "factor": 4.0})", "attention factor"},
      {R"("model_type": "llama4_text", "intermediate_size_mlp": 64, "no_rope_layers": [1])", "no_rope_layers"},
  };
  for (const auto& [fields, message] : cases) {
    CAPTURE(fields);
    const auto config = parse_model_config(
        R"({"vocab_size": 100, "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2, "head_dim": 64,
            "num_attention_heads": 4, "num_key_value_heads": 4, )" + std::string(fields) + "}");
    REQUIRE_FALSE(config.ok());
    CHECK(config.status().message().find(message) != std::string::npos);
  }
}

}  // namespace
}  // namespace llmb::test
