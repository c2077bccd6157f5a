// Scales of quantised matrices. Private to src/model.
#pragma once

#include <vector>

#include "base/status.h"
#include "core/types.h"
#include "formats/safetensors.h"

namespace llmb {

// F32, F16 or BF16; else kUnsupported.
Result<DType> scale_dtype(const StoredTensor& tensor);
// All of a tensor of such scales. kDataLoss: one is not finite.
Result<std::vector<float>> read_finite(const StoredTensor& tensor);

}  // namespace llmb
