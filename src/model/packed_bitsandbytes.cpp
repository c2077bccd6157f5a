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

// The scales of blocks of four-bit codes, which may be stored as codes of eight bits with scales themselves.
Result<std::vector<float>> PackedSource::four_bit_scales(const std::string& name, const std::string& state,
                                                         int64_t count) {
  LLMB_ASSIGN_OR_RETURN(const nlohmann::json object, read_state(*checkpoint_.find(state)));
  ConfigFields f(object);
  if (!f.has("nested_blocksize")) {
    LLMB_ASSIGN_OR_RETURN(const StoredTensor stored, part(name + ".absmax", "F32", std::array{count}));
    return read_finite(stored);
  }
  const int64_t block = f.integer("nested_blocksize", {}, 1, 1 << 20);
  const double offset = f.number("nested_offset", 0, -1e30, 1e30);
  LLMB_RETURN_IF_ERROR(f.status());
  LLMB_ASSIGN_OR_RETURN(const StoredTensor codes, part(name + ".absmax", "U8", std::array{count}));
  LLMB_ASSIGN_OR_RETURN(const StoredTensor table, part(name + ".nested_quant_map", "F32", std::array{int64_t{256}}));
  LLMB_ASSIGN_OR_RETURN(const StoredTensor scales,
                        part(name + ".nested_absmax", "F32", std::array{ceil_div(count, block)}));
  LLMB_ASSIGN_OR_RETURN(const std::vector<float> numbers, read_finite(table));
  LLMB_ASSIGN_OR_RETURN(const std::vector<float> of_blocks, read_finite(scales));
  std::vector<float> out(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    const float product = numbers[codes.data[i]] * of_blocks[i / block];
    out[i] = product + static_cast<float>(offset);
  }
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
Result<TensorView> PackedSource::four_bits(const std::string& name, int64_t rows, int64_t cols) {
  std::string state = name + ".quant_state.bitsandbytes__nf4";
  if (!checkpoint_.find(state)) state = name + ".quant_state.bitsandbytes__fp4";
  if (!checkpoint_.find(state))
    return data_loss("tensor \"" + name + "\" has dtype U8, but no \"" + name + ".quant_state.bitsandbytes__nf4\"");
  LLMB_ASSIGN_OR_RETURN(const nlohmann::json object, read_state(*checkpoint_.find(state)));
  ConfigFields f(object);
  const int64_t block = f.integer("blocksize", {}, 2, 1 << 20);
  LLMB_RETURN_IF_ERROR(f.status().with_context(state));
  const int64_t size = rows * cols, count = ceil_div(size, block);
  LLMB_ASSIGN_OR_RETURN(const StoredTensor codes, part(name, "U8", std::array{ceil_div(size, 2), int64_t{1}}));
  LLMB_ASSIGN_OR_RETURN(const StoredTensor table, part(name + ".quant_map", "F32", std::array{int64_t{16}}));
  LLMB_ASSIGN_OR_RETURN(const std::vector<float> numbers, read_finite(table));
  LLMB_ASSIGN_OR_RETURN(const std::vector<float> scales, four_bit_scales(name, state, count));
  const auto code = [&](int64_t row, int64_t col) {
    const int64_t i = row * cols + col;
    const uint8_t byte = codes.data[i / 2];
    return static_cast<uint8_t>(i % 2 == 0 ? byte >> 4 : byte & 15);
  };
  const auto scale = [&](int64_t row, int64_t col) { return scales[(row * cols + col) / block]; };
  const BlockFormat format = four_bit_format(numbers, config_.dtype);
  const int64_t of_block = block_size(format).size;
  const bool has_blocks = format != BlockFormat::kNone && cols % of_block == 0 && block % of_block == 0;
  if (form_ == WeightForm::kBlocks && has_blocks) return make_wide_blocks(format, rows, cols, scale, code);
  return make(config_.dtype, rows, cols,
              [&](int64_t row, int64_t col) { return numbers[code(row, col)] * scale(row, col); });
}

// bitsandbytes' LLM.int8(): the largest magnitude of each row, which is the code 127.
Result<TensorView> PackedSource::eight_bits(const std::string& name, int64_t rows, int64_t cols) {
  const std::string stem = name.substr(0, name.size() - std::string_view(".weight").size());
  LLMB_ASSIGN_OR_RETURN(const StoredTensor codes, part(name, "I8", std::array{rows, cols}));
  LLMB_ASSIGN_OR_RETURN(const StoredTensor largest, part(stem + ".SCB", "F32", std::array{rows}));
  LLMB_ASSIGN_OR_RETURN(const std::vector<float> scales, read_finite(largest));
  const auto code = [&](int64_t row, int64_t col) { return codes.data[row * cols + col]; };
  const BlockFormat format = config_.dtype == DType::kBF16 ? BlockFormat::kRowInt8BF16 : BlockFormat::kRowInt8F16;
  const bool has_blocks = config_.dtype != DType::kF32 && cols % block_size(format).size == 0;
  if (form_ == WeightForm::kBlocks && has_blocks)
    return make_wide_blocks(
        format, rows, cols, [&](int64_t row, int64_t) { return scales[row]; }, code);
  return make(config_.dtype, rows, cols, [&](int64_t row, int64_t col) {
    const float product = static_cast<float>(static_cast<int8_t>(code(row, col))) * scales[row];
    return product * kOneOver127;
  });
}

}  // namespace llmb
