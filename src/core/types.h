// Names for the numbers that cross borders.
#pragma once

#include <cstdint>

namespace llmb {

using TokenId = int32_t;  // an entry of the vocabulary
using BlockId = int32_t;  // a KV block of the pool
using SeqId = int64_t;    // a sequence in the scheduler; unique within a run, in order of add()

// kF8 (e4m3) and kI4 are of KV caches only.
enum class DType { kF32, kF16, kBF16, kI8, kF8, kI4 };

// REQUIRES: not kI4
constexpr int64_t dtype_bytes(DType t) {
  return t == DType::kF32 ? 4 : t == DType::kI8 || t == DType::kF8 ? 1 : 2;
}
constexpr const char* dtype_name(DType t) {
  constexpr const char* kNames[] = {"float32", "float16", "bfloat16", "int8", "fp8", "int4"};
  return kNames[static_cast<int>(t)];
}

// The format that weight matrices are rounded to while they are loaded.
// kFp8: e4m3, on GPUs only. kW4A8: weights of four bits, activations of eight.
enum class Quantization { kNone, kInt8, kInt4, kFp8, kW4A8 };

constexpr const char* quantization_name(Quantization q) {
  constexpr const char* kNames[] = {"none", "int8", "int4", "fp8", "w4a8"};
  return kNames[static_cast<int>(q)];
}

constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace llmb
