// Checkpoints whose matrices are stored as integers of few bits, with scales beside them, by the tools that published
// models were quantised with: GPTQ, AWQ, compressed-tensors, bitsandbytes.
//
// Every weight is what the format's own code dequantises it to, bit for bit: scale · (code − zero), rounded once to the
// dtype of the scales, or for bitsandbytes to the model's dtype.
#pragma once

#include "model/fp8_weights.h"
#include "model/quantization_config.h"

namespace llmb {

// Matrices as numbers; what is not stored in such a format is as Fp8Source has it. kDataLoss names the tensor: one that
// is missing or misshapen, a scale that is not finite, a group that there is not.
class PackedSource final : public WeightSource {
 public:
  PackedSource(const Checkpoint& checkpoint, const ModelConfig& config, const StoredQuantization& stored,
               ThreadPool& pool, WeightAccess access = WeightAccess::kValues)
      : checkpoint_(checkpoint),
        config_(config),
        stored_(stored),
        pool_(pool),
        access_(access),
        others_(checkpoint, config, pool, access),
        reads_(checkpoint.files()) {}
  bool has(const std::string& name) const override;
  Result<TensorView> tensor(const std::string& name, std::span<const int64_t> shape) override;
  Result<const uint8_t*> bytes(const std::string& name, std::span<const int64_t> shape) override {
    return others_.bytes(name, shape);
  }
  void release() override {
    others_.release();
    buffers_.release();
    reads_.release();
  }

 private:
  struct Groups;
  struct Codes;
  Result<StoredTensor> part(const std::string& name, std::string_view dtype, std::span<const int64_t> shape);
  Result<Groups> read_groups(const std::string& stem, int64_t rows, int64_t cols);
  Status read_group_index(const std::string& name, int64_t cols, int64_t num_groups, bool required,
                          std::vector<int32_t>* of);
  Result<TensorView> gptq_or_awq(const std::string& stem, int64_t rows, int64_t cols);
  Result<TensorView> compressed(const std::string& stem, int64_t rows, int64_t cols);
  Result<TensorView> four_bits(const std::string& name, int64_t rows, int64_t cols);
  Result<std::vector<float>> four_bit_scales(const std::string& name, const std::string& state, int64_t count);
  Result<TensorView> eight_bits(const std::string& name, int64_t rows, int64_t cols);
  template <typename Value>
  TensorView make(DType dtype, int64_t rows, int64_t cols, const Value& value);

  const Checkpoint& checkpoint_;
  const ModelConfig& config_;
  const StoredQuantization stored_;
  ThreadPool& pool_;
  const WeightAccess access_;
  Fp8Source others_;
  WeightBuffers buffers_;
  MappedReads reads_;
};

}  // namespace llmb
