// A weight matrix in device memory as the kernels see it. Owns nothing.
#pragma once

#include <cstdint>

namespace llmb::cuda {

// Both parts are of the run's activation type T.
struct LinearView {
  const void* weight = nullptr;  // [out_features, in_features]
  const void* bias = nullptr;    // [out_features], or nullptr
  int64_t out_features = 0;
  int64_t in_features = 0;
};

}  // namespace llmb::cuda
