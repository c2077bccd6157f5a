// Matrices of bitsandbytes' checkpoints.
#include <array>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "model/config_fields.h"
#include "model/packed_parts.h"
#include "model/packed_weights.h"

namespace llmb {

namespace {

// The JSON object beside a matrix of bitsandbytes.
Result<nlohmann::json> read_state(const StoredTensor& stored) {
  const std::string_view text(reinterpret_cast<const char*>(stored.data), static_cast<size_t>(stored.bytes));
  Result<nlohmann::json> state = parse_config_object(text);
  if (!state.ok()) return state.status().with_context(stored.where);
  return state;
}

}  // namespace

// The scales of blocks of codes that lie row after row, those of the wanted rows and columns.
struct PackedSource::BlockScales {
  int64_t block = 1, first = 0;  // codes in a block, the first block
  std::vector<float> values;     // of the blocks from there on

  BlockScales(int64_t size, const Wanted& m) : block(size), first(m.part.first_row * m.cols / size) {
    const int64_t end = ceil_div((m.part.first_row + m.part.num_rows) * m.cols, block);
    values.resize(static_cast<size_t>(m.part.num_rows > 0 ? end - first : 0));
  }
  float at(int64_t index) const { return values[static_cast<size_t>(index / block - first)]; }
  // read(block): its scale
  template <typename Read>
  void fill(const Wanted& m, const Read& read) {
    for (int64_t row = m.part.first_row; row < m.part.first_row + m.part.num_rows; ++row) {
      const int64_t begin = row * m.cols + m.part.first_col, end = begin + m.part.num_cols;
      for (int64_t b = begin / block; b < ceil_div(end, block); ++b) values[static_cast<size_t>(b - first)] = read(b);
    }
  }
};

// Scales may be stored as codes of eight bits with scales themselves, which are few and read whole.
Result<PackedSource::BlockScales> PackedSource::four_bit_scales(const std::string& name, const std::string& state,
                                                                int64_t block, const Wanted& m) {
  const int64_t count = ceil_div(m.rows * m.cols, block);
  BlockScales out(block, m);
  LLMB_ASSIGN_OR_RETURN(const nlohmann::json object, read_state(*checkpoint_.find(state)));
  ConfigFields f(object);
  if (!f.has("nested_blocksize")) {
    LLMB_ASSIGN_OR_RETURN(const StoredTensor stored, find(name + ".absmax", "F32", std::array{count}));
    LLMB_ASSIGN_OR_RETURN(StoredScales scales, StoredScales::of(stored));
    out.fill(m, [&](int64_t b) { return scales.read(b); });
    LLMB_RETURN_IF_ERROR(scales.status());
    return out;
  }
  const int64_t nested = f.integer("nested_blocksize", {}, 1, 1 << 20);
  const double offset = f.number("nested_offset", 0, -1e30, 1e30);
  LLMB_RETURN_IF_ERROR(f.status());
  LLMB_ASSIGN_OR_RETURN(const StoredTensor codes, find(name + ".absmax", "U8", std::array{count}));
  LLMB_ASSIGN_OR_RETURN(const StoredTensor table, find(name + ".nested_quant_map", "F32", std::array{int64_t{256}}));
  LLMB_ASSIGN_OR_RETURN(const StoredTensor scales,
                        find(name + ".nested_absmax", "F32", std::array{ceil_div(count, nested)}));
  LLMB_ASSIGN_OR_RETURN(const std::vector<float> numbers, read_finite(table));
  LLMB_ASSIGN_OR_RETURN(const std::vector<float> of_blocks, read_finite(scales));
  out.fill(m, [&](int64_t b) {
    const float product = numbers[codes.data[b]] * of_blocks[b / nested];
    return product + static_cast<float>(offset);
  });
  return out;
}

namespace {

// The blocks in which codes mean these numbers; kNone: there are none.
BlockFormat four_bit_format(const std::vector<float>& numbers, DType dtype) {
  if (dtype == DType::kF32) return BlockFormat::kNone;
  const bool is_bf16 = dtype == DType::kBF16;
  const auto are = [&](const float(&values)[16]) { return std::memcmp(numbers.data(), values, sizeof values) == 0; };
  if (are(kNf4Values)) return is_bf16 ? BlockFormat::kNf4BF16 : BlockFormat::kNf4F16;
  if (are(kFp4Values)) return is_bf16 ? BlockFormat::kFp4BF16 : BlockFormat::kFp4F16;
  return BlockFormat::kNone;
}

}  // namespace

// bitsandbytes' NF4 and FP4: two codes a byte, the first in the high bits, row after row.
Result<TensorView> PackedSource::four_bits(const std::string& name, const Wanted& m) {
  std::string state = name + ".quant_state.bitsandbytes__nf4";
  if (!checkpoint_.find(state)) state = name + ".quant_state.bitsandbytes__fp4";
  if (!checkpoint_.find(state))
    return data_loss("tensor \"" + name + "\" has dtype U8, but no \"" + name + ".quant_state.bitsandbytes__nf4\"");
  LLMB_ASSIGN_OR_RETURN(const nlohmann::json object, read_state(*checkpoint_.find(state)));
  ConfigFields f(object);
  const int64_t block = f.integer("blocksize", {}, 2, 1 << 20);
  LLMB_RETURN_IF_ERROR(f.status().with_context(state));
  LLMB_ASSIGN_OR_RETURN(const StoredTensor codes,
                        find(name, "U8", std::array{ceil_div(m.rows * m.cols, int64_t{2}), int64_t{1}}));
  LLMB_ASSIGN_OR_RETURN(const StoredTensor table, find(name + ".quant_map", "F32", std::array{int64_t{16}}));
  LLMB_ASSIGN_OR_RETURN(const std::vector<float> numbers, read_finite(table));
  LLMB_ASSIGN_OR_RETURN(const BlockScales scales, four_bit_scales(name, state, block, m));
  const auto code = [&](int64_t row, int64_t col) {
    const int64_t i = row * m.cols + col;
    const uint8_t byte = codes.data[i / 2];
    return static_cast<uint8_t>(i % 2 == 0 ? byte >> 4 : byte & 15);
  };
  const auto scale = [&](int64_t row, int64_t col) { return scales.at(row * m.cols + col); };
  const BlockFormat format = four_bit_format(numbers, config_.dtype);
  const int64_t of_block = block_size(format).size;
  const bool has_blocks =
      format != BlockFormat::kNone && m.cols % of_block == 0 && block % of_block == 0 && !m.is_cut_at(of_block);
  if (form_ == WeightForm::kBlocks && has_blocks) return make_wide_blocks(format, m, scale, code);
  return make(config_.dtype, m, [&](int64_t row, int64_t col) { return numbers[code(row, col)] * scale(row, col); });
}

// bitsandbytes' LLM.int8(): the largest magnitude of each row, which is the code 127.
Result<TensorView> PackedSource::eight_bits(const std::string& name, const Wanted& m) {
  const std::string stem = stem_of(name);
  LLMB_ASSIGN_OR_RETURN(const StoredTensor codes, find(name, "I8", std::array{m.rows, m.cols}));
  LLMB_ASSIGN_OR_RETURN(const StoredTensor largest, find(stem + ".SCB", "F32", std::array{m.rows}));
  LLMB_ASSIGN_OR_RETURN(const std::vector<float> scales, read_finite(largest));
  const auto code = [&](int64_t row, int64_t col) { return codes.data[row * m.cols + col]; };
  const BlockFormat format = config_.dtype == DType::kBF16 ? BlockFormat::kRowInt8BF16 : BlockFormat::kRowInt8F16;
  const int64_t of_block = block_size(format).size;
  const bool has_blocks = config_.dtype != DType::kF32 && m.cols % of_block == 0 && !m.is_cut_at(of_block);
  if (form_ == WeightForm::kBlocks && has_blocks)
    return make_wide_blocks(
        format, m, [&](int64_t row, int64_t) { return scales[row]; }, code);
  return make(config_.dtype, m, [&](int64_t row, int64_t col) {
    const float product = static_cast<float>(static_cast<int8_t>(code(row, col))) * scales[row];
    return product * kOneOver127;
  });
}

}  // namespace llmb
