// linear_int4 beside an fp64 reference; its weights beside those of the CPU's int4, and of blocks.
#include "kernels/cuda/linear_int4.h"

#include <limits>

#include "kernels/cpu/quantize.h"
#include "tests/kernels/cuda/linear_int4_case.h"

namespace llmb::cuda {
namespace {

using namespace test_int4;

TEST_CASE_TEMPLATE("numbers are those of the CPU's int4, rounded to T", T, __nv_bfloat16, __half) {
  for (const int64_t k : {32, 64, 72, 200}) {
    CAPTURE(k);
    constexpr int64_t kFeatures = 150;
    std::vector<float> values = random_normal(kFeatures * k, 2, 0.02f);
    std::fill(values.begin(), values.begin() + 40, 0.0f);  // a group of zeros
    values[k + 3] = 1e-35f, values[k + 5] = -0.3f;
    const std::vector<float> actual = Weight<T>(values, kFeatures, k).numbers();
    const int64_t num_groups = ceil_div(k, int64_t{32});
    std::vector<cpu::Int4Group> groups(static_cast<size_t>(num_groups));
    for (int64_t f = 0; f < kFeatures; ++f) {
      std::vector<float> row(static_cast<size_t>(num_groups * 32), 0.0f);
      std::copy_n(values.begin() + f * k, k, row.begin());
      cpu::quantize_int4(row.data(), num_groups, groups.data());
      for (int64_t i = 0; i < k; ++i) {
        const cpu::Int4Group& group = groups[i / 32];
        const int number = static_cast<int32_t>(group.words[i % 32 / 8] << (28 - 4 * (i % 8))) >> 28;
        const uint32_t bits = uint32_t{group.scale} << 16;
        float scale;
        std::memcpy(&scale, &bits, 4);
        const float expected = to_float(from_float<T>(static_cast<float>(number) * to_float(from_float<T>(scale))));
        CAPTURE(f);
        CAPTURE(i);
        CHECK(actual[f * k + i] == expected);
      }
    }
  }
}

TEST_CASE_TEMPLATE("integers of checkpoints mean the numbers that decode_block() gives", T, __nv_bfloat16, __half) {
  for (const Meaning meaning : {Meaning::kFromEight, Meaning::kFromZeros})
    for (const int64_t k : {32, 96, 192}) {
      CAPTURE(k);
      std::vector<float> expected;
      const Weight<T> weight(140, k, meaning, &expected);
      CHECK(weight.numbers() == expected);  // 0 is -0
    }
}

// All sixteen codes with every scale that units have a place for: 8 features of 16 exponents at a time.
TEST_CASE_TEMPLATE("MXFP4's numbers are those of decode_block(), rounded to T, whatever the scale", T, __nv_bfloat16,
                   __half) {
  for (int first = 0; first + 8 <= int4::kMaxExponent; first += 8) {
    CAPTURE(first);
    std::vector<float> expected;
    const Weight<T> weight(18, 64, Meaning::kE2m1, &expected, first);
    CHECK(std::all_of(expected.begin(), expected.end(), [](float x) { return std::isfinite(x); }));
    CHECK(weight.numbers() == expected);
  }
}

// Exact weights in one chain of sums over k: the bits of 16-bit experts.
TEST_CASE_TEMPLATE("MXFP4: products have the accuracy of fp32, grouped ones the bits of the numbers'", T, __nv_bfloat16,
                   __half) {
  std::vector<float> numbers;
  for (const int64_t rows : {1, 9, 30, 70, 129}) {
    CAPTURE(rows);
    const Weight<T> weight(136, 224, Meaning::kE2m1, &numbers);
    const Product<T> p(rows, 224, 136);
    check_product(p, weight, numbers, p.template run<float>(weight), true);
    const DeviceArray<T> x(p.x), bias(p.bias), plain(rounded<T>(numbers));
    const DeviceArray<const void*> units(std::vector<const void*>{weight.units.data()});
    const DeviceArray<const void*> matrices(std::vector<const void*>{plain.data()});
    const DeviceArray<const void*> biases(std::vector<const void*>{bias.data()});
    GroupedWeights packed{units.data(), biases.data(), 136, 224};
    packed.is_int4 = true;
    packed.meaning = Meaning::kE2m1;
    const GroupedWeights as_numbers{matrices.data(), biases.data(), 136, 224};
    for (const int32_t tile_rows : {16, 64}) {
      std::vector<RowTile> tiles;
      for (int32_t row = 0; row < rows; row += tile_rows)
        tiles.push_back({0, row, std::min(tile_rows, static_cast<int32_t>(rows) - row)});
      const DeviceArray<RowTile> on_device(tiles);
      const auto num_tiles = static_cast<int32_t>(tiles.size());
      DeviceArray<T> out(static_cast<size_t>(rows * 136)), expected(static_cast<size_t>(rows * 136));
      linear_grouped_int4<T>(packed, x.data(), nullptr, on_device.data(), num_tiles, tile_rows, out.data(), nullptr);
      linear_grouped<T>(as_numbers, x.data(), nullptr, on_device.data(), num_tiles, tile_rows, expected.data(),
                        nullptr);
      CHECK(out.check_guards());
      CHECK(out.download_floats() == expected.download_floats());
    }
  }
}

TEST_CASE_TEMPLATE("products have the accuracy of fp32 at every border of rows, features and k", T, __nv_bfloat16,
                   __half) {
  const auto check_sizes = [](int64_t rows, int64_t features, int64_t k) {
    CAPTURE(rows);
    CAPTURE(features);
    CAPTURE(k);
    const Product<T> p(rows, k, features);
    const Weight<T> weight(random_normal(features * k, 2), features, k);
    const bool with_bias = rows % 2 == 0;
    check_product(p, weight, weight.numbers(), p.template run<float>(weight, with_bias), with_bias);
  };
  for (const int64_t rows : {1, 7, 8, 9, 16, 17, 32, 33, 63, 64, 65, 127, 128, 129}) check_sizes(rows, 136, 320);
  for (const int64_t features : {1, 8, 15, 127, 128, 129, 300}) check_sizes(3, features, 128);
  for (const int64_t k : {8, 24, 32, 40, 64, 72, 128, 640, 1032}) check_sizes(10, 130, k);
}

TEST_CASE_TEMPLATE("weights with zeros", T, __nv_bfloat16, __half) {
  std::vector<float> numbers;
  for (const int64_t rows : {2, 12, 20, 40}) {
    const Weight<T> weight(200, 224, Meaning::kFromZeros, &numbers);
    const Product<T> p(rows, 224, 200);
    check_product(p, weight, numbers, p.template run<float>(weight), true);
  }
}

TEST_CASE_TEMPLATE("a row's bits do not depend on the rows beside it; outputs of 16 bits are rounded once", T,
                   __nv_bfloat16, __half) {
  constexpr int64_t kFeatures = 260, kIn = 456, kRows = 150;
  const Product<T> p(kRows, kIn, kFeatures);
  const Weight<T> weight(random_normal(kFeatures * kIn, 2), kFeatures, kIn);
  LinearInt4 linear(kOptions, nullptr);
  const auto all = p.template run<float>(linear, weight, true, 0, kRows);
  for (const auto& [first, count] : {std::pair{0, 1}, {3, 8}, {5, 9}, {17, 17}, {2, 33}, {6, 64}, {3, 65}, {20, 128}}) {
    const auto some = p.template run<float>(linear, weight, true, first, count);
    CHECK(std::equal(some.begin(), some.end(), all.begin() + first * kFeatures));
  }
  auto expected = all;
  for (float& value : expected) value = to_float(from_float<T>(value));
  CHECK(p.template run<T>(linear, weight, true, 0, kRows) == expected);
}

TEST_CASE("one ring of few stages or many, one block or many: what is summed is the same") {
  using T = __nv_bfloat16;
  const Product<T> p(9, 1000, 200);
  const Weight<T> weight(random_normal(200 * 1000, 2), 200, 1000);
  LinearInt4 usual({4, 2}, nullptr), short_ring({4, 2, 1}, nullptr), long_ring({8, 1, 200 * 1024}, nullptr);
  const auto expected = p.run<float>(usual, weight, true, 0, 9);
  CHECK(p.run<float>(short_ring, weight, true, 0, 9) == expected);
  CHECK(p.run<float>(long_ring, weight, true, 0, 9) == expected);
  for (const int32_t num_sms : {1, 5, 100}) {
    LinearInt4 other({num_sms}, nullptr);
    check_product(p, weight, weight.numbers(), p.run<float>(other, weight, true, 0, 9), true);
  }
}

TEST_CASE("grouped rows have the accuracy of fp32, and the same bits in tiles of 16 and of 64 rows") {
  using T = __half;
  constexpr int64_t kFeatures = 140, kIn = 136, kRows = 30;
  const Product<T> p(kRows, kIn, kFeatures);
  const Weight<T> a(random_normal(kFeatures * kIn, 2), kFeatures, kIn);
  const Weight<T> b(random_normal(kFeatures * kIn, 7), kFeatures, kIn);
  const DeviceArray<T> x(p.x), bias(p.bias);
  const DeviceArray<const void*> weights(std::vector<const void*>{a.units.data(), b.units.data()});
  const DeviceArray<const void*> biases(std::vector<const void*>{bias.data(), bias.data()});
  GroupedWeights grouped{weights.data(), biases.data(), kFeatures, kIn};
  grouped.is_int4 = true;
  // Rows of x in turn: 20 for the second expert, the others for the first.
  std::vector<int32_t> x_rows;
  for (int32_t i = 0; i < kRows; ++i) x_rows.push_back(kRows - 1 - i);
  const DeviceArray<int32_t> row_ids(x_rows);
  std::vector<float> results[2];
  for (const int32_t tile_rows : {16, 64}) {
    CAPTURE(tile_rows);
    std::vector<RowTile> tiles = {{1, 0, std::min(20, tile_rows)}, {0, 20, 10}, {-1, 0, 0}};
    if (tile_rows == 16) tiles.push_back({1, 16, 4});
    const DeviceArray<RowTile> on_device(tiles);
    DeviceArray<T> out(static_cast<size_t>(kRows * kFeatures));
    linear_grouped_int4(grouped, x.data(), row_ids.data(), on_device.data(), static_cast<int32_t>(tiles.size()),
                        tile_rows, out.data(), nullptr);
    results[tile_rows / 64] = out.download_floats();
    CHECK(out.check_guards());
  }
  CHECK(results[0] == results[1]);
  const std::vector<float> of_a = p.run<T>(a), of_b = p.run<T>(b);
  for (int64_t row = 0; row < kRows; ++row)
    for (int64_t f = 0; f < kFeatures; ++f) {
      const float expected = (row < 20 ? of_b : of_a)[x_rows[row] * kFeatures + f];
      CHECK(std::fabs(results[0][row * kFeatures + f] - expected) <= 1e-3f * std::fabs(expected) + 1e-4f);
    }
}

TEST_CASE("what is not finite stays in its row or feature") {
  using T = __nv_bfloat16;
  constexpr int64_t kFeatures = 40, kIn = 100;
  std::vector<float> values = random_normal(kFeatures * kIn, 2);
  values[2 * kIn + 99] = std::numeric_limits<float>::infinity();
  Product<T> p(20, 104, kFeatures);
  p.x[3 * 104 + 7] = from_float<T>(std::numeric_limits<float>::quiet_NaN());
  std::vector<float> padded(static_cast<size_t>(kFeatures * 104), 0.0f);
  for (int64_t f = 0; f < kFeatures; ++f) std::copy_n(values.begin() + f * kIn, kIn, padded.begin() + f * 104);
  const auto actual = p.run<float>(Weight<T>(padded, kFeatures, 104));
  for (int64_t i = 0; i < 20 * kFeatures; ++i) {
    CAPTURE(i);
    CHECK(std::isnan(actual[i]) == (i / kFeatures == 3 || i % kFeatures == 2));
  }
}

}  // namespace
}  // namespace llmb::cuda
