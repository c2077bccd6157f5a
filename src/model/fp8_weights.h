// Weights stored in 8-bit floats (E4M3: Micikevicius et al. 2022, arXiv:2209.05433) with their scales beside them.
#pragma once

#include "base/thread_pool.h"
#include "core/model_config.h"
#include "formats/safetensors.h"
#include "model/weight_source.h"

namespace llmb {

inline constexpr std::string_view kFp8DType = "F8_E4M3";

// The value of an E4M3 byte: 4 bits of exponent, 3 of mantissa, no infinities, up to 448.
float fp8_e4m3_to_f32(uint8_t bits);

// A checkpoint whose matrices may be F8_E4M3: value × scale, rounded to `dtype`. The scale of NAME is NAME_scale or
// NAME_scale_inv in fp32, fp16 or bf16, which published models use alike: one number; one a row; or one for each block
// of the config's fp8_block sizes. Other tensors are as they are.
class Fp8Source final : public WeightSource {
 public:
  Fp8Source(const Checkpoint& checkpoint, const ModelConfig& config, ThreadPool& pool,
            WeightAccess access = WeightAccess::kValues)
      : checkpoint_(checkpoint), config_(config), pool_(pool), access_(access), reads_(checkpoint.files()) {}
  bool has(const std::string& name) const override { return checkpoint_.find(name).has_value(); }
  Result<TensorView> tensor(const std::string& name, std::span<const int64_t> shape) override;
  Result<const uint8_t*> bytes(const std::string& name, std::span<const int64_t> shape) override;
  void release() override {
    buffers_.release();
    reads_.release();
  }

 private:
  const Checkpoint& checkpoint_;
  const ModelConfig& config_;
  ThreadPool& pool_;
  const WeightAccess access_;
  WeightBuffers buffers_;
  MappedReads reads_;
};

}  // namespace llmb
