#include "kernels/cpu/gather.h"

#include <doctest/doctest.h>

#include "tests/support/kernel_support.h"

namespace llmb::cpu {

TEST_CASE("gather_rows copies the named rows, in their order, repeats included") {
  ThreadPool pool(3);
  for (const int64_t width : {1, 5, 64, 577}) {
    const std::vector<float> x = test::random_normal(10 * width, 1);
    const std::vector<std::vector<int32_t>> cases = {{}, {0}, {9}, {3, 3, 0, 9, 1}};
    for (const std::vector<int32_t>& rows : cases) {
      const int64_t n = static_cast<int64_t>(rows.size());
      test::GuardedFloats out(n * width);
      gather_rows(x.data(), rows.data(), n, width, out.data(), pool);
      CHECK(out.guards_untouched());
      for (int64_t i = 0; i < n; ++i)
        CHECK(test::same_bytes(out.span().subspan(i * width, width), std::span(x).subspan(rows[i] * width, width)));
    }
  }
}

}  // namespace llmb::cpu
