// linear over int8, int4 and w4a8 weights: what packing makes of a matrix, and what products make of that.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "base/float_formats.h"
#include "kernels/cpu/linear.h"
#include "kernels/cpu/linear_task.h"
#include "kernels/cpu/number_panels.h"
#include "tests/support/compare.h"
#include "tests/support/cpu_targets.h"
#include "tests/support/kernel_support.h"

namespace llmb::cpu {
namespace {

using test::for_each_cpu_target;
using test::GuardedFloats;
using test::random_normal;
using test::same_bytes;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

TensorView view(const std::vector<float>& values, int64_t rows) {
  return {values.data(), DType::kF32, rows, static_cast<int64_t>(values.size()) / rows};
}

constexpr Quantization kFormats[] = {Quantization::kInt8, Quantization::kInt4, Quantization::kW4A8};

PackedFormat format_of(Quantization q) {
  if (q == Quantization::kW4A8) return PackedFormat::kW4A8;
  return q == Quantization::kInt8 ? PackedFormat::kInt8 : PackedFormat::kInt4;
}

PackedLinear pack(const std::vector<float>& weight, int64_t rows, Quantization quantization, ThreadPool& pool,
                  const std::vector<float>& bias = {}) {
  const TensorView w = view(weight, rows), b = view(bias, 1);
  return PackedLinear::pack({&w, 1}, bias.empty() ? std::span<const TensorView>() : std::span(&b, 1), pool,
                            quantization);
}

std::vector<float> run(const PackedLinear& w, const std::vector<float>& x, int64_t rows, ThreadPool& pool) {
  GuardedFloats out(rows * w.out_features());
  linear(w, x.data(), rows, out.data(), pool);
  CHECK(out.guards_untouched());
  return out.copy();
}

// The weights that the packed form stands for: [out_features, in_features].
std::vector<float> unpack(const PackedLinear& w, ThreadPool& pool) {
  std::vector<TokenId> rows;
  for (int64_t i = 0; i < w.out_features(); ++i) rows.push_back(static_cast<TokenId>(i));
  std::vector<float> values(static_cast<size_t>(w.out_features() * w.in_features()));
  embedding(w, rows.data(), w.out_features(), values.data(), pool);
  return values;
}

// x as products over int8 weights see it, by the definition in linear.h.
std::vector<float> rounded_rows(const std::vector<float>& x, int64_t rows) {
  const int64_t k = static_cast<int64_t>(x.size()) / rows;
  std::vector<float> out;
  for (int64_t r = 0; r < rows; ++r) {
    float max = 0;
    for (int64_t i = 0; i < k; ++i) max = std::max(max, std::fabs(x[r * k + i]));
    for (int64_t i = 0; i < k; ++i)
      out.push_back(max == 0 ? 0.0f : static_cast<float>(std::nearbyint(x[r * k + i] * (127 / max))) * (max / 127));
  }
  return out;
}

void check_product(Quantization quantization, int64_t m, int64_t n, int64_t k, bool with_bias, ThreadPool& pool) {
  const std::vector<float> bias = with_bias ? random_normal(n, 7) : std::vector<float>();
  const PackedLinear packed = pack(random_normal(n * k, 1), n, quantization, pool, bias);
  CHECK(packed.format() == format_of(quantization));
  const std::vector<float> weight = unpack(packed, pool), stored_x = random_normal(m * k, 3);
  const std::vector<float> x = packed.has_int8_rows() && m > 0 ? rounded_rows(stored_x, m) : stored_x;
  std::vector<double> expected;
  std::vector<float> naive;
  for (int64_t r = 0; r < m; ++r) {
    for (int64_t c = 0; c < n; ++c) {
      double exact = 0;
      float single = 0;
      for (int64_t i = 0; i < k; ++i) {
        exact += double(x[r * k + i]) * double(weight[c * k + i]);
        single += x[r * k + i] * weight[c * k + i];
      }
      expected.push_back(exact + (with_bias ? bias[c] : 0));
      naive.push_back(single + (with_bias ? bias[c] : 0));
    }
  }
  CAPTURE(quantization_name(quantization));
  CAPTURE(m);
  CAPTURE(n);
  CAPTURE(k);
  CHECK(test::relative_error(run(packed, stored_x, m, pool), expected) <=
        2 * test::relative_error(naive, expected) + 3e-7);
}

// Numbers, sums and scales by the definition in quantize.h.
void check_w4a8(const PackedLinear& packed, const TensorView& stored) {
  int64_t num_wrong = 0;
  for (int64_t row = 0; row < stored.rows; ++row) {
    std::vector<float> x(static_cast<size_t>(ceil_div(stored.cols, 32) * 32));
    for (int64_t i = 0; i < stored.cols; ++i) x[i] = load_element(stored, row * stored.cols + i);
    float max = 0;
    for (const float value : x) max = std::max(max, std::fabs(value));
    int32_t sum = 0;
    for (int64_t k = 0; k < stored.cols; k += 32) {
      for (int64_t i = k; i < k + 32; ++i) x[i] *= 119 / max;
      const auto [least, most] = std::minmax_element(x.begin() + k, x.begin() + k + 32);
      const float scale = std::max(1.0f, std::nearbyint((*most - *least) * (1 / 15.0f)));
      const float zero = std::nearbyint((15 * scale - *most - *least) * 0.5f);
      for (int64_t i = k; i < std::min(k + 32, stored.cols); ++i) {
        const float code = std::nearbyint(std::clamp((x[i] + zero) * (1 / scale), 0.0f, 15.0f));
        const auto number = static_cast<int32_t>(code * scale - zero);
        num_wrong += std::abs(number) > 127 || w4a8_number(packed.panel(row / 64), i, row % 64) != number ? 1 : 0;
        sum += number;
      }
    }
    CHECK(packed.sums()[row] == sum);
    CHECK(packed.scales()[row] == max / 119);
  }
  CHECK(num_wrong == 0);
}

}  // namespace

TEST_CASE("products over int8, int4 and w4a8 weights are as close to fp64 as a naive product of the same numbers") {
  ThreadPool pool(2);
  for_each_cpu_target([&](const std::string& target) {
    CAPTURE(target);
    for (const Quantization q : kFormats) {
      for (const int64_t m : {0, 1, 2, 3, 4, 5, 6, 7, 11, 12, 13, 31, 32, 33, 36, 37})
        check_product(q, m, 65, 67, true, pool);
      for (const int64_t n : {1, 15, 16, 17, 31, 32, 33, 63, 64, 127, 128, 129})
        for (const int64_t m : {1, 8, 40}) check_product(q, m, n, 130, n % 2 == 1, pool);
      for (const int64_t k :
           {1, 3, 4, 5, 7, 8, 9, 31, 32, 33, 63, 64, 65, 159, 160, 161, 320, 321, 639, 640, 641, 1281})
        for (const int64_t m : {1, 8, 40}) check_product(q, m, 66, k, false, pool);
      for (const int64_t m : {127, 128, 129, 257}) check_product(q, m, 3, 33, true, pool);
    }
  });
}

TEST_CASE("a quantised product's row is bit-identical alone and in any batch; with int8 rows also on every instruction set") {
  ThreadPool one(1), three(3);
  for (const Quantization q : kFormats)
    for (const int64_t kK : {715, 704}) {  // not whole groups, and whole pairs of them
      constexpr int64_t kRows = 140, kN = 70;
      const PackedLinear packed = pack(random_normal(kN * kK, 4), kN, q, three, random_normal(kN, 5));
      const std::vector<float> x = random_normal(kRows * kK, 6);
      std::vector<float> first;
      for_each_cpu_target([&](const std::string& target) {
        CAPTURE(target);
        const std::vector<float> whole = run(packed, x, kRows, one);
        if (first.empty()) first = whole;
        if (packed.has_int8_rows()) CHECK(same_bytes(whole, first));
        CHECK(same_bytes(whole, run(packed, x, kRows, three)));
        for (const int64_t chunk : {1, 2, 5, 7, 13, 32, 37, 100}) {
          for (int64_t begin = 0; begin + chunk <= kRows; begin += chunk) {
            const std::vector<float> part(x.begin() + begin * kK, x.begin() + (begin + chunk) * kK);
            CHECK(same_bytes(std::span(whole).subspan(begin * kN, chunk * kN), run(packed, part, chunk, three)));
          }
        }
      });
    }
}

// Six threads take 993 rows by one panel as 31 tasks of 32 rows, each by half a panel, and the last row alone.
TEST_CASE("the row that tasks of many rows leave over is as it is alone, with half a panel as well") {
  ThreadPool one(1), six(6);
  constexpr int64_t kRows = 993, kN = 64;
  for (const Quantization q : kFormats)
    for (const int64_t k : {128, 130}) {
      CAPTURE(quantization_name(q));
      CAPTURE(k);
      const PackedLinear packed = pack(random_normal(kN * k, 12), kN, q, six, random_normal(kN, 13));
      const std::vector<float> x = random_normal(kRows * k, 14), last(x.end() - k, x.end());
      for_each_cpu_target([&](const std::string& target) {
        CAPTURE(target);
        const std::vector<float> all = run(packed, x, kRows, six);
        CHECK(same_bytes(std::span(all).last(kN), run(packed, last, 1, one)));
      });
    }
}

TEST_CASE("int8 weights are within half a step of what was stored, int4 and w4a8 within a step of their group's") {
  ThreadPool pool(2);
  constexpr int64_t kN = 67, kK = 75;
  std::vector<float> weight = random_normal(kN * kK, 8);
  for (int64_t i = 0; i < kK; ++i) weight[2 * kK + i] = 0;
  const std::vector<float> eight = unpack(pack(weight, kN, Quantization::kInt8, pool), pool);
  const std::vector<float> four = unpack(pack(weight, kN, Quantization::kInt4, pool), pool);
  const std::vector<float> both = unpack(pack(weight, kN, Quantization::kW4A8, pool), pool);
  const auto magnitude = [&](int64_t row, int64_t begin, int64_t end) {
    float max = 0;
    for (int64_t i = begin; i < end; ++i) max = std::max(max, std::fabs(weight[row * kK + i]));
    return max;
  };
  for (int64_t row = 0; row < kN; ++row) {
    for (int64_t i = 0; i < kK; ++i) {
      const int64_t group = i / PackedLinear::kInt4Group * PackedLinear::kInt4Group;
      const float exact = weight[row * kK + i];
      CHECK(std::fabs(eight[row * kK + i] - exact) <= magnitude(row, 0, kK) / 127 * 0.501f);
      const float group_max = magnitude(row, group, std::min(kK, group + PackedLinear::kInt4Group));
      CHECK(std::fabs(four[row * kK + i] - exact) <= group_max / 8 * 1.04f);
      // A scale that is rounded down leaves out 15 half units of the row's at most, half of them at each end.
      const float unit = magnitude(row, 0, kK) / 119;
      CHECK(std::fabs(both[row * kK + i] - exact) <= std::max(group_max / 15, 3.75f * unit) + 1.01f * unit);
    }
  }
}

TEST_CASE("the largest magnitudes neither wrap nor saturate") {
  ThreadPool pool(1);
  constexpr int64_t kK = 4096;
  const std::vector<float> ones(kK, 1.0f), minus(kK, -1.0f);
  for_each_cpu_target([&](const std::string& target) {
    CAPTURE(target);
    for (const Quantization q : {Quantization::kInt8, Quantization::kW4A8}) for (const auto* w : {&ones, &minus}) {
      const PackedLinear packed = pack(*w, 1, q, pool);
      for (const auto* x : {&ones, &minus})
        CHECK(run(packed, *x, 1, pool)[0] == doctest::Approx(w == x ? kK : -kK).epsilon(1e-6));
    }
  });
}

TEST_CASE("a rounded row is written to the end of its last word of four, not further, on every instruction set") {
  const std::vector<float> x = random_normal(70, 11);
  for_each_cpu_target([&](const std::string& target) {
    CAPTURE(target);
    for (int64_t n = 1; n <= static_cast<int64_t>(x.size()); ++n) {
      CAPTURE(n);
      const int64_t written = (n + 3) / 4 * 4;
      std::vector<uint8_t> first(written + 64, 0x11), second(written + 64, 0x22);
      float scale = 0;
      quantize_row(x.data(), n, first.data(), &scale);
      quantize_row(x.data(), n, second.data(), &scale);
      CHECK(std::equal(first.begin(), first.begin() + written, second.begin()));
      CHECK(std::count(first.begin() + written, first.end(), 0x11) == 64);
    }
  });
}

TEST_CASE("NaN and infinity stay in their row and in their output feature, and zeros give zeros") {
  ThreadPool pool(2);
  constexpr int64_t kRows = 9, kN = 20, kK = 50;
  for (const Quantization q : kFormats) {
    for_each_cpu_target([&](const std::string& target) {
      CAPTURE(target);
      std::vector<float> weight = random_normal(kN * kK, 9), x = random_normal(kRows * kK, 10);
      weight[3 * kK + 49] = kNan;
      weight[5 * kK] = -kInfinity;
      x[2 * kK + 49] = kNan;
      x[4 * kK] = kInfinity;
      for (int64_t i = 0; i < kK; ++i) x[6 * kK + i] = 0;
      const std::vector<float> out = run(pack(weight, kN, q, pool), x, kRows, pool);
      for (int64_t r = 0; r < kRows; ++r) {
        for (int64_t c = 0; c < kN; ++c) {
          const float value = out[r * kN + c];
          if (r == 2 || r == 4 || c == 3 || c == 5) CHECK(!std::isfinite(value));
          else if (r == 6) CHECK(value == 0);
          else CHECK(std::isfinite(value));
        }
      }
    });
  }
}

TEST_CASE("packed weights take what their format says, and rows too long for exact sums stay as they are stored") {
  ThreadPool pool(2);
  const std::vector<float> weight = random_normal(128 * 256, 11);
  const auto share = [&](Quantization q) { return double(pack(weight, 128, q, pool).resident_bytes()) / (128 * 256); };
  CHECK(share(Quantization::kInt8) <= 1.05);
  CHECK(share(Quantization::kInt4) <= 0.5625 + 1e-9);  // four bits and a sixteen-bit scale for each 32
  CHECK(share(Quantization::kW4A8) <= 0.5625 + 8 / 256.0);
  const std::vector<float> longest(PackedLinear::kMaxInt8Features, 1.0f),
      longer(PackedLinear::kMaxInt8Features + 1, 1.0f);
  const PackedLinear fits = pack(longest, 1, Quantization::kInt8, pool);
  CHECK(fits.format() == PackedFormat::kInt8);
  CHECK(run(fits, longest, 1, pool)[0] == doctest::Approx(65536).epsilon(1e-6));
  CHECK(run(pack(longest, 1, Quantization::kW4A8, pool), longest, 1, pool)[0] == doctest::Approx(65536).epsilon(1e-6));
  for (const Quantization q : {Quantization::kInt8, Quantization::kW4A8})
    CHECK(pack(longer, 1, q, pool).format() == PackedFormat::kF32);
}

TEST_CASE("columns of int8 rows are what they are in the whole rows, wherever they begin and whatever is beside them") {
  ThreadPool pool(2);
  constexpr int64_t kRows = 70, kCols = 300;
  std::vector<float> above = random_normal(30 * kCols, 1), below = random_normal((kRows - 30) * kCols, 2);
  above[4 * kCols + 7] = 100, above[5 * kCols + 299] = -100, above[6 * kCols + 150] = kNan;
  std::fill_n(below.begin(), kCols, 0.0f);
  std::vector<uint16_t> bf16;
  for (const float x : below) bf16.push_back(f32_to_bf16(x));
  const TensorView parts[] = {{above.data(), DType::kF32, 30, kCols}, {bf16.data(), DType::kBF16, kRows - 30, kCols}};
  const PackedLinear whole = PackedLinear::pack(parts, {}, pool, Quantization::kInt8);
  const std::vector<float> expected = unpack(whole, pool);
  for (const auto& [first, count] : {std::pair<int64_t, int64_t>{0, 300}, {0, 33}, {3, 256}, {32, 64}, {101, 199}, {299, 1}}) {
    CAPTURE(first);
    const PackedLinear columns = PackedLinear::pack_int8_columns(parts, first, count, pool);
    CHECK((columns.out_features() == kRows && columns.in_features() == count));
    const std::vector<float> numbers = unpack(columns, pool);
    for (int64_t row = 0; row < kRows; ++row) {
      CHECK(same_bytes(std::vector(numbers.begin() + row * count, numbers.begin() + (row + 1) * count),
                       std::vector(expected.begin() + row * kCols + first,
                                   expected.begin() + row * kCols + first + count)));
      int32_t sum = 0;
      for (int64_t i = 0; i < count; ++i) sum += int8_number(columns.panel(row / 64), i, row % 64);
      CHECK(columns.sums()[row] == sum);
    }
  }
}

TEST_CASE("packing gives the same bytes on every instruction set, those of the definition, for any stored dtype") {
  ThreadPool pool(2);
  for (const int64_t n : {1, 63, 64, 70}) {
    for (const int64_t k : {1, 3, 31, 32, 33, 255, 256, 257, 300, 544}) {
      std::vector<float> weight = random_normal(n * k, static_cast<uint32_t>(n + k));
      weight[0] = -weight[k - 1];  // two of the largest magnitude, perhaps
      std::vector<uint16_t> bf16, f16;
      for (const float x : weight) bf16.push_back(f32_to_bf16(x)), f16.push_back(f32_to_f16(x));
      for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
        const void* data = dtype == DType::kF32    ? static_cast<const void*>(weight.data())
                           : dtype == DType::kBF16 ? static_cast<const void*>(bf16.data())
                                                   : f16.data();
        const TensorView stored{data, dtype, n, k};
        for (const Quantization q : kFormats) {
          CAPTURE(n);
          CAPTURE(k);
          CAPTURE(quantization_name(q));
          std::vector<std::vector<uint8_t>> first;
          for_each_cpu_target([&](const std::string& target) {
            CAPTURE(target);
            const PackedLinear packed = PackedLinear::pack({&stored, 1}, {}, pool, q);
            std::vector<std::vector<uint8_t>> bytes;
            for (const auto& part : packed.packed_bytes()) bytes.emplace_back(part.begin(), part.end());
            if (first.empty()) first = bytes;
            CHECK(bytes == first);
            if (q == Quantization::kW4A8) check_w4a8(packed, stored);
            if (q != Quantization::kInt8) return;
            for (int64_t row = 0; row < n; ++row) {
              const auto at = [&](int64_t i) {
                return dtype == DType::kF32    ? weight[row * k + i]
                       : dtype == DType::kBF16 ? bf16_to_f32(bf16[row * k + i])
                                               : f16_to_f32(f16[row * k + i]);
              };
              float max = 0;
              for (int64_t i = 0; i < k; ++i) max = std::max(max, std::fabs(at(i)));
              int32_t sum = 0, num_wrong = 0;
              for (int64_t i = 0; i < k; ++i) {
                const auto number = static_cast<int8_t>(std::nearbyint(at(i) * (127 / max)));
                const uint8_t* panel = packed.panel(row / 64);
                num_wrong += static_cast<int8_t>(panel[(i / 4 * 64 + row % 64) * 4 + i % 4]) != number ? 1 : 0;
                sum += number;
              }
              CHECK(num_wrong == 0);
              CHECK(packed.sums()[row] == sum);
              CHECK(packed.scales()[row] == max / 127);
            }
          });
        }
      }
    }
  }
}

}  // namespace llmb::cpu
