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
void read_smollm3(ConfigFields& f, ModelConfig* c);
void read_phi3(ConfigFields& f, ModelConfig* c);
void read_granite(ConfigFields& f, ModelConfig* c);
void read_olmo2(ConfigFields& f, ModelConfig* c);

// architecture_gemma.cpp.
void read_gemma(ConfigFields& f, ModelConfig* c);
void read_gemma2(ConfigFields& f, ModelConfig* c);
void read_gemma3_text(ConfigFields& f, ModelConfig* c);

// architecture_gpt.cpp: LayerNorm, plain MLPs.
void read_gpt2(ConfigFields& f, ModelConfig* c);
void read_gpt_neox(ConfigFields& f, ModelConfig* c);
void read_starcoder2(ConfigFields& f, ModelConfig* c);
void read_falcon(ConfigFields& f, ModelConfig* c);
void read_bloom(ConfigFields& f, ModelConfig* c);
void read_mpt(ConfigFields& f, ModelConfig* c);

// architecture_experts.cpp: mixtures of experts.
void read_mixtral(ConfigFields& f, ModelConfig* c);
void read_qwen3_moe(ConfigFields& f, ModelConfig* c);
void read_gpt_oss(ConfigFields& f, ModelConfig* c);

}  // namespace llmb
