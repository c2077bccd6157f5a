// linear_int4's kernel for Hopper beside an fp64 reference.
#include <limits>
#include <tuple>

#include "kernels/cuda/hopper.h"
#include "tests/kernels/cuda/linear_int4_case.h"
#include "tests/support/skip.h"

namespace llmb::cuda {
namespace {

using namespace test_int4;

bool have_hopper() {
  if (has_hopper_code(nullptr)) return true;
  test::skip("no device of compute capability 9.0");
  return false;
}

LinearInt4Options options(int32_t num_sms, bool deterministic, int32_t blocks_per_sm = 1) {
  LinearInt4Options o{num_sms};
  o.hopper = true, o.deterministic = deterministic, o.wgmma_blocks_per_sm = blocks_per_sm;
  return o;
}

template <class T>
void check_sizes(LinearInt4& linear, int64_t rows, int64_t features, int64_t k) {
  CAPTURE(rows);
  CAPTURE(features);
  CAPTURE(k);
  const Product<T> p(rows, k, features);
  const Weight<T> weight(random_normal(features * k, 2), features, k);
  const bool with_bias = rows % 2 == 0;
  check_product(p, weight, weight.numbers(), p.template run<float>(linear, weight, with_bias, 0, rows), with_bias);
}

TEST_CASE_TEMPLATE("Hopper: products have the accuracy of fp32 at every border of rows, features and k", T,
                   __nv_bfloat16, __half) {
  if (!have_hopper()) return;
  for (const bool deterministic : {true, false}) {
    CAPTURE(deterministic);
    LinearInt4 linear(options(3, deterministic), nullptr);
    for (const int64_t rows : {1, 7, 8, 9, 16, 17, 32, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257, 512})
      check_sizes<T>(linear, rows, rows > 129 ? 130 : 136, rows > 129 ? 200 : 320);
    for (const int64_t features : {1, 8, 15, 63, 64, 65, 127, 128, 129, 300}) check_sizes<T>(linear, 3, features, 128);
    for (const int64_t k : {8, 24, 32, 40, 64, 72, 128, 640, 1032}) check_sizes<T>(linear, 10, 130, k);
  }
}

// Parts that end within tiles, at their borders, that hold several tiles; tiles of many parts; more units than stages.
TEST_CASE("Hopper: products have the accuracy of fp32 however the work is shared out") {
  if (!have_hopper()) return;
  using T = __nv_bfloat16;
  for (const int32_t num_sms : {1, 2, 5, 16, 132})
    for (const int32_t blocks_per_sm : {1, 2}) {
      CAPTURE(num_sms);
      CAPTURE(blocks_per_sm);
      LinearInt4 few(options(num_sms, true, blocks_per_sm), nullptr);
      LinearInt4 many(options(num_sms, false, blocks_per_sm), nullptr);
      check_sizes<T>(few, 5, 128, 1600);
      check_sizes<T>(few, 2, 700, 320);
      for (const auto& [rows, features, k] : {std::tuple{20, 400, 640}, {50, 400, 640}, {140, 300, 456}})
        check_sizes<T>(many, rows, features, k);
    }
}

TEST_CASE("Hopper: few rows go the way of other devices, but in deterministic runs") {
  if (!have_hopper()) return;
  using T = __nv_bfloat16;
  constexpr int64_t kMost = tuning::kMaxInt4MmaRows;
  const Product<T> p(kMost + 1, 1160, 300);
  const Weight<T> weight(random_normal(300 * 1160, 2), 300, 1160);
  LinearInt4 usual(options(7, false), nullptr), other(LinearInt4Options{7}, nullptr);  // their parts of k differ
  const auto same = [&](int64_t rows) {
    return p.run<float>(usual, weight, true, 0, rows) == p.run<float>(other, weight, true, 0, rows);
  };
  CHECK(same(kMost));
  CHECK_FALSE(same(kMost + 1));
}

TEST_CASE("Hopper: no rows: nothing is written") {
  if (!have_hopper()) return;
  using T = __half;
  const Product<T> p(0, 64, 8);
  const Weight<T> weight(random_normal(8 * 64, 2), 8, 64);
  LinearInt4 linear(options(3, true), nullptr);
  CHECK(p.run<float>(linear, weight, true, 0, 0).empty());
}

TEST_CASE_TEMPLATE("Hopper: weights with zeros, and of MXFP4", T, __nv_bfloat16, __half) {
  if (!have_hopper()) return;
  LinearInt4 linear(options(3, true), nullptr);
  std::vector<float> numbers;
  for (const Meaning meaning : {Meaning::kFromZeros, Meaning::kE2m1})
    for (const int64_t rows : {2, 20, 40, 130}) {
      const Weight<T> weight(200, 224, meaning, &numbers);
      const Product<T> p(rows, 224, 200);
      check_product(p, weight, numbers, p.template run<float>(linear, weight, true, 0, rows), true);
    }
}

TEST_CASE_TEMPLATE("Hopper: a row's bits do not depend on the rows beside it; outputs of 16 bits are rounded once", T,
                   __nv_bfloat16, __half) {
  if (!have_hopper()) return;
  constexpr int64_t kFeatures = 260, kIn = 456, kRows = 300;
  const Product<T> p(kRows, kIn, kFeatures);
  const Weight<T> weight(random_normal(kFeatures * kIn, 2), kFeatures, kIn);
  for (const int32_t num_sms : {3, 11}) {
    LinearInt4 linear(options(num_sms, true), nullptr);
    const auto all = p.template run<float>(linear, weight, true, 0, kRows);
    for (const auto& [first, count] :
         {std::pair{0, 1}, {3, 8}, {5, 16}, {17, 17}, {2, 33}, {6, 64}, {3, 65}, {20, 128}, {20, 129}, {1, 257}}) {
      CAPTURE(first);
      CAPTURE(count);
      const auto some = p.template run<float>(linear, weight, true, first, count);
      const bool same = std::equal(some.begin(), some.end(), all.begin() + first * kFeatures);
      CHECK(same);
    }
    auto expected = all;
    for (float& value : expected) value = to_float(from_float<T>(value));
    const bool rounded_once = p.template run<T>(linear, weight, true, 0, kRows) == expected;
    CHECK(rounded_once);
  }
}

TEST_CASE("Hopper: any order of threads and blocks gives the same, and counters are left at zero") {
  if (!have_hopper()) return;
  using T = __nv_bfloat16;
  const Product<T> p(20, 1160, 300);
  const Weight<T> weight(random_normal(300 * 1160, 2), 300, 1160);
  LinearInt4 linear(options(7, true), nullptr);
  const auto expected = p.run<float>(linear, weight, true, 0, 20);
  test::for_each_order(5, [&](uint64_t) {
    const bool same = p.run<float>(linear, weight, true, 0, 20) == expected;
    CHECK(same);
  });
}

TEST_CASE("Hopper: what is not finite stays in its row or feature") {
  if (!have_hopper()) return;
  using T = __nv_bfloat16;
  constexpr int64_t kFeatures = 40, kIn = 104;
  std::vector<float> values = random_normal(kFeatures * kIn, 2);
  values[2 * kIn + 99] = std::numeric_limits<float>::infinity();
  Product<T> p(20, kIn, kFeatures);
  p.x[3 * kIn + 7] = from_float<T>(std::numeric_limits<float>::quiet_NaN());
  LinearInt4 linear(options(3, true), nullptr);
  const auto actual = p.run<float>(linear, Weight<T>(values, kFeatures, kIn), true, 0, 20);
  for (int64_t i = 0; i < 20 * kFeatures; ++i) {
    CAPTURE(i);
    CHECK(std::isnan(actual[i]) == (i / kFeatures == 3 || i % kFeatures == 2));
  }
}

TEST_CASE("Hopper: takes rows of 16-byte pieces, as many features as there are counters for") {
  CHECK(LinearInt4Wgmma::takes(28672, 4096));
  CHECK(LinearInt4Wgmma::takes(1, 8));
  CHECK_FALSE(LinearInt4Wgmma::takes(64, 4092));
  CHECK_FALSE(LinearInt4Wgmma::takes(int64_t{1} << 21, 64));
}

}  // namespace
}  // namespace llmb::cuda
