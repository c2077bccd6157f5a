// For each architecture, what its config.json says beyond sizes: into the description that the forward pass follows.
// Private to src/model.
#pragma once

#include "core/model_config.h"
#include "model/config_fields.h"

namespace llmb {

// architecture_llama.cpp: RMSNorm, rotary positions, gated MLPs.
void read_llama(ConfigFields& f, ModelConfig* c);
void read_mistral(ConfigFields& f, ModelConfig* c);
void read_qwen2(ConfigFields& f, ModelConfig* c);
void read_qwen3(ConfigFields& f, ModelConfig* c);
void read_qwen2_vl(ConfigFields& f, ModelConfig* c);
void read_qwen3_vl_text(ConfigFields& f, ModelConfig* c);
void read_smollm3(ConfigFields& f, ModelConfig* c);
void read_phi3(ConfigFields& f, ModelConfig* c);
void read_granite(ConfigFields& f, ModelConfig* c);
void read_olmo(ConfigFields& f, ModelConfig* c);
void read_olmo2(ConfigFields& f, ModelConfig* c);
void read_olmo3(ConfigFields& f, ModelConfig* c);
void read_exaone4(ConfigFields& f, ModelConfig* c);
void read_ministral(ConfigFields& f, ModelConfig* c);
void read_ministral3(ConfigFields& f, ModelConfig* c);
void read_glm(ConfigFields& f, ModelConfig* c);
void read_glm4(ConfigFields& f, ModelConfig* c);
void read_ernie4_5(ConfigFields& f, ModelConfig* c);
void read_hunyuan_v1_dense(ConfigFields& f, ModelConfig* c);
void read_helium(ConfigFields& f, ModelConfig* c);
void read_seed_oss(ConfigFields& f, ModelConfig* c);
void read_internlm2(ConfigFields& f, ModelConfig* c);

// architecture_gemma.cpp.
void read_gemma(ConfigFields& f, ModelConfig* c);
void read_gemma2(ConfigFields& f, ModelConfig* c);
void read_gemma3_text(ConfigFields& f, ModelConfig* c);
void read_gemma4(ConfigFields& f, ModelConfig* c);  // architecture_gemma4.cpp

// architecture_state.cpp: layers with a recurrent state among those with attention.
void read_gated_delta(ConfigFields& f, ModelConfig* c);
void read_mamba2(ConfigFields& f, ModelConfig* c);
void read_qwen3_5_text(ConfigFields& f, ModelConfig* c);
void read_lfm2(ConfigFields& f, ModelConfig* c);
void read_nemotron_h(ConfigFields& f, ModelConfig* c);

// architecture_gpt.cpp: LayerNorm, plain MLPs.
void read_gpt2(ConfigFields& f, ModelConfig* c);
void read_gpt_bigcode(ConfigFields& f, ModelConfig* c);
void read_gpt_neo(ConfigFields& f, ModelConfig* c);
void read_opt(ConfigFields& f, ModelConfig* c);
void read_nemotron(ConfigFields& f, ModelConfig* c);
void read_gpt_neox(ConfigFields& f, ModelConfig* c);
void read_starcoder2(ConfigFields& f, ModelConfig* c);
void read_falcon(ConfigFields& f, ModelConfig* c);
void read_bloom(ConfigFields& f, ModelConfig* c);
void read_mpt(ConfigFields& f, ModelConfig* c);

// architecture_parallel.cpp: attention and MLP side by side, behind one LayerNorm.
void read_cohere(ConfigFields& f, ModelConfig* c);
void read_cohere2(ConfigFields& f, ModelConfig* c);
void read_stablelm(ConfigFields& f, ModelConfig* c);
void read_phi(ConfigFields& f, ModelConfig* c);
void read_gptj(ConfigFields& f, ModelConfig* c);
void read_codegen(ConfigFields& f, ModelConfig* c);

// architecture_encoders.cpp: tokens see those behind them as well.
void read_bert(ConfigFields& f, ModelConfig* c);
void read_roberta(ConfigFields& f, ModelConfig* c);
void read_modernbert(ConfigFields& f, ModelConfig* c);
void read_nomic_bert(ConfigFields& f, ModelConfig* c);

// architecture_experts.cpp: experts as DeepSeek's models have them, with what the files leave out.
struct GroupedDefaults {
  bool norm_topk_prob = true;
  int64_t num_dense_layers = 0;  // the first ones
  int64_t num_experts = 128, top_k = 8, intermediate_size = 1408, num_groups = 1, top_groups = 1, num_shared = 1;
  double weight_scale = 1;
};
void read_grouped_experts(ConfigFields& f, const GroupedDefaults& defaults, ModelConfig* c);

void read_gemma4_experts(ConfigFields& f, ModelConfig* c);  // in all layers, beside dense MLPs

// architecture_latent.cpp: latent attention.
void read_deepseek_v2(ConfigFields& f, ModelConfig* c);
void read_deepseek_v3(ConfigFields& f, ModelConfig* c);
void read_glm4_moe_lite(ConfigFields& f, ModelConfig* c);
void read_youtu(ConfigFields& f, ModelConfig* c);

// architecture_experts.cpp: mixtures of experts.
void read_mixtral(ConfigFields& f, ModelConfig* c);
void read_qwen3_moe(ConfigFields& f, ModelConfig* c);
void read_qwen3_vl_moe_text(ConfigFields& f, ModelConfig* c);
void read_olmoe(ConfigFields& f, ModelConfig* c);
void read_granitemoe(ConfigFields& f, ModelConfig* c);
void read_granitemoehybrid(ConfigFields& f, ModelConfig* c);
void read_gpt_oss(ConfigFields& f, ModelConfig* c);
void read_qwen2_moe(ConfigFields& f, ModelConfig* c);
void read_glm4_moe(ConfigFields& f, ModelConfig* c);
void read_dots1(ConfigFields& f, ModelConfig* c);
void read_ernie4_5_moe(ConfigFields& f, ModelConfig* c);
void read_hunyuan_v1_moe(ConfigFields& f, ModelConfig* c);
void read_llama4_text(ConfigFields& f, ModelConfig* c);
void read_qwen3_next(ConfigFields& f, ModelConfig* c);
void read_qwen3_5_moe_text(ConfigFields& f, ModelConfig* c);

}  // namespace llmb
