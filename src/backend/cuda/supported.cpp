#include "backend/cuda/supported.h"

#include <algorithm>
#include <set>
#include <string>
#include <tuple>
#include <utility>

#include "kernels/cuda/causal_conv.h"
#include "kernels/cuda/experts.h"
#include "kernels/cuda/resolve_step.h"
#include "kernels/cuda/update_states.h"

namespace llmb {

namespace {

// The longest texts that chunks of attention do not cut.
int32_t smallest_chunk(const ModelConfig& config) {
  int32_t chunk = INT32_MAX;
  for (const LayerConfig& layer : config.layers)
    if (layer.chunk > 0) chunk = std::min(chunk, layer.chunk);
  return chunk;
}

// How many different numbers and sizes of KV heads, and chunks that cut texts, layers have.
int32_t num_attention_kinds(const ModelConfig& config, int32_t max_model_len) {
  std::set<std::tuple<int32_t, int32_t, int32_t>> kinds;
  for (int32_t i = 0; i < config.num_used_layers(); ++i) {
    const int32_t chunk = config.layer(i).chunk;
    kinds.insert({config.num_kv_heads_of(i), config.head_dim_of(i), chunk < max_model_len ? chunk : 0});
  }
  return static_cast<int32_t>(kinds.size());
}

}  // namespace

Status check_cuda_options(const ModelConfig& config, const LoadOptions& options, int32_t num_slices) {
  if (options.block_size % (8 * num_slices) != 0 || options.block_size / num_slices > 256)
    return invalid_argument("block_size is " + std::to_string(options.block_size) +
                            ", on a GPU it is a multiple of 8 up to 256");
  const DType dtype = options.dtype.value_or(config.gpu_dtype()), kv_dtype = options.kv_cache_dtype.value_or(dtype);
  const bool has_scales = kv_dtype == DType::kI8 || kv_dtype == DType::kF8;
  const std::string kv_flag = std::string("kv-cache-dtype ") + dtype_name(kv_dtype);
  if (kv_dtype != dtype && !has_scales)
    return unsupported(kv_flag + ": on a GPU the KV cache is int8, fp8 or has the dtype of the activations, here " +
                       dtype_name(dtype));
  if (has_scales && (config.has_latent() || config.heads_differ()))
    return unsupported(kv_flag + ": on a GPU not with model_type \"" + config.model_type +
                       "\", whose cache holds latents, or heads that differ by layer; leave it out");
  const int32_t chunk = smallest_chunk(config);
  if (chunk < options.max_model_len && options.max_num_drafts > 0 && options.max_drafts_per_group > 0)
    return unsupported("speculative: model_type \"" + config.model_type + "\" attends in chunks of " +
                       std::to_string(chunk) +
                       " positions, between which a GPU verifies no drafts; leave it out, or "
                       "use --max-model-len " +
                       std::to_string(chunk));
  const Quantization quantization = options.cpu.quantization;
  if ((quantization == Quantization::kInt4 || quantization == Quantization::kFp8) && dtype == DType::kF32)
    return unsupported(std::string("quantization ") + quantization_name(quantization) +
                       ": activations on a GPU have 16 bits then; use --dtype bfloat16 or float16");
  if (options.cpu.rounds_block_activations)
    return unsupported("gguf-activations int8 is for the CPU only; leave it out, or use --device cpu");
  if (!options.cpu.weight_cache_dir.empty())
    return unsupported("weight-cache is for the CPU, a GPU takes weights as they are stored; leave it out");
  return {};
}

Status check_cuda_support(const ModelConfig& config, int32_t max_model_len) {
  const std::pair<const char*, bool> missing[] = {
      {"a convolution over more than 8 tokens", config.state.conv_width > cuda::kMaxConvWidth},
      {"states with keys of more than 256 channels", config.state.key_dim > cuda::kMaxStateKeyDim},
      {"heads of more than two sizes, or chunks of attention",
       num_attention_kinds(config, max_model_len) > cuda::kMaxWorkLists},
      {"more than 32 experts a token", config.experts.top_k > cuda::kMaxExpertsPerToken},
      {"more than 32 groups of experts", config.experts.num_groups > cuda::kMaxExpertGroups},
      {"more than 4096 experts", config.experts.num_experts > cuda::kMaxExperts},
  };
  for (const auto& [feature, is_used] : missing)
    if (is_used)
      return unsupported("model_type \"" + config.model_type + "\" needs " + feature +
                         ", which the CUDA backend does not have; use --device cpu");
  return {};
}

}  // namespace llmb
