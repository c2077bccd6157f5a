// linear over weights in blocks of few bits with activations rounded to int8 by blocks: the bytes of a plain
// computation of what kernels/cpu/linear_blocks_int8.cpp says, on every instruction set.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "base/float_formats.h"
#include "core/block_format.h"
#include "kernels/cpu/linear.h"
#include "tests/support/block_weights.h"
#include "tests/support/cpu_targets.h"
#include "tests/support/kernel_support.h"

namespace llmb::cpu {
namespace {

using test::all_block_formats;
using test::BlockWeights;
using test::for_each_cpu_target;
using test::GuardedFloats;
using test::random_normal;
using test::same_bytes;

bool has_minima(BlockFormat format) {
  for (const BlockFormat f :
       {BlockFormat::kQ4_1, BlockFormat::kQ5_1, BlockFormat::kQ2_K, BlockFormat::kQ4_K, BlockFormat::kQ5_K})
    if (f == format) return true;
  return false;
}

// Numbers of a block that share a scale: scale · code + minimum.
struct Part {
  std::vector<int> codes;
  float scale = 0, minimum = 0;
};

// The whole number that a part's scale has beside the block's.
int part_factor(BlockFormat format, const uint8_t* block, int part) {
  switch (format) {
    case BlockFormat::kQ2_K:
      return block[part] & 15;
    case BlockFormat::kQ3_K:
      return q3_k_scale(block + 96, part);
    case BlockFormat::kQ4_K:
    case BlockFormat::kQ5_K:
      return q4_k_scale(block + 4, part);
    case BlockFormat::kQ6_K:
      return static_cast<int8_t>(block[192 + part]);
    case BlockFormat::kIQ4_XS:
      return iq4_xs_scale(block, part);
    default:
      return 1;
  }
}

// The parts of one stored block, from what decode_block makes of it with other scales: with a scale of 1 and no minimum
// the codes, with a scale of 0 the minima.
std::vector<Part> parts_of(BlockFormat format, const uint8_t* block) {
  const BlockSize& size = block_size(format);
  const auto decoded = [&](uint16_t scale, bool has_minimum) {
    std::vector<uint8_t> bytes(block, block + size.bytes);
    std::vector<float> numbers(static_cast<size_t>(size.size));
    const std::array<int, 2> at = test::block_halves_at(format);
    const uint16_t none = 0;
    if (format == BlockFormat::kMXFP4) bytes[0] = 128;
    if (at[0] >= 0) std::memcpy(&bytes[at[0]], &scale, 2);
    if (at[1] >= 0 && !has_minimum) std::memcpy(&bytes[at[1]], &none, 2);
    decode_block(format, bytes.data(), numbers.data());
    return numbers;
  };
  const std::vector<float> codes = decoded(0x3c00, false), minima = decoded(0, true);
  uint16_t half = 0;
  if (const int at = test::block_halves_at(format)[0]; at >= 0) std::memcpy(&half, block + at, 2);
  const float scale = format == BlockFormat::kMXFP4 ? std::ldexp(1.0f, block[0] - 128) : f16_to_f32(half);
  const bool has_halves = format == BlockFormat::kQ2_K || format == BlockFormat::kQ3_K || format == BlockFormat::kQ6_K;
  std::vector<Part> parts;
  for (int64_t i = 0; i < size.size; ++i) {
    if (i % (has_halves ? 16 : 32) == 0) {
      const int factor = part_factor(format, block, static_cast<int>(parts.size()));
      parts.push_back({{}, scale * static_cast<float>(factor), has_minima(format) ? minima[i] : 0.0f});
    }
    const int factor = part_factor(format, block, static_cast<int>(parts.size()) - 1);
    parts.back().codes.push_back(factor == 0 ? 0 : static_cast<int>(codes[i]) / factor);
  }
  return parts;
}

// One row of x by one row of blocks.
float product(BlockFormat format, const uint8_t* blocks, const float* x, int64_t num_k) {
  const int64_t size = block_size(format).size, bytes = block_size(format).bytes;
  float sum = 0;
  for (int64_t k = 0; k < num_k; k += size) {
    float max = 0;
    bool is_finite = true;
    for (int64_t i = k; i < k + size; ++i) {
      is_finite = is_finite && std::isfinite(x[i]);
      max = std::max(max, std::fabs(x[i]));
    }
    const float x_scale = is_finite ? max / 127 : std::nanf("");
    const float inverse = max > 0 ? 127 / max : 0, factor = std::isfinite(inverse) ? inverse : 0;
    float b = 0;
    int64_t at = k;
    for (const Part& part : parts_of(format, blocks + k / size * bytes)) {
      int32_t s = 0, t = 0;
      for (const int code : part.codes) {
        const int q = is_finite ? static_cast<int>(std::nearbyint(x[at] * factor)) : 0;
        ++at;
        s += q * code;
        t += q;
      }
      const auto fs = static_cast<float>(s), ft = static_cast<float>(t);
      if (size == 32) {
        sum = std::fma(fs * x_scale, part.scale, sum);
        if (has_minima(format)) sum = std::fma(ft * x_scale, part.minimum, sum);
      } else {
        b = std::fma(fs, part.scale, b);
        if (has_minima(format)) b = std::fma(ft, part.minimum, b);
      }
    }
    if (size != 32) sum = std::fma(b, x_scale, sum);
  }
  return sum;
}

std::vector<float> run(const PackedLinear& w, const std::vector<float>& x, int64_t rows, ThreadPool& pool) {
  GuardedFloats out(rows * w.out_features());
  linear(w, x.data(), rows, out.data(), pool);
  CHECK(out.guards_untouched());
  return out.copy();
}

PackedLinear pack(const TensorView& view, std::span<const TensorView> biases, ThreadPool& pool) {
  return PackedLinear::pack({&view, 1}, biases, pool, Quantization::kNone, DType::kI8);
}

// Rows of ordinary numbers, of zeros, with a large one, tiny ones, and of whole numbers and halves.
std::vector<float> awkward_rows(int64_t rows, int64_t k) {
  std::vector<float> x = random_normal(rows * k, 3);
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t i = 0; i < k; ++i) {
      float& v = x[r * k + i];
      if (r % 7 == 1 && i < 256) v = 0;
      if (r % 7 == 2 && i % 64 == 5) v *= 1000;
      if (r % 7 == 3) v *= 0x1p-130f;
      if (r % 7 == 4) v = i % 32 == 0 ? 127.0f : static_cast<float>(i % 9) - 4.5f;
    }
  return x;
}

std::vector<float> products(BlockFormat format, const BlockWeights& weights, int64_t n, const std::vector<float>& x,
                            int64_t rows, int64_t k) {
  std::vector<float> out(rows * n);
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < n; ++c)
      out[r * n + c] = product(format, weights.bytes.data() + c * weights.view.row_bytes(), &x[r * k], k);
  return out;
}

