// Checkpoints whose matrices are stored as integers of few bits, with scales beside them, by the tools that published
// models were quantised with: GPTQ, AWQ, compressed-tensors, bitsandbytes; or of whose numbers half are zeros that are
// not stored.
//
// Every weight is what the format's own code dequantises it to, bit for bit: scale · (code − zero), rounded once to the
// dtype of the scales, or for bitsandbytes to the model's dtype, for NVFP4 to bf16. They may come in blocks
// (core/block_format.h), which mean the same numbers.
#pragma once

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "base/float_formats.h"
#include "model/fp8_weights.h"
#include "model/quantization_config.h"

namespace llmb {

// 32 codes of four bits or bytes, as blocks have them. code(i)
template <typename Code>
void pack_codes(int64_t bits, const Code& code, uint8_t* to) {
  for (int64_t i = 0; i < 16; ++i) {
    if (bits == 8) to[i] = code(i), to[16 + i] = code(16 + i);
    else to[i] = static_cast<uint8_t>(code(i) | code(16 + i) << 4);
  }
}

// Matrices as numbers; what is not stored in such a format is as Fp8Source has it. kDataLoss names the tensor: one that
// is missing or misshapen, a scale that is not finite, a group that there is not.
class PackedSource final : public WeightSource {
 public:
  PackedSource(const Checkpoint& checkpoint, const ModelConfig& config, const StoredQuantization& stored,
               ThreadPool& pool, WeightAccess access = WeightAccess::kValues, WeightForm form = WeightForm::kNumbers)
      : checkpoint_(checkpoint),
        config_(config),
        stored_(stored),
        pool_(pool),
        access_(access),
        form_(form),
        others_(checkpoint, config, pool, access, form),
        reads_(checkpoint.files()) {}
  bool has(const std::string& name) const override;
  Result<TensorView> tensor(const std::string& name, std::span<const int64_t> shape) override;
  Result<std::optional<TensorView>> outline(const std::string& name, std::span<const int64_t> shape) override;
  Result<TensorView> part(const std::string& name, std::span<const int64_t> shape, const MatrixPart& part) override;
  Result<const uint8_t*> bytes(const std::string& name, std::span<const int64_t> shape) override {
    return others_.bytes(name, shape);
  }
  bool keeps_mxfp4() const override { return form_ != WeightForm::kNumbers; }
  void release() override {
    others_.release();
    buffers_.release();
    reads_.release();
  }

 private:
  struct Groups;
  struct Codes;
  // A matrix that is stored in such a format, and the part of it that is wanted.
  struct Wanted {
    int64_t rows, cols;  // of all of it
    MatrixPart part;

