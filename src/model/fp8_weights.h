// Weights stored in 8-bit floats (E4M3: Micikevicius et al. 2022, arXiv:2209.05433) with their scales beside them.
#pragma once

#include "base/thread_pool.h"
#include "core/model_config.h"
#include "formats/safetensors.h"
#include "model/weight_source.h"

namespace llmb {

inline constexpr std::string_view kFp8DType = "F8_E4M3";

// A checkpoint whose matrices may be F8_E4M3: value × scale, rounded to `dtype`. The scale of NAME is NAME_scale or
// NAME_scale_inv in fp32, fp16 or bf16, which published models use alike: one number; one a row; or one for each block
// of the config's fp8_block sizes. Matrices may come in blocks (core/block_format.h), which mean the same numbers.
// Other tensors are as they are.
class Fp8Source final : public WeightSource {
 public:
  Fp8Source(const Checkpoint& checkpoint, const ModelConfig& config, ThreadPool& pool,
            WeightAccess access = WeightAccess::kValues, WeightForm form = WeightForm::kNumbers)
      : checkpoint_(checkpoint),
        config_(config),
        pool_(pool),
        access_(access),
        form_(form),
        reads_(checkpoint.files()) {}
  bool has(const std::string& name) const override { return checkpoint_.find(name).has_value(); }
  Result<TensorView> tensor(const std::string& name, std::span<const int64_t> shape) override;
  Result<std::optional<TensorView>> outline(const std::string& name, std::span<const int64_t> shape) override;
  Result<TensorView> part(const std::string& name, std::span<const int64_t> shape, const MatrixPart& part) override;
  Result<const uint8_t*> bytes(const std::string& name, std::span<const int64_t> shape) override;
  void release() override {
    buffers_.release();
    reads_.release();
  }

 private:
  struct Scales;
  bool is_fp8(const std::string& name, std::span<const int64_t> shape) const;
  Result<Scales> read_scales(const StoredTensor& tensor, int64_t rows, int64_t cols) const;
  TensorView blocks(const uint8_t* codes, const Scales& scales, const MatrixPart& part);
  TensorView numbers(const uint8_t* codes, const Scales& scales, const MatrixPart& part);

  const Checkpoint& checkpoint_;
  const ModelConfig& config_;
  ThreadPool& pool_;
  const WeightAccess access_;
  const WeightForm form_;
  WeightBuffers buffers_;
  MappedReads reads_;
};

}  // namespace llmb
