#include "backend/cuda/gpu_weights.h"

namespace llmb {

int64_t least_weight_bits(StoredMethod stored, Quantization quantization, DType dtype) {
  if (stored != StoredMethod::kNumbers || quantization == Quantization::kInt4) return 4;
  return quantization != Quantization::kNone ? 8 : 8 * dtype_bytes(dtype);
}

std::unique_ptr<WeightSource> make_gpu_source(const WeightFiles* files, const ModelConfig& config,
                                              const LoadOptions& options, DType dtype, StoredMethod stored,
                                              ThreadPool& pool) {
  if (files == nullptr) return std::make_unique<RandomSource>(options.dummy_seed, config.dtype, pool);
  const WeightForm four_bits = dtype == DType::kF16 ? WeightForm::kFourBitsF16 : WeightForm::kFourBitsBF16;
  const bool keeps_fp8 = options.cpu.quantization == Quantization::kFp8 && config.has_quantization;
  const WeightForm others = keeps_fp8 ? WeightForm::kBlocks : WeightForm::kNumbers;
  return files->make_source(pool, WeightAccess::kValues, stored != StoredMethod::kNumbers ? four_bits : others);
}

}  // namespace llmb
