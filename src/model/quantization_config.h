// Reads from config.json how weights are quantised, and whether the loader can read them.
#pragma once

#include "core/model_config.h"
#include "model/config_fields.h"

namespace llmb {

// Reads "quantization_config" where there is one: E4M3 weights of quant_method "fp8", or "compressed-tensors" in format
// float-quantized; "mxfp4" of gpt_oss. Everything else is refused by its name. Activations are never quantised,
// whatever the file says of them.
void read_quantization(ConfigFields& fields, ModelConfig* config);

}  // namespace llmb