    bool is_cut_at(int64_t columns) const { return part.first_col % columns != 0 || part.num_cols % columns != 0; }
  };
  bool is_read(const Wanted& m) const { return access_ == WeightAccess::kValues && m.part.num_rows > 0; }
  using Make = Result<TensorView> (PackedSource::*)(const std::string& name, const Wanted& m);
  // nullptr: it is not stored in such a format.
  Make find_make(const std::string& name, std::span<const int64_t> shape) const;
  Result<StoredTensor> find(const std::string& name, std::string_view dtype, std::span<const int64_t> shape);
  Result<Groups> read_groups(const std::string& name, const Wanted& m);
  Status read_zeros(const std::string& name, bool is_packed, const Wanted& m, Groups* groups);
  Status read_group_index(const std::string& name, int64_t cols, int64_t num_groups, bool required,
                          std::vector<int32_t>* of);
  Result<TensorView> gptq_or_awq(const std::string& name, const Wanted& m);
  Result<TensorView> compressed(const std::string& name, const Wanted& m);
  Result<TensorView> nvfp4(const std::string& name, const Wanted& m);
  Result<TensorView> sparse24(const std::string& name, const Wanted& m);
  TensorView sparse24_numbers(const StoredTensor& values, const StoredTensor& mask, DType dtype, const Wanted& m);
  Result<TensorView> four_bits(const std::string& name, const Wanted& m);
  struct BlockScales;
  Result<BlockScales> four_bit_scales(const std::string& name, const std::string& state, int64_t block,
                                      const Wanted& m);
  Result<TensorView> eight_bits(const std::string& name, const Wanted& m);
  // f(row), each row once, on all threads.
  template <typename Function>
  void for_each_row(int64_t rows, const Function& f) {
    constexpr int64_t kOfTask = 16;  // the codes of a line of memory belong to so many rows of the matrix
    pool_.parallel_for(ceil_div(rows, kOfTask), [&](int64_t task, int) {
      for (int64_t row = task * kOfTask; row < std::min(rows, (task + 1) * kOfTask); ++row) f(row);
    });
  }
  // value(row, col): in fp32, to be rounded.
  template <typename Value>
  TensorView make(DType dtype, const Wanted& m, const Value& value) {
    const MatrixPart& part = m.part;
    TensorView view{nullptr, dtype, part.num_rows, part.num_cols};
    if (!is_read(m)) return view;
    auto* const out = static_cast<uint8_t*>(buffers_.take(view.rows * view.row_bytes()));
    auto* const floats = reinterpret_cast<float*>(out);
    auto* const halves = reinterpret_cast<uint16_t*>(out);
    for_each_row(view.rows, [&](int64_t row) {
      for (int64_t col = 0; col < view.cols; ++col) {
        const float x = value(part.first_row + row, part.first_col + col);
        const int64_t at = row * view.cols + col;
        if (dtype == DType::kF32) floats[at] = x;
        else halves[at] = dtype == DType::kBF16 ? f32_to_bf16(x) : f32_to_f16(x);
      }
    });
    view.data = out;
    return view;
  }
  // store(row, col, to): the block from there on.
  template <typename Store>
  TensorView make_blocks(DType dtype, BlockFormat format, const Wanted& m, const Store& store) {
    const BlockSize& block = block_size(format);
    TensorView view{nullptr, dtype, m.part.num_rows, m.part.num_cols, format};
    if (!is_read(m)) return view;
    auto* const out = static_cast<uint8_t*>(buffers_.take(view.rows * view.row_bytes()));
    for_each_row(view.rows, [&](int64_t row) {
      uint8_t* to = out + row * view.row_bytes();
      for (int64_t col = 0; col < view.cols; col += block.size, to += block.bytes)
        store(m.part.first_row + row, m.part.first_col + col, to);
    });
    view.data = out;
    return view;
  }
  // Blocks of a scale in fp32 and the codes of block_size(format).size columns, of four bits or bytes.
  // scale(row, col), code(row, col)
  template <typename Scale, typename Code>
  TensorView make_wide_blocks(BlockFormat format, const Wanted& m, const Scale& scale, const Code& code) {
    const int64_t size = block_size(format).size, bits = size == 32 ? 8 : 4;
    return make_blocks(config_.dtype, format, m, [&](int64_t row, int64_t col, uint8_t* to) {
      const float x = scale(row, col);
      std::memcpy(to, &x, 4);
      for (int64_t k = 0; k < size; k += 32)
        pack_codes(
            bits, [&](int64_t i) { return code(row, col + k + i); }, to + 4 + k * bits / 8);
    });
  }
  BlockFormat block_format(const Groups& groups, const Wanted& m) const;
  template <typename Code>
  TensorView make_integers(const Groups& groups, int32_t offset, const Wanted& m, const Code& code);

  const Checkpoint& checkpoint_;
  const ModelConfig& config_;
  const StoredQuantization stored_;
  ThreadPool& pool_;
  const WeightAccess access_;
  const WeightForm form_;
  Fp8Source others_;
  WeightBuffers buffers_;
  MappedReads reads_;
};

}  // namespace llmb
