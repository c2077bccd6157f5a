#include "kernels/cuda/linear_mma.h"

#include "tests/kernels/cuda/linear_case.h"

namespace llmb::cuda {
namespace {

using test_linear::check_against_fp64;
using test_linear::Problem;
using test_linear::Size;

const auto mma = [](const LinearView& view, const auto* x, int64_t rows, auto* out) {
  linear_mma(view, x, rows, out, nullptr);
};

TEST_CASE_TEMPLATE("equals fp64 at every tile border", T, float, __nv_bfloat16, __half) {
  for (const int64_t rows : {1, 2, 15, 16, 17, 63, 64, 65, 127, 128, 129})
    check_against_fp64<T, T>(mma, {rows, 40, 72}, rows % 2 == 0);
  for (const int64_t out_features : {1, 7, 31, 32, 33, 64, 129})
    for (const int64_t rows : {3, 20, 70}) check_against_fp64<T, float>(mma, {rows, out_features, 64}, rows == 20);
  for (const int64_t in_features : {1, 5, 8, 16, 56, 63, 64, 65, 72, 128, 136, 520, 1032})
    for (const int64_t rows : {2, 18, 66}) check_against_fp64<T, T>(mma, {rows, 33, in_features}, rows == 2);
}

TEST_CASE("no rows, no features: nothing is written") {
  const Problem<__nv_bfloat16> p({0, 8, 8}, false);
  CHECK(test_linear::run<__nv_bfloat16, float>(mma, p, 0, 0).empty());
}

TEST_CASE_TEMPLATE("a row's bits are the same alone and in a batch of any size", T, float, __nv_bfloat16, __half) {
  test_linear::check_batch_invariance<T>(mma, {150, 70, 200},
                                         {{0, 1}, {149, 1}, {3, 16}, {10, 17}, {50, 64}, {60, 65}});
}

TEST_CASE("any order of threads and blocks gives the same") {
  const Problem<__nv_bfloat16> p({20, 50, 136}, true);
  const auto expected = test_linear::run<__nv_bfloat16, float>(mma, p, 0, 20);
  test::for_each_order(5, [&](uint64_t) { CHECK(test_linear::run<__nv_bfloat16, float>(mma, p, 0, 20) == expected); });
}

}  // namespace
}  // namespace llmb::cuda
