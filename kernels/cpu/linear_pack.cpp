// Packing: panel p holds output features [64 p, 64 p + 64). Layout inside a panel, by format:
//   float32, float16   [in_features][64]
//   bfloat16           [ceil(in_features / 2)][64][2]  pairs of k in one 32-bit word: the even one widens by a shift,
//                      the odd one by a mask, and the pair is the operand of a bf16 dot product
//   int8, int4, w4a8   number_panels.h
//   blocks             block_panel.h, or float32: each panel of its own
// Whoever changes the bytes that are made of a matrix raises kWeightCacheVersion (src/backend/cpu/weight_cache.h).
#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "base/check.h"
#include "base/float_formats.h"
#include "kernels/cpu/block_panel.h"
#include "kernels/cpu/interleave.h"
#include "kernels/cpu/linear.h"
#include "kernels/cpu/number_panels.h"
#include "kernels/cpu/tuning.h"

namespace llmb::cpu {

namespace {

constexpr int64_t kWidth = PackedLinear::kPanelWidth;
static_assert(kWidth == kInterleavedRows);

// Element of a float panel that holds weight (k, column).
int64_t panel_index(PackedFormat format, int64_t k, int64_t column) {
  return format == PackedFormat::kBF16 ? (k / 2) * (2 * kWidth) + column * 2 + k % 2 : k * kWidth + column;
}

// Elements [begin, end) of a row, as column `column` of a float panel.
void pack_column(const PanelRow& row, int64_t begin, int64_t end, PackedFormat format, int64_t column, uint8_t* panel) {
  if (format == PackedFormat::kF32) {
    float* to = reinterpret_cast<float*>(panel);
    for (int64_t k = begin; k < end; ++k) to[panel_index(format, k, column)] = row[k];
    return;
  }
  uint16_t* to = reinterpret_cast<uint16_t*>(panel);
  const uint8_t* from = row.bytes();
  for (int64_t k = begin; k < end; ++k) std::memcpy(&to[panel_index(format, k, column)], from + k * 2, 2);
}

// Whether the words of a panel are words of its rows.
bool are_words(const PanelRow* rows, int64_t count, PackedFormat format) {
  if (count < kWidth || format == PackedFormat::kF16) return false;
  return format == PackedFormat::kBF16 ||
         std::all_of(rows, rows + count, [](const PanelRow& row) { return row.part->dtype == DType::kF32; });
}

// Places without a weight are zero already.
void pack_floats(const PanelRow* rows, int64_t count, PackedFormat format, uint8_t* panel) {
  const int64_t size = rows[0].size();
  int64_t done = 0;
  if (are_words(rows, count, format)) {
    const int64_t k_of_word = format == PackedFormat::kBF16 ? 2 : 1;
    const uint8_t* bytes[kWidth];
    for (int64_t c = 0; c < kWidth; ++c) bytes[c] = rows[c].bytes();
    interleave_words(bytes, 0, size / k_of_word, reinterpret_cast<uint32_t*>(panel));
    done = size / k_of_word * k_of_word;
  }
  for (int64_t k = done; k < size; k += kPackBlockK)
    for (int64_t c = 0; c < count; ++c) pack_column(rows[c], k, std::min(size, k + kPackBlockK), format, c, panel);
}

// A panel of format kBlocks.
void pack_blocks(const PanelRow* rows, int64_t count, uint8_t* panel) {
  const BlockFormat format = rows[0].part->blocks;
  std::vector<uint8_t> none(static_cast<size_t>(count < kWidth ? rows[0].part->row_bytes() : 0));
  if (const float one = 1; format == BlockFormat::kNVFP4)  // what scales are divided by
    for (size_t at = 0; at < none.size(); at += static_cast<size_t>(block_size(format).bytes))
      std::memcpy(&none[at], &one, sizeof one);
  const uint8_t* bytes[kWidth];
  for (int64_t c = 0; c < kWidth; ++c) bytes[c] = c < count ? rows[c].bytes() : none.data();
  pack_block_panel(format, bytes, rows[0].size(), rows[0].part->groups, panel);
}

// A panel that rows of several forms share, as fp32.
void pack_mixed(const PanelRow* rows, int64_t count, uint8_t* panel) {
  auto* const out = reinterpret_cast<float*>(panel);
  const int64_t size = rows[0].size();
  std::vector<float> x(static_cast<size_t>(size));
  for (int64_t c = 0; c < count; ++c) {
    const BlockFormat format = rows[c].part->blocks;
    if (format == BlockFormat::kNone) widen_row(rows[c], 0, size, x.data());
    else decode_row(*rows[c].part, rows[c].row, x.data());
    for (int64_t k = 0; k < size; ++k) out[k * kWidth + c] = x[k];
  }
}

PackedFormat format_of(DType dtype) {
  return dtype == DType::kF32 ? PackedFormat::kF32 : dtype == DType::kF16 ? PackedFormat::kF16 : PackedFormat::kBF16;
}

int64_t bytes_of_panel(PackedFormat format, int64_t k) {
  switch (format) {
    case PackedFormat::kF32:
      return k * kWidth * 4;
    case PackedFormat::kF16:
      return k * kWidth * 2;
    case PackedFormat::kBF16:
      return ceil_div(k, 2) * kWidth * 4;
    case PackedFormat::kInt8:
      return ceil_div(k, 4) * kWidth * 4;
    case PackedFormat::kInt4:
    case PackedFormat::kW4A8:
      return ceil_div(k, kNumberGroup) * kNumberGroupBytes;
    case PackedFormat::kBlocks:  // each of its own
      return 0;
  }
  return 0;
}

}  // namespace

void PackedLinear::find_panels(std::span<const TensorView> parts) {
  format_ = PackedFormat::kBlocks;
  int64_t begin = 0, part_end = 0, p = 0;
  for (const TensorView& part : parts) {
    const int64_t part_begin = part_end;
    part_end += part.rows;
    for (; p < num_panels() && p * kWidth < part_end; ++p) {
      const bool is_whole = p * kWidth >= part_begin && std::min((p + 1) * kWidth, out_features_) <= part_end;
      panels_.push_back({is_whole ? part.blocks : BlockFormat::kNone, begin});
      const BlockFormat blocks = panels_.back().blocks;
      begin += block_panel_bytes(blocks, in_features_) + panel_group_bytes(blocks, in_features_, part.groups.count);
      if (is_whole && part.blocks != BlockFormat::kNone)
        (block_size(part.blocks).size == kMaxBlockSize ? has_large_blocks_ : has_small_blocks_) = true;
    }
  }
  panels_.push_back({BlockFormat::kNone, begin});
}

PackedLinear PackedLinear::make(std::span<const TensorView> parts, std::span<const TensorView> biases,
                                Quantization quantization, DType activations, const NextBytes& next) {
  LLMB_CHECK(!parts.empty() && parts[0].cols >= 1);
  LLMB_CHECK(biases.empty() || biases.size() == parts.size());
  PackedLinear w;
  w.format_ = format_of(parts[0].dtype);
  w.in_features_ = parts[0].cols;
  for (const TensorView& part : parts) {
    LLMB_CHECK(part.cols == w.in_features_ && part.rows >= 0);
    if (part.dtype != parts[0].dtype) w.format_ = PackedFormat::kF32;
    w.out_features_ += part.rows;
  }
  if (quantization == Quantization::kInt4) w.format_ = PackedFormat::kInt4;
  if (w.in_features_ <= kMaxInt8Features) {
    if (quantization == Quantization::kInt8) w.format_ = PackedFormat::kInt8;
    if (quantization == Quantization::kW4A8) w.format_ = PackedFormat::kW4A8;
  }
  if (std::any_of(parts.begin(), parts.end(), [](const auto& p) { return p.blocks != BlockFormat::kNone; })) {
    LLMB_CHECK(quantization == Quantization::kNone && activations != DType::kBF16);
    w.find_panels(parts);
    w.has_int8_x_ = activations == DType::kI8;
  }
  w.rounds_x_ = w.format_ == PackedFormat::kBF16 && activations == DType::kBF16;
  w.panel_bytes_ = bytes_of_panel(w.format_, w.in_features_);
  const int64_t padded = w.num_panels() * kWidth;
  w.weights_ = next(w.panels_.empty() ? w.num_panels() * w.panel_bytes_ : w.panels_.back().begin);
  if (w.has_int8_rows()) {
    w.scales_ = next(padded * int64_t{sizeof(float)});
    w.sums_ = next(padded * int64_t{sizeof(int32_t)});
  }
  if (!biases.empty() && padded > 0) w.bias_ = next(padded * int64_t{sizeof(float)});
  return w;
}

PackedLinear PackedLinear::from_packed(std::span<const TensorView> parts, std::span<const TensorView> biases,
                                       Quantization quantization, DType activations, const NextBytes& next) {
  return make(parts, biases, quantization, activations, next);
}

std::array<std::span<const uint8_t>, 4> PackedLinear::packed_bytes() const {
  const auto bytes = [](const AlignedBuffer& buffer) {
    return std::span(buffer.data(), static_cast<size_t>(buffer.size_bytes()));
  };
  return {bytes(weights_), bytes(scales_), bytes(sums_), bytes(bias_)};
}

PackedLinear PackedLinear::pack(std::span<const TensorView> parts, std::span<const TensorView> biases, ThreadPool& pool,
                                Quantization quantization, DType activations) {
  PackedLinear w = make(parts, biases, quantization, activations, [](int64_t bytes) { return AlignedBuffer(bytes); });
  w.pack_panels(parts, 0, pool);
  if (w.bias_.empty()) return w;
  auto* bias = reinterpret_cast<float*>(w.bias_.data());
  for (size_t i = 0; i < parts.size(); ++i) {
    LLMB_CHECK(biases[i].rows * biases[i].cols == parts[i].rows);
    for (int64_t r = 0; r < parts[i].rows; ++r) *bias++ = load_element(biases[i], r);
  }
  return w;
}

PackedLinear PackedLinear::pack_int8_columns(std::span<const TensorView> parts, int64_t first, int64_t count,
                                             ThreadPool& pool) {
  LLMB_CHECK(!parts.empty() && first >= 0 && first + count <= parts[0].cols && parts[0].cols <= kMaxInt8Features);
  std::vector<TensorView> cut(parts.begin(), parts.end());
  for (TensorView& part : cut) part.cols = count;
  PackedLinear w =
      make(cut, {}, Quantization::kInt8, DType::kF32, [](int64_t bytes) { return AlignedBuffer(bytes); });
  w.pack_panels(parts, first, pool);
  return w;
}

void PackedLinear::pack_panels(std::span<const TensorView> parts, int64_t first_column, ThreadPool& pool) {
  std::vector<int64_t> part_start = {0};
  for (const TensorView& part : parts) part_start.push_back(part_start.back() + part.rows);
  for (AlignedBuffer* zeroed : {&scales_, &sums_, &bias_})
    if (!zeroed->empty()) std::memset(zeroed->data(), 0, static_cast<size_t>(zeroed->size_bytes()));
  auto* const scales = reinterpret_cast<float*>(scales_.data());
  auto* const sums = reinterpret_cast<int32_t*>(sums_.data());
  pool.parallel_for(num_panels(), [&](int64_t p, int) {
    uint8_t* panel = const_cast<uint8_t*>(this->panel(p));
    PanelRow rows[kWidth];
    const int64_t first = p * kWidth, count = std::min(kWidth, out_features_ - first);
    // Elsewhere all of it is written: a pass over memory less.
    if (count < kWidth || in_features_ % kNumberGroup != 0) std::memset(panel, 0, static_cast<size_t>(bytes_of(p)));
    for (int64_t column = 0, i = 0; column < count; ++column) {
      while (first + column >= part_start[i + 1]) ++i;
      rows[column] = {&parts[i], first + column - part_start[i], first_column, in_features_};
    }
    if (format_ == PackedFormat::kInt8) return pack_int8(rows, count, panel, &scales[first], &sums[first]);
    if (format_ == PackedFormat::kW4A8) return pack_w4a8(rows, count, panel, &scales[first], &sums[first]);
    if (format_ == PackedFormat::kInt4) return pack_int4(rows, count, panel);
    if (format_ != PackedFormat::kBlocks) return pack_floats(rows, count, format_, panel);
    if (panels_[p].blocks == BlockFormat::kNone) return pack_mixed(rows, count, panel);
    pack_blocks(rows, count, panel);
  });
}

namespace {

// As for_each_element, of a panel of blocks.
template <typename Set>
void for_each_decoded(const PackedLinear& table, int64_t row, const Set& set) {
  constexpr int64_t kStep = kMaxBlockSize, kColumns = 16;
  alignas(64) float values[kStep * kWidth];
  const int64_t p = row / kWidth, column = row % kWidth, first = column / kColumns * kColumns;
  for (int64_t k = 0; k < table.in_features(); k += kStep) {
    const int64_t end = std::min(table.in_features(), k + kStep);
    decode_block_panel(table.panel_blocks(p), table.panel(p), table.in_features(), k, end, first, first + kColumns,
                       values);
    for (int64_t i = k; i < end; ++i) set(i, values[(i - k) * kWidth + column]);
  }
}

// Calls set(k, value) for each element of row `row` of the table.
template <typename Set>
void for_each_element(const PackedLinear& table, int64_t row, const Set& set) {
  LLMB_CHECK(row >= 0 && row < table.out_features());
  if (table.format() == PackedFormat::kBlocks) return for_each_decoded(table, row, set);
  const uint8_t* panel = table.panel(row / kWidth);
  const int64_t column = row % kWidth;
  const PackedFormat format = table.format();
  for (int64_t k = 0; k < table.in_features(); ++k) {
    switch (format) {
      case PackedFormat::kF32:
        set(k, reinterpret_cast<const float*>(panel)[panel_index(format, k, column)]);
        break;
      case PackedFormat::kF16:
        set(k, f16_to_f32(reinterpret_cast<const uint16_t*>(panel)[panel_index(format, k, column)]));
        break;
      case PackedFormat::kBF16:
        set(k, bf16_to_f32(reinterpret_cast<const uint16_t*>(panel)[panel_index(format, k, column)]));
        break;
      case PackedFormat::kInt8:
        set(k, static_cast<float>(int8_number(panel, k, column)) * table.scales()[row]);
        break;
      case PackedFormat::kW4A8:
        set(k, static_cast<float>(w4a8_number(panel, k, column)) * table.scales()[row]);
        break;
      case PackedFormat::kInt4:
        set(k, int4_value(panel, k, column));
        break;
      case PackedFormat::kBlocks:
        break;  // for_each_decoded
    }
  }
}

}  // namespace

void embedding(const PackedLinear& table, const TokenId* tokens, int64_t num_tokens, float* out, ThreadPool& pool) {
  pool.parallel_for(num_tokens, [&](int64_t i, int) {
    float* row = out + i * table.in_features();
    for_each_element(table, tokens[i], [row](int64_t k, float value) { row[k] = value; });
  });
}

void add_embedding(const PackedLinear& table, const int32_t* rows, int64_t num_rows, float* out, ThreadPool& pool) {
  pool.parallel_for(num_rows, [&](int64_t i, int) {
    float* row = out + i * table.in_features();
    for_each_element(table, rows[i], [row](int64_t k, float value) { row[k] += value; });
  });
}

}  // namespace llmb::cpu
