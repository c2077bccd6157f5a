// The loader reads config.json files as they are published: those of models whose layers are a mixer or an MLP alone.
#include <doctest/doctest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "model/config_loader.h"

namespace llmb::test {
namespace {

// As Nemotron-H-8B's file, with an infinity as Python writes it.
const char* const kNemotronH = R"({"architectures": ["NemotronHForCausalLM"], "attention_bias": false, "bos_token_id": 1,
    "chunk_size": 128, "conv_kernel": 4, "eos_token_id": 2, "expand": 2, "head_dim": 128, "hidden_size": 4096,
    "hybrid_override_pattern": "M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-", "intermediate_size": 21504,
    "layer_norm_epsilon": 1e-05, "mamba_head_dim": 64, "mamba_hidden_act": "silu", "mamba_num_heads": 128,
    "mamba_proj_bias": false, "max_position_embeddings": 8192, "mlp_bias": false, "mlp_hidden_act": "relu2",
    "model_type": "nemotron_h", "n_groups": 8, "num_attention_heads": 32, "num_hidden_layers": 52,
    "num_key_value_heads": 8, "ssm_state_size": 128, "tie_word_embeddings": false, "time_step_limit": [0.0, Infinity],
    "time_step_min": 0.001, "torch_dtype": "bfloat16", "use_bias": false, "use_conv_bias": true, "vocab_size": 131072})";

}  // namespace

TEST_CASE("Nemotron-H-8B: 24 layers of Mamba, 4 of attention without positions, 24 MLPs") {
  const auto parsed = parse_model_config(kNemotronH);
  REQUIRE_MESSAGE(parsed.ok(), parsed.status().message());
  const ModelConfig& c = *parsed;
  int num_states = 0, num_attention = 0, num_mlps = 0;
  REQUIRE(c.num_hidden_layers == 52);
  for (const LayerConfig& layer : c.layers) {
    CHECK(layer.has_mixer != layer.has_mlp);
    num_states += layer.has_state, num_mlps += layer.has_mlp;
  }
  for (int32_t i = 0; i < c.num_hidden_layers; ++i) num_attention += c.has_own_kv(i);
  CHECK((num_states == 24 && num_attention == 4 && num_mlps == 24 && c.has_own_kv(7)));
  CHECK((c.ropes.empty() && !c.activation.gated && c.activation.kind == Activation::kRelu2 && c.norm_eps == 1e-5));
  CHECK((c.state.values_size() == 8192 && c.state.conv_channels() == 10240 && c.state.num_norms == 8));
  CHECK(c.state.conv_bias);
  // 8.1 billion parameters, of which the embedding has 0.54.
  CHECK(c.num_stored_matmul_params() / 100'000'000 == 75);
  CHECK(c.has_halves());
}

TEST_CASE("Nemotron-H: layers by name, with experts; what it cannot be is refused by name") {
  std::string text = kNemotronH;
  nlohmann::json json = nlohmann::json::parse(text.replace(text.find("Infinity"), 8, "1e9"));
  const auto message = [&] { return parse_model_config(json.dump()).status().message(); };
  CHECK(message().find("\"time_step_limit\"") != std::string::npos);
  json.erase("time_step_limit");
  json.erase("hybrid_override_pattern");
  json.erase("num_hidden_layers");
  CHECK(message().find("\"layers_block_type\"") != std::string::npos);
  json["layers_block_type"] = {"linear_attention", "moe", "full_attention", "mlp"};
  json.update({{"n_routed_experts", 16}, {"num_experts_per_tok", 3}, {"moe_intermediate_size", 100},
               {"moe_shared_expert_intermediate_size", 200}, {"routed_scaling_factor", 2.5}});
  const auto c = parse_model_config(json.dump());
  REQUIRE_MESSAGE(c.ok(), c.status().message());
  CHECK((c->num_hidden_layers == 4 && c->layer(1).has_experts && !c->layer(3).has_experts && c->layer(2).has_mixer));
  CHECK((c->experts.shared_intermediate_size == 200 && c->experts.choice_bias && c->experts.weight_scale == 2.5));
  json["layers_block_type"] = {"linear_attention", "mlp"};
  CHECK(message().find("no layer has attention") != std::string::npos);
  json["layers_block_type"] = {"full_attention", "conv"};
  CHECK(message().find("\"layers_block_type\"") != std::string::npos);
  json["layers_block_type"] = {"full_attention", "mlp"};
  json["use_bias"] = true;
  CHECK(message().find("\"use_bias\"") != std::string::npos);
  json["use_bias"] = false;
  json["moe_latent_size"] = 8;
  CHECK(message().find("\"moe_latent_size\"") != std::string::npos);
}

}  // namespace llmb::test
