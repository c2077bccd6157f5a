#include "kernels/cuda/head_linear.h"

#include <doctest/doctest.h>

#include <cmath>
#include <memory>
#include <vector>

#include "tests/support/compare.h"
#include "tests/support/device_array.h"
#include "tests/support/kernel_support.h"

namespace llmb::cuda {
namespace {

using test::converted;
using test::DeviceArray;
using test::random_normal;
using test::same_bytes;

struct Shape {
  int64_t num_heads, out_features, in_features;
  HeadColumns x, out;
};

// Heads' columns with others between them, and in front.
Shape apart(int64_t num_heads, int64_t out_features, int64_t in_features, int64_t gap) {
  const int64_t in = in_features + gap, out = out_features + gap;
  return {num_heads, out_features, in_features, {num_heads * in + gap, gap, in}, {num_heads * out, gap, out}};
}

template <class T>
class Heads {
 public:
  explicit Heads(const Shape& s) : s_(s) {
    for (int64_t h = 0; h < s.num_heads; ++h) {
      const float scale = 1 / std::sqrt(static_cast<float>(s.in_features));
      numbers_.push_back(converted<T>(random_normal(s.out_features * s.in_features, 100 + static_cast<uint32_t>(h), scale)));
      arrays_.push_back(std::make_unique<DeviceArray<T>>(numbers_.back()));
      addresses_.push_back(arrays_.back()->data());
    }
  }

  // Outputs start as 99, also those that are of no head.
  std::vector<float> run(std::span<const T> x) const {
    const auto rows = static_cast<int64_t>(x.size()) / s_.x.row_stride;
    const std::vector<T> before(static_cast<size_t>(rows * s_.out.row_stride), from_float<T>(99));
    DeviceArray<T> in(x), out(before);
    head_linear({addresses_, s_.out_features, s_.in_features}, in.data(), s_.x, rows, out.data(), s_.out, nullptr);
    CHECK((out.check_guards() && in.holds(x)));
    return out.download_floats();
  }

  template <class F>
  std::vector<F> reference(const std::vector<T>& x) const {
    const auto rows = static_cast<int64_t>(x.size()) / s_.x.row_stride;
    std::vector<F> out(static_cast<size_t>(rows * s_.out.row_stride), F(99));
    for (int64_t row = 0; row < rows; ++row)
      for (int64_t h = 0; h < s_.num_heads; ++h)
        for (int64_t n = 0; n < s_.out_features; ++n) {
          F sum = 0;
          for (int64_t k = 0; k < s_.in_features; ++k)
            sum += static_cast<F>(to_float(x[row * s_.x.row_stride + s_.x.first + h * s_.x.head_stride + k])) *
                   static_cast<F>(to_float(numbers_[h][n * s_.in_features + k]));
          out[row * s_.out.row_stride + s_.out.first + h * s_.out.head_stride + n] =
              std::is_same_v<F, double> ? sum : static_cast<F>(to_float(from_float<T>(static_cast<float>(sum))));
        }
    return out;
  }

 private:
  const Shape s_;
  std::vector<std::vector<T>> numbers_;
  std::vector<std::unique_ptr<DeviceArray<T>>> arrays_;
  std::vector<const void*> addresses_;
};

}  // namespace

TEST_CASE_TEMPLATE("each head's product is as close to fp64 as naive arithmetic, and nothing else is written", T, float,
                   __nv_bfloat16, __half) {
  for (const Shape& s : {apart(1, 8, 8, 0), apart(3, 65, 64, 8), apart(3, 130, 72, 16), apart(4, 12, 18, 6),
                         apart(2, 16, 16, 3), apart(130, 8, 8, 8)}) {
    CAPTURE(s.num_heads);
    CAPTURE(s.in_features);
    const Heads<T> heads(s);
    for (const int64_t rows : {0, 1, 16, 17, 65}) {
      if (rows > 17 && s.num_heads > 4) continue;
      CAPTURE(rows);
      const std::vector<T> x = converted<T>(random_normal(rows * s.x.row_stride, 3));
      const std::vector<double> expected = heads.template reference<double>(x);
      const std::vector<float> naive = heads.template reference<float>(x);
      CHECK(test::relative_error(heads.run(x), expected) <= 2 * test::relative_error(naive, expected) + 2.4e-7);
    }
  }
}

TEST_CASE_TEMPLATE("a row's bits do not depend on the other rows", T, float, __nv_bfloat16) {
  const Shape s = apart(3, 72, 136, 8);
  const Heads<T> heads(s);
  const std::vector<T> x = converted<T>(random_normal(40 * s.x.row_stride, 5));
  const std::vector<float> whole = heads.run(x);
  for (const int64_t row : {0, 15, 16, 39}) {
    const auto size = static_cast<size_t>(s.x.row_stride), out_size = static_cast<size_t>(s.out.row_stride);
    const std::vector<float> alone = heads.run(std::span(x).subspan(static_cast<size_t>(row) * size, size));
    CHECK(same_bytes(alone, std::span(whole).subspan(static_cast<size_t>(row) * out_size, out_size)));
  }
}

TEST_CASE_TEMPLATE("join_latents moves rotated channels and the latent key, and leaves the rest alone", T, float,
                   __nv_bfloat16) {
  for (const LatentRows& s : {LatentRows{4, 24, 6, 16}, LatentRows{16, 80, 64, 192}, LatentRows{1, 10, 2, 4}}) {
    constexpr int64_t kRows = 3;
    const int64_t width = int64_t{s.num_heads + 1} * s.head_dim;
    const std::vector<T> q = converted<T>(random_normal(kRows * s.num_heads * s.query_dim, 1)),
                         latents = converted<T>(random_normal(kRows * s.head_dim, 2)),
                         before(static_cast<size_t>(kRows * width), from_float<T>(99));
    DeviceArray<T> queries(q), keys(latents), qkv(before);
    join_latents(s, queries.data(), keys.data(), kRows, qkv.data(), nullptr);
    CHECK((qkv.check_guards() && queries.holds(q) && keys.holds(latents)));
    const std::vector<float> out = qkv.download_floats();
    for (int64_t i = 0; i < kRows * width; ++i) {
      const int64_t row = i / width, head = i % width / s.head_dim, channel = i % s.head_dim;
      float expected = 99;
      if (head == s.num_heads) expected = to_float(latents[row * s.head_dim + channel]);
      else if (channel < s.rope_dim)
        expected = to_float(q[(row * s.num_heads + head) * s.query_dim + s.query_dim - s.rope_dim + channel]);
      REQUIRE(out[i] == expected);
    }
  }
}

}  // namespace llmb::cuda
