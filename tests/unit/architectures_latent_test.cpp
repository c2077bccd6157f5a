// The loader reads config.json files as they are published: those of models with latent attention.
#include <doctest/doctest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <string>

#include "core/kv_layout.h"
#include "model/config_loader.h"

namespace llmb::test {
namespace {

ModelConfig parsed(const std::string& json) {
  const auto config = parse_model_config(json);
  REQUIRE_MESSAGE(config.ok(), config.status().message());
  return *config;
}

int64_t cached_bytes(const ModelConfig& c) { return make_kv_layout(c, 16, DType::kBF16, {}).bytes_per_token(); }

std::string deepseek_v3(const std::string& model_type, const std::string& more = "") {
  return R"({"architectures": ["DeepseekV3ForCausalLM"], "attention_bias": false, "aux_loss_alpha": 0.001,
      "bos_token_id": 0, "eos_token_id": 1, "ep_size": 1, "first_k_dense_replace": 3, "hidden_act": "silu",
      "hidden_size": 7168, "intermediate_size": 18432, "kv_lora_rank": 512, "max_position_embeddings": 163840,
      "moe_intermediate_size": 2048, "moe_layer_freq": 1, "n_group": 8, "n_routed_experts": 256,
      "n_shared_experts": 1, "norm_topk_prob": true, "num_attention_heads": 128, "num_experts_per_tok": 8,
      "num_hidden_layers": 61, "num_key_value_heads": 128, "num_nextn_predict_layers": 1, "q_lora_rank": 1536,
      "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
      "quantization_config": {"activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8",
      "weight_block_size": [128, 128]}, "rms_norm_eps": 1e-06, "rope_scaling": {"beta_fast": 32, "beta_slow": 1,
      "factor": 40, "mscale": 1.0, "mscale_all_dim": 1.0, "original_max_position_embeddings": 4096, "type": "yarn"},
      "rope_theta": 10000, "routed_scaling_factor": 2.5, "scoring_func": "sigmoid", "seq_aux": true,
      "tie_word_embeddings": false, "topk_group": 4, "topk_method": "noaux_tc", "torch_dtype": "bfloat16",
      "v_head_dim": 128, "vocab_size": 129280)" +
         more + R"(, "model_type": ")" + model_type + "\"}";
}

}  // namespace

