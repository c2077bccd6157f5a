#include "backend/cuda/gpu_weights.h"

#include "backend/cuda/stored_blocks.h"

namespace llmb {

int64_t least_weight_bits(const StoredQuantization& stored, Quantization quantization, DType dtype) {
  if (stored.method != StoredMethod::kNumbers) return stored.least_bits();
  if (quantization == Quantization::kInt4 || quantization == Quantization::kW4A8) return 4;
  return quantization != Quantization::kNone ? 8 : 8 * dtype_bytes(dtype);
}

std::unique_ptr<WeightSource> make_gpu_source(const WeightFiles* files, const ModelConfig& config,
                                              const LoadOptions& options, DType dtype,
                                              const StoredQuantization& stored, ThreadPool& pool) {
  if (files == nullptr) return std::make_unique<RandomSource>(options.dummy_seed, config.dtype, pool);
  const bool keeps_fp8 = options.cpu.quantization == Quantization::kFp8 && config.has_quantization;
  return files->make_source(pool, WeightAccess::kValues, form_to_read(stored.method, keeps_fp8, dtype));
}

}  // namespace llmb
