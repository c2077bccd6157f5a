// linear and embedding over weights in blocks of few bits: the bytes that the dequantised matrix gives.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "core/block_format.h"
#include "kernels/cpu/linear.h"
#include "tests/support/block_weights.h"
#include "tests/support/kernel_support.h"

namespace llmb::cpu {
namespace {

using test::all_block_formats;
using test::BlockWeights;
using test::for_each_simd_target;
using test::GuardedFloats;
using test::random_normal;
using test::same_bytes;

std::vector<float> run(const PackedLinear& w, const std::vector<float>& x, int64_t rows, ThreadPool& pool) {
  GuardedFloats out(rows * w.out_features());
  linear(w, x.data(), rows, out.data(), pool);
  CHECK(out.guards_untouched());
  return out.copy();
}

TEST_CASE("rows of a packed table are what decode_block makes of them, to the bit, on every instruction set") {
  ThreadPool pool(2);
  constexpr int64_t kRows = 70, kCols = 512;
  for (const BlockFormat format : all_block_formats()) {
    CAPTURE(std::string(block_size(format).name));
    const BlockWeights blocks(format, kRows, kCols, 1);
    for_each_simd_target([&](const std::string& target) {
      CAPTURE(target);
      const PackedLinear packed = PackedLinear::pack({&blocks.view, 1}, {}, pool);
      CHECK(packed.format() == PackedFormat::kBlocks);
      std::vector<TokenId> tokens(kRows);
      for (int64_t i = 0; i < kRows; ++i) tokens[i] = static_cast<TokenId>(i);
      std::vector<float> rows(kRows * kCols);
      embedding(packed, tokens.data(), kRows, rows.data(), pool);
      CHECK(same_bytes(rows, blocks.values));
      add_embedding(packed, tokens.data(), 1, rows.data(), pool);
      CHECK(rows[1] == blocks.values[1] + blocks.values[1]);
    });
  }
}

TEST_CASE("products are those of the dequantised matrix, to the bit: any rows, columns, threads, instruction set") {
  ThreadPool one(1), three(3);
  for_each_simd_target([&](const std::string& target) {
    CAPTURE(target);
    const bool is_scalar = target == "SCALAR" || target == "EMU128";
    for (const BlockFormat format : all_block_formats()) {
      CAPTURE(std::string(block_size(format).name));
      for (const auto& [n, k] : {std::pair<int64_t, int64_t>{1, 256}, {64, 768}, {129, 1024}}) {
        const BlockWeights blocks(format, n, k, static_cast<uint32_t>(n + k));
        const std::vector<float> bias = random_normal(n, 2);
        const TensorView b = {bias.data(), DType::kF32, 1, n};
        const PackedLinear packed = PackedLinear::pack({&blocks.view, 1}, {&b, 1}, three);
        const PackedLinear numbers = PackedLinear::pack({&blocks.numbers, 1}, {&b, 1}, three);
        for (const int64_t m : {1, 2, 5, 6, 7, 12, 13, 40, 130}) {
          if (is_scalar && m > 13) break;
          CAPTURE(m);
          const std::vector<float> x = random_normal(m * k, 3), expected = run(numbers, x, m, one);
          CHECK(same_bytes(run(packed, x, m, one), expected));
          CHECK(same_bytes(run(packed, x, m, three), expected));
        }
      }
    }
  });
}

// Six threads take 993 rows by one panel as 31 tasks of 32 rows, each by half a panel, and the last row alone.
TEST_CASE("the row that tasks of many rows leave over is as it is alone, with half a panel as well") {
  ThreadPool one(1), six(6);
  constexpr int64_t kRows = 993, kWidth = 64, kCols = 256;
  const std::vector<float> x = random_normal(kRows * kCols, 4), last(x.end() - kCols, x.end());
  for (const BlockFormat format : all_block_formats()) {
    CAPTURE(std::string(block_size(format).name));
    const BlockWeights blocks(format, kWidth, kCols, 5);
    const PackedLinear packed = PackedLinear::pack({&blocks.view, 1}, {}, six);
    for_each_simd_target([&](const std::string& target) {
      if (target == "SCALAR" || target == "EMU128") return;
      CAPTURE(target);
      const std::vector<float> all = run(packed, x, kRows, six);
      CHECK(same_bytes(std::span(all).last(kWidth), run(packed, last, 1, one)));
    });
  }
}

TEST_CASE("parts of several formats become one matrix; a panel that they share is fp32") {
  ThreadPool pool(2);
  constexpr int64_t kCols = 512;
  std::vector<BlockWeights> parts;
  std::vector<TensorView> views, numbers;
  const std::pair<BlockFormat, int64_t> kParts[] = {{BlockFormat::kQ4_K, 128},
                                                    {BlockFormat::kQ6_K, 64},
                                                    {BlockFormat::kIndexedInt4F16, 64},
                                                    {BlockFormat::kInt8BF16, 64},
                                                    {BlockFormat::kIndexedInt8BF16, 64},
                                                    {BlockFormat::kQ4_0, 32},
                                                    {BlockFormat::kQ8_0, 0},
                                                    {BlockFormat::kQ8_0, 40},
                                                    {BlockFormat::kQ5_1, 70},
                                                    {BlockFormat::kIndexedInt4BF16, 3}};
  uint32_t seed = 0;
  for (const auto& [format, rows] : kParts) {
    parts.emplace_back(format, rows, kCols, ++seed);
    views.push_back(parts.back().view);
    numbers.push_back(parts.back().numbers);
  }
  const std::vector<float> last = random_normal(20 * kCols, 9);
  for (auto* list : {&views, &numbers}) list->push_back({last.data(), DType::kF32, 20, kCols});
  const PackedLinear packed = PackedLinear::pack(views, {}, pool), expected = PackedLinear::pack(numbers, {}, pool);
  CHECK(packed.out_features() == expected.out_features());
  const BlockFormat panels[] = {BlockFormat::kQ4_K,           BlockFormat::kQ4_K,     BlockFormat::kQ6_K,
                                BlockFormat::kIndexedInt4F16, BlockFormat::kInt8BF16, BlockFormat::kIndexedInt8BF16,
                                BlockFormat::kNone,           BlockFormat::kNone,     BlockFormat::kNone};
  REQUIRE(packed.num_panels() == 9);
  for (int64_t p = 0; p < 9; ++p) CHECK(packed.panel_blocks(p) == panels[p]);
  for (const int64_t m : {1, 3, 20}) {
    const std::vector<float> x = random_normal(m * kCols, 4);
    CHECK(same_bytes(run(packed, x, m, pool), run(expected, x, m, pool)));
  }
  // The same of the bytes that it is made of.
  size_t next = 0;
  const auto sections = packed.packed_bytes();
  const PackedLinear again = PackedLinear::from_packed(views, {}, Quantization::kNone, DType::kF32, [&](int64_t bytes) {
    AlignedBuffer buffer(bytes);
    REQUIRE(static_cast<int64_t>(sections[next].size()) == bytes);
    std::memcpy(buffer.data(), sections[next++].data(), static_cast<size_t>(bytes));
    return buffer;
  });
  const std::vector<float> x = random_normal(kCols, 5);
  CHECK(same_bytes(run(again, x, 1, pool), run(expected, x, 1, pool)));
}

TEST_CASE("an fp8 code that is no number stays none, on every instruction set") {
  ThreadPool pool(1);
  for (const BlockFormat format : {BlockFormat::kFp8F16, BlockFormat::kFp8BF16}) {
    BlockWeights blocks(format, 3, 64, 1);
    blocks.bytes[4 + 36 * 3 + 5] = 0x7f, blocks.bytes[4 + 6] = 0xff;
    for_each_simd_target([&](const std::string& target) {
      CAPTURE(target);
      const PackedLinear packed = PackedLinear::pack({&blocks.view, 1}, {}, pool);
      const TokenId tokens[] = {0, 1, 2};
      std::vector<float> rows(3 * 64);
      embedding(packed, tokens, 3, rows.data(), pool);
      for (size_t i = 0; i < rows.size(); ++i) CHECK(std::isnan(rows[i]) == (i == 6 || i == 64 + 32 + 5));
      const std::vector<float> x = random_normal(2 * 64, 3), out = run(packed, x, 2, pool);
      for (size_t i = 0; i < out.size(); ++i) CHECK(std::isnan(out[i]) == (i % 3 < 2));
    });
  }
}

TEST_CASE("a packed matrix takes at most 4 % more memory than its rows, and an index of 1/4 bit a weight") {
  ThreadPool pool(1);
  for (const BlockFormat format : all_block_formats()) {
    CAPTURE(std::string(block_size(format).name));
    const BlockWeights blocks(format, 128, 512, 1);
    const auto bytes = static_cast<int64_t>(blocks.bytes.size());
    const PackedLinear packed = PackedLinear::pack({&blocks.view, 1}, {}, pool);
    CHECK(packed.resident_bytes() >= bytes);
    const int64_t index = is_indexed(format) ? 128 * 512 / 32 : 0;
    CHECK((packed.resident_bytes() - index) * 100 <= bytes * 104);
  }
}

}  // namespace
}  // namespace llmb::cpu
