#include "backend/cuda/supported.h"

#include <string>
#include <utility>

#include "kernels/cuda/experts.h"

namespace llmb {

Status check_cuda_support(const ModelConfig& config) {
  const std::pair<const char*, bool> missing[] = {
      {"more than 32 experts a token", config.experts.top_k > cuda::kMaxExpertsPerToken},
      {"more than 4096 experts", config.experts.num_experts > cuda::kMaxExperts},
  };
  for (const auto& [feature, is_used] : missing)
    if (is_used)
      return unsupported("model_type \"" + config.model_type + "\" needs " + feature +
                         ", which the CUDA backend does not have; use --device cpu");
  return {};
}

}  // namespace llmb
