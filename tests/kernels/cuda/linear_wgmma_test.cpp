#include "kernels/cuda/linear_wgmma.h"

#include <memory>

#include "kernels/cuda/hopper.h"
#include "tests/kernels/cuda/linear_case.h"
#include "tests/support/skip.h"

namespace llmb::cuda {
namespace {

using test_linear::check_against_fp64;
using test_linear::Problem;
using test_linear::Size;

bool have_hopper() {
  if (has_hopper_code(nullptr)) return true;
  test::skip("no device of compute capability 9.0");
  return false;
}

// On a device of so many multiprocessors.
auto wgmma(int32_t num_sms) {
  return
      [linear = std::make_shared<LinearWgmma>(num_sms, nullptr)](
          const LinearView& view, const auto* x, int64_t rows, auto* out) { linear->run(view, x, rows, out, nullptr); };
}

TEST_CASE_TEMPLATE("equals fp64 at every border of tiles", T, __nv_bfloat16, __half) {
  if (!have_hopper()) return;
  const auto linear = wgmma(7);
  for (const int64_t rows : {1, 2, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 256, 257})
    check_against_fp64<T, T>(linear, {rows, 40, 72}, rows % 2 == 0);
  for (const int64_t out_features : {1, 7, 63, 64, 65, 127, 128, 129, 385})
    for (const int64_t rows : {3, 20, 70}) check_against_fp64<T, float>(linear, {rows, out_features, 64}, rows == 20);
  for (const int64_t in_features : {8, 16, 56, 64, 72, 128, 136, 520, 1032})
    for (const int64_t rows : {2, 18, 66}) check_against_fp64<T, T>(linear, {rows, 33, in_features}, rows == 2);
}

// Parts that end within tiles, at their borders, that hold several tiles; tiles of many parts.
TEST_CASE("equals fp64 however the work is shared out") {
  if (!have_hopper()) return;
  for (const int32_t num_ctas : {1, 2, 3, 5, 16, 132}) {
    CAPTURE(num_ctas);
    const auto linear = wgmma(num_ctas);
    for (const Size& size : {Size{5, 128, 1600}, Size{9, 400, 640}, Size{2, 1300, 320}, Size{130, 300, 720}})
      check_against_fp64<__nv_bfloat16, float>(linear, size, num_ctas == 3);
  }
}

TEST_CASE("no rows, no features: nothing is written") {
  if (!have_hopper()) return;
  const Problem<__nv_bfloat16> p({0, 8, 8}, false);
  CHECK(test_linear::run<__nv_bfloat16, float>(wgmma(3), p, 0, 0).empty());
}

TEST_CASE_TEMPLATE("a row's bits are the same alone and in a batch of any size", T, __nv_bfloat16, __half) {
  if (!have_hopper()) return;
  for (const int32_t num_ctas : {1, 5, 132})
    test_linear::check_batch_invariance<T>(wgmma(num_ctas), {300, 200, 1032},
                                           {{0, 1},
                                            {299, 1},
                                            {3, 16},
                                            {10, 17},
                                            {50, 32},
                                            {60, 33},
                                            {60, 64},
                                            {1, 65},
                                            {7, 128},
                                            {20, 129},
                                            {0, 256},
                                            {1, 257}});
}

TEST_CASE("any order of threads and blocks gives the same, and counters are left at zero") {
  if (!have_hopper()) return;
  const Problem<__nv_bfloat16> p({20, 300, 1160}, true);
  const auto linear = wgmma(7);
  const auto expected = test_linear::run<__nv_bfloat16, float>(linear, p, 0, 20);
  test::for_each_order(5,
                       [&](uint64_t) { CHECK(test_linear::run<__nv_bfloat16, float>(linear, p, 0, 20) == expected); });
}

TEST_CASE("takes rows of 16-byte pieces") {
  CHECK(LinearWgmma::takes({nullptr, nullptr, 128256, 4096}));
  CHECK(LinearWgmma::takes({nullptr, nullptr, 1, 8}));
  CHECK_FALSE(LinearWgmma::takes({nullptr, nullptr, 64, 4092}));
  CHECK_FALSE(LinearWgmma::takes({nullptr, nullptr, int64_t{1} << 30, 64}));
}

}  // namespace
}  // namespace llmb::cuda
