// Scales of quantised matrices. Private to src/model.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "core/types.h"
#include "formats/safetensors.h"

namespace llmb {

// REQUIRES: the name ends in ".weight", which is left out.
inline std::string stem_of(const std::string& name) { return name.substr(0, name.size() - 7); }

// F32, F16 or BF16; else kUnsupported.
Result<DType> scale_dtype(const StoredTensor& tensor);
// A tensor of such scales, of which some are read. Scales that are not finite are remembered.
class StoredScales {
 public:
  static Result<StoredScales> of(const StoredTensor& tensor);
  int64_t size() const { return size_; }
  DType dtype() const { return dtype_; }
  float read(int64_t index);
  Status status() const;  // kDataLoss: one that was read is not finite

 private:
  const uint8_t* data_ = nullptr;
  DType dtype_ = DType::kF32;
  int64_t size_ = 0;
  bool are_finite_ = true;
  std::string where_;
};

// All of a tensor of such scales. kDataLoss: one is not finite.
Result<std::vector<float>> read_finite(const StoredTensor& tensor);

}  // namespace llmb
