#include "backend/cpu/weight_memory.h"

#include "model/model_weights.h"

namespace llmb {

int64_t resident_weight_bytes(const ModelConfig& config, Quantization quantization, DType dtype,
                              const WeightFiles* files) {
  const int64_t stored = stored_weight_bytes(config);
  if (quantization == Quantization::kNone) {
    const bool stays_blocks = files != nullptr && files->stays_packed() && dtype != DType::kBF16;
    return stays_blocks ? files->stored_bytes() * (files->is_gguf() ? 21 : 24) / 20 : stored;
  }
  const int64_t vocabulary = (config.tie_word_embeddings ? 1 : 2) * int64_t{config.vocab_size} * config.hidden_size;
  const int64_t projections = stored / dtype_bytes(config.dtype) - vocabulary;
  return vocabulary + (quantization == Quantization::kInt8 ? projections : projections * 9 / 16);
}

}  // namespace llmb
