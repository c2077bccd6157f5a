// Tile products: the walk over a task's tiles with emulated ones, and the processor's own where it has them.
#include "kernels/cpu/linear_amx.h"

#include <doctest/doctest.h>

#include <cmath>
#include <vector>

#include "base/float_formats.h"
#include "tests/support/compare.h"
#include "tests/support/emulated_tiles.h"
#include "tests/support/kernel_support.h"

namespace llmb::cpu {
namespace {

using test::EmulatedTiles;
using test::random_normal;

constexpr int64_t kWidth = PackedLinear::kPanelWidth;
constexpr uint32_t kUntouched = 0xdeadbeef;

// A panel with what lies behind it: not zero.
struct Operands {
  int64_t rows, num_words, stride;
  std::vector<uint8_t> x, panel;

  Operands(int64_t num_rows, int64_t words, AmxNumbers numbers)
      : rows(num_rows), num_words(words), stride(ceil_div(words * 4, 64) * 64) {
    std::mt19937 rng(static_cast<uint32_t>(rows * 1000 + words));
    x.resize(static_cast<size_t>(rows * stride));
    panel.resize(static_cast<size_t>((num_words + 2 * kAmxWords) * kWidth * 4));
    const auto fill = [&](std::vector<uint8_t>* bytes) {
      if (numbers == AmxNumbers::kBytes) {
        for (uint8_t& b : *bytes) b = static_cast<uint8_t>(rng());
      } else {
        const std::vector<float> values = random_normal(static_cast<int64_t>(bytes->size() / 2), rng());
        for (size_t i = 0; i < values.size(); ++i) {
          const uint16_t bits = f32_to_bf16(values[i]);
          std::memcpy(bytes->data() + 2 * i, &bits, 2);
        }
      }
    };
    fill(&x);
    fill(&panel);
    for (int64_t row = 0; row < rows && numbers == AmxNumbers::kBf16; ++row)
      std::memset(x.data() + row * stride + num_words * 4, 0, static_cast<size_t>(stride - num_words * 4));
  }
  AmxProduct product(int64_t column_begin, int64_t column_end) const {
    return {x.data(), stride, rows, panel.data(), num_words, column_begin, column_end, panel.data(), 4096};
  }
  float half(const std::vector<uint8_t>& bytes, int64_t i) const {
    uint16_t bits;
    std::memcpy(&bits, bytes.data() + 2 * i, 2);
    return bf16_to_f32(bits);
  }
};

// [rows][kWidth], of which columns are written.
template <typename Tiles, AmxNumbers kNumbers, typename Sum>
std::vector<Sum> sums(const Operands& o, int64_t column_begin, int64_t column_end) {
  std::vector<Sum> out(static_cast<size_t>(o.rows * kWidth) + 16);
  std::vector<uint32_t> words(out.size(), kUntouched);
  std::memcpy(out.data(), words.data(), 4 * out.size());
  amx_sums<Tiles, kNumbers>(o.product(column_begin, column_end), out.data());
  std::memcpy(words.data(), out.data(), 4 * out.size());
  for (size_t i = 0; i < words.size(); ++i) {
    const auto column = static_cast<int64_t>(i % kWidth);
    if (i >= out.size() - 16 || column < column_begin || column >= column_end) REQUIRE(words[i] == kUntouched);
  }
  return out;
}

template <typename Tiles>
void check_all() {
  for (const auto& [begin, end] : {std::pair{0, 64}, {0, 32}, {32, 64}}) {
    CAPTURE(begin);
    for (const int64_t rows : {1, 2, 15, 16, 17, 31, 32, 33, 47, 48, 49, 63, 64, 65, 127, 128}) {
      for (const int64_t words : {1, 2, 15, 16, 17, 31, 32, 33, 70}) {
        if (rows > 17 && words > 17 && (rows + words) % 5 != 0) continue;
        CAPTURE(rows);
        CAPTURE(words);
        const Operands bytes(rows, words, AmxNumbers::kBytes);
        const std::vector<int32_t> exact = sums<Tiles, AmxNumbers::kBytes, int32_t>(bytes, begin, end);
        const Operands halves(rows, words, AmxNumbers::kBf16);
        const std::vector<float> actual = sums<Tiles, AmxNumbers::kBf16, float>(halves, begin, end);
        std::vector<float> close, naive;
        std::vector<double> expected;
        int64_t num_wrong = 0;
        for (int64_t m = 0; m < rows; ++m) {
          for (int64_t n = begin; n < end; ++n) {
            int32_t of_bytes = 0;
            for (int64_t k = 0; k < 4 * words; ++k)
              of_bytes +=
                  bytes.x[m * bytes.stride + k] * static_cast<int8_t>(bytes.panel[(k / 4 * kWidth + n) * 4 + k % 4]);
            num_wrong += exact[m * kWidth + n] != of_bytes ? 1 : 0;
            float in_order = 0;
            double of_halves = 0;
            for (int64_t k = 0; k < 2 * words; ++k) {
              const float a = halves.half(halves.x, m * halves.stride / 2 + k);
              const float b = halves.half(halves.panel, (k / 2 * kWidth + n) * 2 + k % 2);
              in_order += a * b;
              of_halves += double(a) * double(b);
            }
            close.push_back(actual[m * kWidth + n]);
            naive.push_back(in_order);
            expected.push_back(of_halves);
          }
        }
        CHECK(num_wrong == 0);
        CHECK(test::relative_error(close, expected) <= 2 * test::relative_error(naive, expected) + 1e-7);
      }
    }
  }
}

}  // namespace

TEST_CASE("sums by emulated tiles are exact for bytes and as close to fp64 as naive ones for bf16") {
  check_all<EmulatedTiles>();
  CHECK(EmulatedTiles::is_released());
}

TEST_CASE("a row's sums of bf16 have the same bits whatever rows are beside it") {
  const Operands all(128, 70, AmxNumbers::kBf16);
  const std::vector<float> whole = sums<EmulatedTiles, AmxNumbers::kBf16, float>(all, 0, 64);
  for (const int64_t rows : {1, 5, 16, 17, 40, 64}) {
    for (int64_t row = 0; row + rows <= all.rows; row += rows) {
      Operands some = all;
      some.rows = rows;
      some.x.assign(all.x.begin() + row * all.stride, all.x.begin() + (row + rows) * all.stride);
      for (const int64_t column : {0, 32}) {
        const std::vector<float> part = sums<EmulatedTiles, AmxNumbers::kBf16, float>(some, column, column + 32);
        for (int64_t r = 0; r < rows; ++r)
          REQUIRE(test::same_bytes(std::span(part).subspan(r * kWidth + column, 32),
                                   std::span(whole).subspan((row + r) * kWidth + column, 32)));
      }
    }
  }
}

#if LLMB_HAS_AMX_CODE
TEST_CASE("the processor's tiles give the emulated ones' bytes" * doctest::skip(!has_amx())) {
  check_all<AmxTiles>();
  for (const int64_t rows : {1, 16, 23, 100}) {
    const Operands o(rows, 70, AmxNumbers::kBf16);
    CHECK(test::same_bytes(sums<AmxTiles, AmxNumbers::kBf16, float>(o, 0, 64),
                           sums<EmulatedTiles, AmxNumbers::kBf16, float>(o, 0, 64)));
  }
}
#endif

}  // namespace llmb::cpu
