#include "kernels/cuda/embedding.h"

#include <doctest/doctest.h>

#include "tests/support/device_array.h"
#include "tests/support/kernel_support.h"

namespace llmb::cuda {

using test::converted;
using test::DeviceArray;
using test::random_normal;

TEST_CASE_TEMPLATE("embedding copies rows exactly", T, float,
                   __nv_bfloat16, __half) {
  constexpr int64_t kVocab = 50;
  for (const int64_t hidden : {1, 7, 8, 64, 576, 1023, 1024, 1032}) {
    CAPTURE(hidden);
    const std::vector<T> table = converted<T>(random_normal(kVocab * hidden, 1));
    const std::vector<TokenId> tokens = {0, 49, 7, 7, 49, 11, 0, 0};
    DeviceArray<T> t(table);
    DeviceArray<TokenId> ids(tokens);
    DeviceArray<float> out(tokens.size() * static_cast<size_t>(hidden));
    embedding(t.data(), ids.data(), static_cast<int64_t>(tokens.size()), hidden, out.data(), nullptr);
    const std::vector<float> actual = out.download();
    std::vector<float> expected;
    for (const TokenId row : tokens)
      for (int64_t i = 0; i < hidden; ++i) expected.push_back(to_float(table[row * hidden + i]));
    CHECK(test::same_bytes(actual, expected));
    CHECK(out.check_guards());
    CHECK(t.holds(table));
    CHECK(ids.holds(tokens));
  }
}

TEST_CASE("no tokens: nothing happens") {
  const std::vector<float> table = {1, 2, 3};
  const std::vector<TokenId> tokens = {2, 0};
  DeviceArray<float> t(table), out(2);
  DeviceArray<TokenId> ids(tokens);
  embedding<float>(t.data(), nullptr, 0, 1, nullptr, nullptr);
  embedding(t.data(), ids.data(), 2, 1, out.data(), nullptr);
  CHECK(out.holds(std::vector<float>{3, 1}));
}

}  // namespace llmb::cuda