TEST_CASE("products are those of the definition, to the bit: any rows, threads, instruction set") {
  ThreadPool one(1), three(3);
  for (const BlockFormat format : all_block_formats()) {
    if (rounds_numbers(format)) continue;  // these take x as it is
    CAPTURE(std::string(block_size(format).name));
    for (const auto& [n, k] : {std::pair<int64_t, int64_t>{1, 256}, {67, block_size(format).size == 32 ? 544 : 768}}) {
      const BlockWeights weights(format, n, k, static_cast<uint32_t>(n));
      const std::vector<float> bias = random_normal(n, 2), x = awkward_rows(27, k);
      const TensorView b = {bias.data(), DType::kF32, 1, n};
      std::vector<float> expected = products(format, weights, n, x, 27, k);
      for (int64_t i = 0; i < 27 * n; ++i) expected[i] += bias[i % n];
      for_each_cpu_target([&](const std::string& target) {
        CAPTURE(target);
        const PackedLinear packed = pack(weights.view, {&b, 1}, three);
        CHECK(packed.has_int8_x());
        for (const int64_t m : {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 27}) {
          CAPTURE(m);
          const std::span<const float> first(expected.data(), static_cast<size_t>(m * n));
          CHECK(same_bytes(run(packed, x, m, one), first));
          if (m == 3 || m == 27) CHECK(same_bytes(run(packed, x, m, three), first));
        }
      });
    }
  }
}

// Six threads take 993 rows by one panel as 31 tasks of 32 rows, each by half a panel, and the last row alone.
TEST_CASE("the row that tasks of many rows leave over is as it is alone, with half a panel as well") {
  ThreadPool six(6);
  constexpr int64_t kRows = 993, kCols = 512, kWidth = 64;
  const std::vector<float> x = awkward_rows(kRows, kCols);
  const std::vector<float> last(x.end() - kCols, x.end());
  for (const BlockFormat format : all_block_formats()) {
    if (rounds_numbers(format)) continue;
    CAPTURE(std::string(block_size(format).name));
    const BlockWeights weights(format, kWidth, kCols, 1);
    const std::vector<float> expected = products(format, weights, kWidth, last, 1, kCols);
    for_each_cpu_target([&](const std::string& target) {
      CAPTURE(target);
      const PackedLinear packed = pack(weights.view, {}, six);
      const std::vector<float> all = run(packed, x, kRows, six);
      CHECK(same_bytes(std::span(all).last(kWidth), expected));
    });
  }
}

