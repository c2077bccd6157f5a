// linear_wgmma8 beside linear_int8, whose bits it gives, and beside fp64.
#include "kernels/cuda/linear_wgmma8.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "kernels/cuda/hopper.h"
#include "tests/kernels/cuda/byte_rows.h"
#include "tests/support/skip.h"

namespace llmb::cuda {
namespace {

using test::DeviceArray;
using test::same_bytes;
using Int8Problem = test_bytes::Problem<int8_t, Int8View, Int8Rows, float>;
template <class T>
using Fp8Problem = test_bytes::Problem<E4m3, Fp8View, Fp8Rows, T>;

bool have_hopper() {
  if (has_hopper_code(nullptr)) return true;
  test::skip("no device of compute capability 9.0");
  return false;
}

template <class T>
constexpr DType kDTypeOf = std::is_same_v<T, __half> ? DType::kF16 : DType::kBF16;

// ---- int8 ---------------------------------------------------------------------------------------------------------

template <class Out>
std::vector<float> by_linear_int8(const Int8Problem& p) {
  DeviceArray<Out> out(static_cast<size_t>(p.rows * p.weight.out_features));
  linear_int8(p.weight, p.rounded, p.rows, out.data(), nullptr);
  return out.download_floats();
}

template <class Out>
std::vector<float> run(LinearWgmma8& linear, const Int8Problem& p) {
  DeviceArray<Out> out(static_cast<size_t>(p.rows * p.weight.out_features));
  linear.run(p.weight, p.rounded, p.rows, out.data(), nullptr);
  CHECK(out.check_guards());
  return out.download_floats();
}

// From sums of integers, reckoned here.
std::vector<float> from_integers(const Int8Problem& p) {
  const std::vector<int8_t> w = p.w.codes.download(), x = p.x.codes.download();
  const std::vector<float> w_scales = p.w.scales.download(), x_scales = p.x.scales.download(), b = p.bias.download();
  const int64_t size = p.weight.row_bytes(), features = p.weight.out_features;
  std::vector<float> out;
  for (int64_t row = 0; row < p.rows; ++row)
    for (int64_t f = 0; f < features; ++f) {
      int32_t sum = 0;
      for (int64_t k = 0; k < size; ++k) sum += w[f * size + k] * x[row * size + k];
      const float scaled = static_cast<float>(sum) * w_scales[f], value = scaled * x_scales[row];
      out.push_back(p.weight.bias == nullptr ? value : value + b[f]);
    }
  return out;
}

TEST_CASE("int8: bit for bit the integers' outputs at every border of tiles") {
  if (!have_hopper()) return;
  LinearWgmma8 linear(7, nullptr);
  for (const int64_t rows : {1, 7, 8, 9, 15, 16, 17, 32, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257, 512}) {
    CAPTURE(rows);
    const Int8Problem p(rows, 72, 144, rows % 2 == 0);
    const std::vector<float> expected = from_integers(p);
    CHECK(same_bytes(run<float>(linear, p), expected));
    CHECK(same_bytes(by_linear_int8<float>(p), expected));
  }
  for (const int64_t features : {1, 7, 8, 63, 64, 65, 127, 128, 129, 385})
    for (const int64_t rows : {3, 20, 70}) {
      CAPTURE(features);
      const Int8Problem p(rows, features, 128, rows == 20);
      CHECK(same_bytes(run<float>(linear, p), from_integers(p)));
    }
  for (const int64_t k : {1, 15, 16, 17, 127, 128, 129, 272, 1032, 4250})
    for (const int64_t rows : {2, 66}) {
      CAPTURE(k);
      const Int8Problem p(rows, 33, k, rows == 2);
      CHECK(same_bytes(run<float>(linear, p), from_integers(p)));
    }
}

TEST_CASE_TEMPLATE("int8: outputs of 16 bits are linear_int8's, in packs or one by one", Out, __nv_bfloat16, __half) {
  if (!have_hopper()) return;
  LinearWgmma8 linear(5, nullptr);
  for (const int64_t features : {8, 40, 63, 64, 72, 129, 136, 264})
    for (const int64_t rows : {1, 9, 31, 33, 65, 129, 257}) {
      CAPTURE(features);
      CAPTURE(rows);
      const Int8Problem p(rows, features, 100, rows % 2 == 1);
      CHECK(same_bytes(run<Out>(linear, p), by_linear_int8<Out>(p)));
    }
}

TEST_CASE("int8: the same bits in any tiling, parts of k shared out or not") {
  if (!have_hopper()) return;
  const Int8Problem p(300, 200, 1290, true);
  const std::vector<float> expected = by_linear_int8<__nv_bfloat16>(p);
  for (const int32_t num_ctas : {1, 3, 132}) {
    LinearWgmma8 linear(num_ctas, nullptr);
    for (const Wgmma8Tiling& tiling : {Wgmma8Tiling{128, 256},
                                       {64, 256, 2, true},
                                       {192, 128},
                                       {104, 128, 3, true},
                                       {256, 64},
                                       {256, 32, 2, true},
                                       {32, 16},
                                       {200, 16, 11, true}}) {
      CAPTURE(tiling.features);
      CAPTURE(tiling.rows);
      if (!linear.fits(tiling, 200, 300)) continue;
      DeviceArray<__nv_bfloat16> out(300 * 200);
      linear.run(p.weight, p.rounded, p.rows, tiling, out.data(), nullptr);
      CHECK(out.check_guards());
      CHECK(same_bytes(out.download_floats(), expected));
    }
  }
}

TEST_CASE("int8: the largest sums are exact") {
  if (!have_hopper()) return;
  constexpr int64_t kIn = kMaxInt8Features;
  Int8Problem p(3, 9, kIn, false);
  p.w.codes.upload(std::vector<int8_t>(static_cast<size_t>(9 * kIn), 127));
  std::vector<int8_t> x(static_cast<size_t>(3 * kIn), 127);
  std::fill(x.begin() + kIn, x.end(), int8_t{-127});
  x[2 * kIn] = 126;
  p.x.codes.upload(x);
  LinearWgmma8 linear(11, nullptr);
  CHECK(same_bytes(run<float>(linear, p), from_integers(p)));
}

TEST_CASE("int8: what is not finite stays in its row or feature") {
  if (!have_hopper()) return;
  constexpr int64_t kRows = 20, kFeatures = 40, kIn = 80;
  std::vector<float> x = test::random_normal(kRows * kIn, 2), w = test::random_normal(kFeatures * kIn, 1);
  x[3 * kIn + 7] = std::numeric_limits<float>::quiet_NaN();
  x[5 * kIn] = -std::numeric_limits<float>::infinity();
  w[2 * kIn + 79] = std::numeric_limits<float>::infinity();
  Int8Problem p(kRows, kFeatures, kIn, true);
  const test_bytes::ByteRows<int8_t> x_rows(x, kRows, kIn), w_rows(w, kFeatures, kIn);
  p.x.codes.upload(x_rows.codes.download()), p.x.scales.upload(x_rows.scales.download());
  p.w.codes.upload(w_rows.codes.download()), p.w.scales.upload(w_rows.scales.download());
  LinearWgmma8 linear(3, nullptr);
  const std::vector<float> actual = run<float>(linear, p);
  for (int64_t i = 0; i < kRows * kFeatures; ++i) {
    CAPTURE(i);
    CHECK(std::isnan(actual[i]) == (i / kFeatures == 3 || i / kFeatures == 5 || i % kFeatures == 2));
  }
}

TEST_CASE("any order of threads and blocks gives the same, and counters are left at zero") {
  if (!have_hopper()) return;
  const Int8Problem p(20, 300, 2200, true);
  const Fp8Problem<__half> q(20, 200, 1100, true);
  LinearWgmma8 linear(13, nullptr);
  REQUIRE(linear.fp8_tiling(200, 1100, 20).is_split);
  const auto of_fp8 = [&] {
    DeviceArray<float> out(20 * 200);
    linear.run(q.weight, q.rounded, 20, DType::kF16, out.data(), nullptr);
    return out.download();
  };
  const std::vector<float> expected = by_linear_int8<__half>(p), expected_fp8 = of_fp8();
  test::for_each_order(5, [&](uint64_t) {
    DeviceArray<__half> out(20 * 300);
    linear.run(p.weight, p.rounded, 20, Wgmma8Tiling{96, 32, 4, true}, out.data(), nullptr);
    CHECK(same_bytes(out.download_floats(), expected));
    CHECK(of_fp8() == expected_fp8);
  });
}

TEST_CASE("no rows, no features: nothing is written") {
  if (!have_hopper()) return;
  LinearWgmma8 linear(3, nullptr);
  CHECK(run<float>(linear, Int8Problem(0, 8, 16, false)).empty());
  CHECK(run<float>(linear, Int8Problem(2, 0, 16, false)).empty());
}

TEST_CASE("tilings of int8 have room, and are as large as many rows need") {
  LinearWgmma8 linear(132, nullptr);
  for (const auto& [out, in] :
       {std::pair{6144, 4096}, {4096, 4096}, {28672, 4096}, {4096, 14336}, {128256, 4096}, {1, 1}})
    for (const int64_t rows : {1, 16, 17, 64, 128, 256, 512, 4096}) {
      CAPTURE(out);
      CAPTURE(rows);
      const Wgmma8Tiling tiling = linear.int8_tiling(out, in, rows);
      CHECK(linear.fits(tiling, out, rows));
      CHECK((tiling.features >= 32 && tiling.features % 8 == 0 && tiling.features * tiling.rows <= 32768));
      if (rows == 4096 && out > 1) CHECK((tiling.features == 128 && tiling.rows == 256 && tiling.num_parts == 1));
    }
}

// ---- e4m3 ---------------------------------------------------------------------------------------------------------

// An fp32 sum of n numbers in any order, the two scales and the bias. On tensor cores, products and sums of 128 k are
// cut to 13 bits below the largest of four or so that are added at once, at each of four instructions.
double sum_error(int64_t k) {
#ifdef LLMB_SIMT
  return static_cast<double>(k + 4) * 0x1p-24;
#else
  return static_cast<double>(k + 4) * 0x1p-24 + 5 * 0x1p-13;
#endif
}

template <class T, class Out>
std::vector<float> run(LinearWgmma8& linear, const Fp8Problem<T>& p, int64_t first, int64_t count) {
  DeviceArray<Out> out(static_cast<size_t>(count * p.weight.out_features));
  const Fp8Rows rows{p.rounded.values + first * p.weight.row_bytes(), p.rounded.scales + first};
  linear.run(p.weight, rows, count, kDTypeOf<T>, out.data(), nullptr);
  CHECK(out.check_guards());
  return out.download_floats();
}

TEST_CASE_TEMPLATE("e4m3: within the error of its sums at every border of tiles", T, __nv_bfloat16, __half) {
  if (!have_hopper()) return;
  LinearWgmma8 linear(7, nullptr);
  const auto check_size = [&](int64_t rows, int64_t features, int64_t k) {
    CAPTURE(rows);
    CAPTURE(features);
    CAPTURE(k);
    const Fp8Problem<T> p(rows, features, k, rows % 2 == 0);
    const auto exact = test_bytes::exact_outputs(p);
    test_bytes::check_outputs<float>(run<T, float>(linear, p, 0, rows), exact, sum_error(k));
    test_bytes::check_outputs<T>(run<T, T>(linear, p, 0, rows), exact, sum_error(k));
  };
  for (const int64_t rows : {1, 7, 8, 9, 16, 17, 32, 33, 63, 64, 65, 127, 128, 129, 257}) check_size(rows, 72, 200);
  for (const int64_t features : {1, 7, 63, 64, 65, 128, 129, 300}) check_size(20, features, 128);
  for (const int64_t k : {1, 63, 64, 65, 127, 128, 129, 640, 1032, 2100}) check_size(10, 130, k);
}

TEST_CASE_TEMPLATE("e4m3: a row's bits do not depend on the rows beside it; 16 bits are rounded once", T, __nv_bfloat16,
                   __half) {
  if (!have_hopper()) return;
  for (const int32_t num_ctas : {1, 5, 40}) {
    LinearWgmma8 linear(num_ctas, nullptr);
    const Fp8Problem<T> p(300, 200, 2100, true);
    const auto all = run<T, float>(linear, p, 0, 300);
    for (const auto& [first, count] :
         {std::pair{0, 1}, {299, 1}, {3, 16}, {5, 17}, {50, 33}, {6, 64}, {3, 65}, {20, 128}, {1, 129}, {7, 257}}) {
      const auto some = run<T, float>(linear, p, first, count);
      CHECK(std::equal(some.begin(), some.end(), all.begin() + first * 200));
    }
    auto expected = all;
    for (float& value : expected) value = to_float(from_float<T>(value));
    CHECK(run<T, T>(linear, p, 0, 300) == expected);
  }
}

}  // namespace
}  // namespace llmb::cuda
