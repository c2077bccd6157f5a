#include "backend/cuda/supported.h"

#include <string>
#include <utility>

namespace llmb {

Status check_cuda_support(const ModelConfig& config) {
  const std::pair<const char*, bool> missing[] = {
      {"LayerNorm", config.norm == NormKind::kLayer},
      {"norms of q and k", config.qk_norm != QkNorm::kNone},
      {"norms after attention and MLP", config.post_norm},
      {"layers without norms before them", !config.pre_norm},
      {"parallel residuals", config.residual != ResidualKind::kSequential},
      {"learned positions", config.learned_positions},
      {"activations other than SwiGLU", config.activation != ActivationSpec()},
      {"experts", config.experts.num_experts > 0},
      {"multipliers", config.embedding_multiplier != 1 || config.residual_multiplier != 1 || config.logit_multiplier != 1},
      {"soft caps of logits", config.logit_softcap > 0},
      {"clipped q, k and v", config.qkv_clip > 0},
  };
  for (const auto& [feature, is_used] : missing)
    if (is_used)
      return unsupported("model_type \"" + config.model_type + "\" needs " + feature +
                         ", which the CUDA backend does not have yet; use --device cpu");
  return {};
}

}  // namespace llmb