// Sums in 16 bits come to their limits here.
TEST_CASE("products of the largest codes and numbers are exact") {
  ThreadPool pool(2);
  constexpr int64_t kRows = 9, kCols = 512, kWidth = 64;
  std::vector<float> x(kRows * kCols);
  for (int64_t i = 0; i < kRows * kCols; ++i) {
    const int64_t row = i / kCols, every = row / 2 + 1;
    x[i] = (row % 2 == 0) == (i / every % 2 == 0 || every == 1) ? 127.0f : -127.0f;
  }
  for (const BlockFormat format : all_block_formats()) {
    if (rounds_numbers(format)) continue;
    CAPTURE(std::string(block_size(format).name));
    for (const int code_byte : {0x00, 0x7f, 0x80, 0xff}) {
      CAPTURE(code_byte);
      BlockWeights weights(format, kWidth, kCols, 1);
      const int64_t size = block_size(format).bytes;
      const std::array<int, 2> halves = test::block_halves_at(format);
      for (size_t i = 0; i < weights.bytes.size(); ++i) {
        const int at = static_cast<int>(static_cast<int64_t>(i) % size);
        const bool is_scale = format == BlockFormat::kMXFP4 ? at == 0 : at / 2 * 2 == halves[0] || at / 2 * 2 == halves[1];
        if (!is_scale) weights.bytes[i] = static_cast<uint8_t>(code_byte);
      }
      const std::vector<float> expected = products(format, weights, kWidth, x, kRows, kCols);
      for_each_cpu_target([&](const std::string& target) {
        CAPTURE(target);
        const PackedLinear packed = pack(weights.view, {}, pool);
        for (const int64_t m : {1, 9})
          CHECK(same_bytes(run(packed, x, m, pool), std::span(expected).first(static_cast<size_t>(m * kWidth))));
      });
    }
  }
}

TEST_CASE("a row that is not finite is NaN, and no other row is") {
  ThreadPool pool(2);
  constexpr int64_t kRows = 9, kCols = 512, kWidth = 70;
  for (const BlockFormat format : {BlockFormat::kQ8_0, BlockFormat::kQ4_1, BlockFormat::kQ4_K, BlockFormat::kQ6_K}) {
    CAPTURE(std::string(block_size(format).name));
    const BlockWeights weights(format, kWidth, kCols, 1);
    std::vector<float> x = random_normal(kRows * kCols, 2);
    for_each_cpu_target([&](const std::string& target) {
      CAPTURE(target);
      const PackedLinear packed = pack(weights.view, {}, pool);
      const std::vector<float> before = run(packed, x, kRows, pool);
      std::vector<float> odd = x;
      odd[4 * kCols + 300] = std::nanf("");
      odd[7 * kCols + 2] = -std::numeric_limits<float>::infinity();
      const std::vector<float> after = run(packed, odd, kRows, pool);
      for (int64_t i = 0; i < kRows * kWidth; ++i) {
        if (i / kWidth == 4 || i / kWidth == 7) CHECK(std::isnan(after[i]));
        else CHECK(after[i] == before[i]);
      }
    });
  }
}

TEST_CASE("parts with blocks of both sizes and plain numbers are one matrix; each keeps its own products") {
  ThreadPool pool(2);
  constexpr int64_t kCols = 512, kRows = 5;
  std::vector<BlockWeights> parts;
  std::vector<TensorView> views;
  for (const BlockFormat format : {BlockFormat::kQ4_K, BlockFormat::kQ8_0, BlockFormat::kQ6_K, BlockFormat::kQ4_1})
    parts.emplace_back(format, 64, kCols, 7);
  for (const BlockWeights& part : parts) views.push_back(part.view);
  const std::vector<float> last = random_normal(20 * kCols, 9), x = random_normal(kRows * kCols, 4);
  views.push_back({last.data(), DType::kF32, 20, kCols});
  const PackedLinear packed = PackedLinear::pack(views, {}, pool, Quantization::kNone, DType::kI8);
  const std::vector<float> all = run(packed, x, kRows, pool);
  int64_t first = 0;
  for (const TensorView& view : views) {
    const std::vector<float> own = run(pack(view, {}, pool), x, kRows, pool);
    for (int64_t r = 0; r < kRows; ++r)
      for (int64_t c = 0; c < view.rows; ++c)
        CHECK(all[r * packed.out_features() + first + c] == own[r * view.rows + c]);
    first += view.rows;
  }
}

TEST_CASE("weights without blocks, and matrices packed without it, do not round what they take") {
  ThreadPool pool(2);
  const std::vector<float> w = random_normal(70 * 64, 1), x = random_normal(3 * 64, 2);
  const TensorView view{w.data(), DType::kF32, 70, 64};
  const PackedLinear plain = PackedLinear::pack({&view, 1}, {}, pool);
  CHECK(same_bytes(run(pack(view, {}, pool), x, 3, pool), run(plain, x, 3, pool)));
  const BlockWeights blocks(BlockFormat::kQ4_0, 70, 64, 1);
  CHECK_FALSE(same_bytes(run(pack(blocks.view, {}, pool), x, 3, pool),
                         run(PackedLinear::pack({&blocks.view, 1}, {}, pool), x, 3, pool)));
}

}  // namespace
}  // namespace llmb::cpu
