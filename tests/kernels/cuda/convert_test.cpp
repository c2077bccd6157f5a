#include "kernels/cuda/convert.h"

#include <doctest/doctest.h>

#include <cmath>
#include <type_traits>

#include "tests/support/device_array.h"
#include "tests/support/kernel_support.h"

namespace llmb::cuda {
namespace {

using test::converted;
using test::DeviceArray;

template <class T>
constexpr DType kDType = std::is_same_v<T, float>    ? DType::kF32
                         : std::is_same_v<T, __half> ? DType::kF16
                                                     : DType::kBF16;

template <class From, class To>
void check_pair() {
  for (const int64_t n : {0, 1, 7, 8, 9, 2047, 2048, 2049, 5000}) {
    for (const int64_t shift : {0, 1}) {  // of both arrays: where packs cannot be used
      std::vector<float> values = test::random_normal(n + shift, 1, 100);
      if (n > 8) values[3] = INFINITY, values[4] = -0.0f, values[5] = 1e-30f, values[6] = 65519.0f;
      const std::vector<From> from = converted<From>(values);
      DeviceArray<From> source(from);
      DeviceArray<To> target(static_cast<size_t>(n));
      convert(source.data() + shift, kDType<From>, target.data(), kDType<To>, n, nullptr);
      std::vector<To> expected;
      for (int64_t i = 0; i < n; ++i)
        expected.push_back(from_float<To>(to_float(from[static_cast<size_t>(i + shift)])));
      CHECK(target.holds(expected));
      CHECK(target.check_guards());
      CHECK(source.holds(from));
    }
  }
}

}  // namespace

TEST_CASE_TEMPLATE("convert rounds once, from every type to every type, for any length and alignment", To, float,
                   __nv_bfloat16, __half) {
  check_pair<float, To>();
  check_pair<__nv_bfloat16, To>();
  check_pair<__half, To>();
}

}  // namespace llmb::cuda
