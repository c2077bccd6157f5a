#include "kernels/cpu/head_linear.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <vector>

#include "tests/support/compare.h"
#include "tests/support/kernel_support.h"

namespace llmb::cpu {
namespace {

using test::GuardedFloats;
using test::random_normal;

struct Heads {
  int64_t num_heads, in, wide;
  std::vector<std::vector<float>> weights;
  std::vector<PackedLinear> packed;
  std::vector<const PackedLinear*> views;

  Heads(int64_t count, int64_t in_features, int64_t out_features, ThreadPool& pool)
      : num_heads(count), in(in_features), wide(out_features) {
    packed.reserve(static_cast<size_t>(count));
    for (int64_t h = 0; h < count; ++h) {
      weights.push_back(random_normal(in * wide, static_cast<uint32_t>(20 + h), 0.3f));
      const TensorView view{weights.back().data(), DType::kF32, wide, in};
      packed.push_back(PackedLinear::pack({&view, 1}, {}, pool));
      views.push_back(&packed.back());
    }
  }

  template <typename T>
  T dot(int64_t head, const float* x, int64_t feature) const {
    T sum = 0;
    for (int64_t k = 0; k < in; ++k) sum += static_cast<T>(weights[head][feature * in + k]) * static_cast<T>(x[k]);
    return sum;
  }
};

}  // namespace

TEST_CASE("each head's columns are multiplied by its own matrix, and other columns stay as they are") {
  ThreadPool one(1), three(3);
  for (const auto& [count, in, wide] : {std::array<int64_t, 3>{1, 1, 1}, {4, 10, 18}, {3, 64, 70}, {16, 33, 128}}) {
    const Heads heads(count, in, wide, one);
    const HeadColumns from{count * (in + 3) + 5, 2, in + 3}, to{count * (wide + 4) + 7, 4, wide + 4};
    for (const int64_t rows : {0, 1, 5, 40}) {
      const std::vector<float> x = random_normal(rows * from.row_stride, 3);
      GuardedFloats out(rows * to.row_stride), again(rows * to.row_stride);
      std::fill_n(out.data(), rows * to.row_stride, 7.0f);
      std::fill_n(again.data(), rows * to.row_stride, 7.0f);
      HeadLinearScratch scratch;
      head_linear(heads.views, x.data(), from, rows, out.data(), to, &scratch, one);
      CHECK(out.guards_untouched());
      std::vector<double> expected(static_cast<size_t>(rows * to.row_stride), 7.0);
      std::vector<float> naive(static_cast<size_t>(rows * to.row_stride), 7.0f);
      for (int64_t row = 0; row < rows; ++row) {
        for (int64_t h = 0; h < count; ++h) {
          for (int64_t i = 0; i < wide; ++i) {
            expected[to.at(row, h) + i] = heads.dot<double>(h, &x[from.at(row, h)], i);
            naive[to.at(row, h) + i] = heads.dot<float>(h, &x[from.at(row, h)], i);
          }
        }
      }
      CHECK(test::relative_error(out.copy(), expected) <= 2 * test::relative_error(naive, expected) + 1.2e-7);
      // A row at a time, on more threads: the same bytes.
      for (int64_t row = 0; row < rows; ++row)
        head_linear(heads.views, x.data() + row * from.row_stride, from, 1, again.data() + row * to.row_stride, to,
                    &scratch, three);
      CHECK(test::same_bytes(out.copy(), again.copy()));
    }
  }
}

}  // namespace llmb::cpu
