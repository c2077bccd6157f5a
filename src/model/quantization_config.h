// Reads from config.json how weights are quantised, and whether the loader can read them.
#pragma once

#include <string>

#include "core/model_config.h"
#include "model/config_fields.h"

namespace llmb {

// How a checkpoint stores the matrices that are not numbers (model/packed_weights.h).
enum class StoredMethod { kNumbers, kGptq, kAwq, kPackedInts, kInts, kNvfp4, kBitsandbytes, kMxfp4, kSparse24 };

struct StoredQuantization {
  StoredMethod method = StoredMethod::kNumbers;
  int32_t bits = 4;                 // of a code
  int64_t group_size = 0;           // columns that share a scale; 0: all
  bool has_order = false;           // GPTQ: groups are of columns in an order that the checkpoint stores
  bool zeros_are_one_less = false;  // GPTQ: as stored, but in checkpoints of its second version

  friend bool operator==(const StoredQuantization&, const StoredQuantization&) = default;
  // That a weight of such matrices takes.
  int32_t least_bits() const { return method == StoredMethod::kSparse24 ? 9 : bits; }
  bool is_gptq_or_awq() const { return method == StoredMethod::kGptq || method == StoredMethod::kAwq; }
  // Whether a matrix NAME may be stored as NAME_packed.
  bool is_packed() const { return method == StoredMethod::kPackedInts || method == StoredMethod::kNvfp4; }
};

// Reads "quantization_config" where there is one: E4M3 weights of quant_method "fp8", or "compressed-tensors" in format
// float-quantized, pack-quantized, int-quantized or nvfp4-pack-quantized, or numbers in sparse-24-bitmask; "gptq",
// "awq", "bitsandbytes"; "mxfp4" of gpt_oss. Everything else is refused by its name. Activations are never quantised,
// whatever the file says of them.
void read_quantization(ConfigFields& fields, ModelConfig* config);

// The same of a model's config.json. Numbers where there is no such file.
Result<StoredQuantization> load_stored_quantization(const std::string& model_dir);

// How the model stores the matrices that a GPU multiplies as they are, beside activations of 16 bits and where nothing
// quantises them anew: integers or 2:4 sparse numbers, but not of models with experts, or experts in MXFP4. kNumbers:
// there are none.
Result<StoredQuantization> stays_packed_on_gpu(const std::string& model_dir, const ModelConfig& config,
                                               DType activations, Quantization quantization);

}  // namespace llmb
