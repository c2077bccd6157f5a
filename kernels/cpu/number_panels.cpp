#include "kernels/cpu/number_panels.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/float_formats.h"
#include "kernels/cpu/interleave.h"
#include "kernels/cpu/quantize.h"
#include "kernels/cpu/tuning.h"

namespace llmb::cpu {

namespace {

constexpr int64_t kWidth = PackedLinear::kPanelWidth;
static_assert(kWidth == kInterleavedRows);

uint8_t* group_at(uint8_t* panel, int64_t k) { return panel + k / kNumberGroup * kNumberGroupBytes; }
const uint8_t* group_at(const uint8_t* panel, int64_t k) { return panel + k / kNumberGroup * kNumberGroupBytes; }
uint8_t* behind_words(uint8_t* group) { return group + kNumberGroup * kWidth / 2; }
const uint8_t* behind_words(const uint8_t* group) { return group + kNumberGroup * kWidth / 2; }
// Byte of a group that holds the word of (k, column).
int64_t word_at(int64_t k, int64_t column) { return k % kNumberGroup / 8 * (4 * kWidth) + column * 4; }

// Quantised numbers of a block of k, each row's packed into words one after the other, become words of a panel.
constexpr int64_t kQuantizedK = kQuantizeBlockK, kMaxRowBytes = kQuantizedK;
void interleave(const uint8_t (&rows)[kWidth][kMaxRowBytes], int64_t begin, int64_t end, uint8_t* panel) {
  const uint8_t* addresses[kWidth];
  for (int64_t c = 0; c < kWidth; ++c) addresses[c] = rows[c];
  interleave_words(addresses, begin, end, reinterpret_cast<uint32_t*>(panel));
}

// The largest magnitude of a row; NaN where not all are finite.
float row_magnitude(const PanelRow& row) {
  float x[kQuantizedK], max = 0;
  for (int64_t k = 0; k < row.size() && !std::isnan(max); k += kQuantizedK) {
    const int64_t end = std::min(row.size(), k + kQuantizedK);
    widen_row(row, k, end, x);
    const float here = max_magnitude(x, end - k);
    max = here <= max ? max : here;  // NaN, too
  }
  return max;
}

// A row times its factor has `largest` as its largest magnitude; numbers times its scale are the row. A factor of 0: all
// zeros, or not finite, which the scale says.
void find_scales(const PanelRow* rows, int64_t count, float largest, float* factors, float* scales) {
  for (int64_t c = 0; c < count; ++c) {
    const float max = row_magnitude(rows[c].whole()), inverse = largest / max;
    scales[c] = max / largest;
    factors[c] = std::isfinite(inverse) ? inverse : 0;
  }
}

// Groups of four-bit numbers. quantize: (column, fp32 numbers of its row, how many of them, groups), the numbers zeros up to
// a whole group; put_scales: (group, column, what stands behind the words)
template <typename Group, typename Quantize, typename PutScales>
void pack_groups(const PanelRow* rows, int64_t count, uint8_t* panel, const Quantize& quantize,
                 const PutScales& put_scales) {
  constexpr int64_t kGroups = kQuantizedK / kNumberGroup, kWords = kNumberGroup / 8;
  static_assert(kGroups * kWords * 4 <= kMaxRowBytes);
  alignas(64) uint8_t numbers[kWidth][kMaxRowBytes] = {};
  float x[kQuantizedK];
  Group groups[kGroups];
  const int64_t size = rows[0].size();
  for (int64_t k = 0; k < size; k += kQuantizedK) {
    const int64_t end = std::min(size, k + kQuantizedK), num_groups = ceil_div(end - k, kNumberGroup);
    for (int64_t c = 0; c < count; ++c) {
      widen_row(rows[c], k, end, x);
      std::fill(x + (end - k), x + num_groups * kNumberGroup, 0.0f);
      quantize(c, x, end - k, groups);
      for (int64_t g = 0; g < num_groups; ++g) {
        put_scales(groups[g], c, behind_words(group_at(panel, k + g * kNumberGroup)));
        std::memcpy(numbers[c] + g * kWords * 4, groups[g].words, kWords * 4);
      }
    }
    for (int64_t g = 0; g < num_groups; ++g)
      interleave(numbers, g * kWords, (g + 1) * kWords, group_at(panel, k + g * kNumberGroup));
  }
}

}  // namespace

float load_element(const TensorView& t, int64_t index) {
  const uint8_t* p = static_cast<const uint8_t*>(t.data) + index * dtype_bytes(t.dtype);
  if (t.dtype == DType::kF32) {
    float v;
    std::memcpy(&v, p, sizeof v);
    return v;
  }
  uint16_t v;
  std::memcpy(&v, p, sizeof v);
  return t.dtype == DType::kBF16 ? bf16_to_f32(v) : f16_to_f32(v);
}

void widen_row(const PanelRow& row, int64_t begin, int64_t end, float* to) {
  const DType dtype = row.part->dtype;
  widen(row.bytes() + begin * dtype_bytes(dtype), dtype, end - begin, to);
}

void pack_int8(const PanelRow* rows, int64_t count, uint8_t* panel, float* scales, int32_t* sums) {
  alignas(64) uint8_t numbers[kWidth][kMaxRowBytes] = {};
  float x[kQuantizedK], factors[kWidth];
  const int64_t size = rows[0].size();
  find_scales(rows, count, 127, factors, scales);
  for (int64_t k = 0; k < size; k += kQuantizedK) {
    const int64_t end = std::min(size, k + kQuantizedK), n = end - k;
    for (int64_t c = 0; c < count; ++c) {
      std::memset(numbers[c], 0, sizeof numbers[c]);
      if (factors[c] == 0) continue;
      widen_row(rows[c], k, end, x);
      sums[c] += round_to_int8(x, n, factors[c], reinterpret_cast<int8_t*>(numbers[c]));
    }
    interleave(numbers, 0, ceil_div(n, 4), panel + k * kWidth);
  }
}

void pack_int4(const PanelRow* rows, int64_t count, uint8_t* panel) {
  pack_groups<Int4Group>(
      rows, count, panel,
      [](int64_t, const float* x, int64_t n, Int4Group* out) { quantize_int4(x, ceil_div(n, kNumberGroup), out); },
      [](const Int4Group& group, int64_t column, uint8_t* at) { std::memcpy(at + column * 2, &group.scale, 2); });
}

void pack_w4a8(const PanelRow* rows, int64_t count, uint8_t* panel, float* scales, int32_t* sums) {
  float factors[kWidth];
  find_scales(rows, count, kLargestW4A8, factors, scales);
  pack_groups<W4A8Group>(
      rows, count, panel,
      [&](int64_t column, const float* x, int64_t n, W4A8Group* out) {
        if (factors[column] != 0) sums[column] += quantize_w4a8(x, n, factors[column], out);
        else std::fill_n(out, ceil_div(n, kNumberGroup), W4A8Group());  // zeros
      },
      [](const W4A8Group& group, int64_t column, uint8_t* at) {
        at[column] = group.scale, at[kWidth + column] = group.zero;
      });
}

int32_t int8_number(const uint8_t* panel, int64_t k, int64_t column) {
  return static_cast<int8_t>(panel[(k / 4) * (4 * kWidth) + column * 4 + k % 4]);
}

int32_t w4a8_number(const uint8_t* panel, int64_t k, int64_t column) {
  const uint8_t* const group = group_at(panel, k);
  const uint8_t* const bytes = behind_words(group) + column;
  const uint8_t both = group[word_at(k, column) + k % 4];
  return (k % 8 < 4 ? both & 15 : both >> 4) * bytes[0] - static_cast<int8_t>(bytes[kWidth]);
}

float int4_value(const uint8_t* panel, int64_t k, int64_t column) {
  const uint8_t* const group = group_at(panel, k);
  uint16_t scale;
  uint32_t word;
  std::memcpy(&scale, behind_words(group) + column * 2, 2);
  std::memcpy(&word, group + word_at(k, column), 4);
  const int q = static_cast<int>(word >> (4 * (k % 8)) & 15u);
  return static_cast<float>(q < 8 ? q : q - 16) * bf16_to_f32(scale);
}

}  // namespace llmb::cpu