TEST_CASE("DeepSeek-V3: 576 numbers a token and layer, experts of four of eight groups, scores stretched by yarn") {
  const ModelConfig c = parsed(deepseek_v3("deepseek_v3"));
  CHECK((c.latent.rank == 512 && c.latent.rope_dim == 64 && c.latent.key_dim == 128 && c.latent.value_dim == 128));
  CHECK((c.latent.query_rank == 1536 && c.num_key_value_heads == 1 && c.head_dim == 576));
  CHECK(cached_bytes(c) == 576 * 61 * 2);
  CHECK((c.experts.num_groups == 8 && c.experts.top_groups == 4 && c.experts.weight_scale == 2.5));
  CHECK((c.experts.scores == ExpertScores::kLogistic && c.experts.choice_bias && c.experts.scores_of_group == 2));
  CHECK((!c.layer(2).has_experts && c.layer(3).has_experts && c.experts.shared_intermediate_size == 2048));
  const double mscale = 0.1 * std::log(40.0) + 1;
  CHECK(std::fabs(c.attention_scale - mscale * mscale / std::sqrt(192.0)) <= 1e-12);
  CHECK((c.ropes[0].scaling.attention_factor == 1 && c.ropes[0].rotary_dim == 64 && c.fp8_block_rows == 128));
  // 671 billion parameters, of which 37 billion take part in a token's products.
  CHECK(c.num_stored_matmul_params() / 1'000'000'000 == 670);
  CHECK(c.num_matmul_params() / 1'000'000'000 == 36);
}

TEST_CASE("Kimi K2 is DeepSeek-V3 in other sizes, inside a model that sees too") {
  const std::string k2 = deepseek_v3("kimi_k2");
  CHECK(parsed(k2).latent.rank == 512);
  const ModelConfig inside = parsed(R"({"model_type": "kimi_k25", "text_config": )" + k2 + "}");
  CHECK((inside.model_type == "kimi_k2" && inside.experts.num_experts == 256));
}

TEST_CASE("DeepSeek-V2-Lite: queries in one step, experts by softmax without groups") {
  const ModelConfig c = parsed(R"({"architectures": ["DeepseekV2ForCausalLM"], "attention_bias": false,
      "first_k_dense_replace": 1, "hidden_act": "silu", "hidden_size": 2048, "intermediate_size": 10944,
      "kv_lora_rank": 512, "max_position_embeddings": 163840, "model_type": "deepseek_v2",
      "moe_intermediate_size": 1408, "moe_layer_freq": 1, "n_group": 1, "n_routed_experts": 64, "n_shared_experts": 2,
      "norm_topk_prob": false, "num_attention_heads": 16, "num_experts_per_tok": 6, "num_hidden_layers": 27,
      "num_key_value_heads": 16, "q_lora_rank": null, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
      "rms_norm_eps": 1e-06, "rope_scaling": {"beta_fast": 32, "beta_slow": 1, "factor": 40, "mscale": 0.707,
      "mscale_all_dim": 0.707, "original_max_position_embeddings": 4096, "type": "yarn"}, "rope_theta": 10000,
      "routed_scaling_factor": 1.0, "scoring_func": "softmax", "topk_group": 1, "topk_method": "greedy",
      "torch_dtype": "bfloat16", "v_head_dim": 128, "vocab_size": 102400})");
  CHECK((c.latent.query_rank == 0 && c.experts.scores == ExpertScores::kSoftmax && !c.experts.choice_bias));
  CHECK((c.experts.shared_intermediate_size == 2816 && !c.experts.norm_topk_prob && c.experts.num_groups == 1));
  CHECK(c.num_stored_matmul_params() / 100'000'000 == 154);
  CHECK(c.num_matmul_params() / 100'000'000 == 24);
}

TEST_CASE("GLM-4.7-Flash: one dense layer, then experts") {
  const ModelConfig c = parsed(R"({"architectures": ["Glm4MoeLiteForCausalLM"], "attention_bias": false,
      "first_k_dense_replace": 1, "hidden_act": "silu", "hidden_size": 2048, "intermediate_size": 10240,
      "kv_lora_rank": 512, "max_position_embeddings": 202752, "model_type": "glm4_moe_lite",
      "moe_intermediate_size": 1536, "n_group": 1, "n_routed_experts": 64, "n_shared_experts": 1,
      "norm_topk_prob": true, "num_attention_heads": 20, "num_experts_per_tok": 4, "num_hidden_layers": 47,
      "num_key_value_heads": 20, "q_lora_rank": 768, "qk_nope_head_dim": 192, "qk_rope_head_dim": 64,
      "rms_norm_eps": 1e-05, "rope_theta": 1000000, "routed_scaling_factor": 1.8, "topk_group": 1,
      "v_head_dim": 256, "vocab_size": 154880})");
  CHECK((c.latent.value_dim == 256 && !c.layer(0).has_experts && c.layer(1).has_experts && c.o_size_of(0) == 5120));
}

TEST_CASE("of latent attention, what is not supported is refused by name") {
  const std::pair<std::string, const char*> cases[] = {
      {deepseek_v3("deepseek_v32"), "\"deepseek_v32\" attends to what an indexer picks"},
      {deepseek_v3("deepseek_v4", R"(, "index_topk": 512)"), "\"deepseek_v4\" attends to what an indexer picks"},
      {deepseek_v3("glm_moe_dsa"), "\"glm_moe_dsa\" attends to what an indexer picks"},
      {deepseek_v3("deepseek_v3", R"(, "index_topk": 2048)"), "index_topk"},
      {deepseek_v3("deepseek_v2"), "\"topk_method\" \"noaux_tc\" is not supported"}};
  for (const auto& [json, message] : cases) {
    const auto config = parse_model_config(json);
    REQUIRE_FALSE(config.ok());
    CAPTURE(config.status().message());
    CHECK(config.status().message().find(message) != std::string::npos);
  }
  const nlohmann::json whole = nlohmann::json::parse(deepseek_v3("deepseek_v3"));
  for (const auto& [field, value] :
       {std::pair("kv_lora_rank", 511), {"qk_rope_head_dim", 63}, {"kv_lora_rank", 4096}, {"qk_nope_head_dim", 0},
        {"moe_layer_freq", 2}, {"topk_group", 9}}) {
    nlohmann::json json = whole;
    json[field] = value;
    const auto config = parse_model_config(json.dump());
    CAPTURE(field);
    REQUIRE_FALSE(config.ok());
    CHECK(config.status().message().find(field) != std::string::npos);
  }
}

}  // namespace llmb::test
