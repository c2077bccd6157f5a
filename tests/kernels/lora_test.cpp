#include "kernels/cpu/lora.h"

#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <numeric>

#include "core/types.h"
#include "tests/support/kernel_support.h"

namespace llmb::cpu {
namespace {

using test::for_each_simd_target;
using test::GuardedFloats;
using test::random_normal;
using test::same_bytes;

// One adapter's matrices for a projection, as a backend packs them, and B as it is stored.
struct Adapter {
  std::vector<LoraMatrices> matrices;
  std::vector<std::vector<float>> b;  // [num_columns, rank]
};

Adapter make_adapter(int64_t in, std::initializer_list<std::array<int64_t, 3>> parts, uint32_t seed) {
  Adapter adapter;
  for (const auto& [rank, out_column, num_columns] : parts) {
    LoraMatrices m;
    m.rank = rank, m.out_column = out_column, m.num_columns = num_columns, m.scale = 0.75f;
    m.a = random_normal(rank * in, ++seed);
    const std::vector<float> b = random_normal(num_columns * rank, ++seed);
    m.b.resize(ceil_div(num_columns, kLoraPanel) * rank * kLoraPanel);
    for (int64_t c = 0; c < num_columns; ++c)
      for (int64_t r = 0; r < rank; ++r) m.b[(c / kLoraPanel * rank + r) * kLoraPanel + c % kLoraPanel] = b[c * rank + r];
    adapter.matrices.push_back(std::move(m));
    adapter.b.push_back(b);
  }
  return adapter;
}

// In fp64; the second value sums the magnitudes of all terms, which errors are relative to.
std::pair<double, double> expected(const Adapter& adapter, const float* x, int64_t in, int64_t column, double out) {
  double size = std::fabs(out);
  for (size_t i = 0; i < adapter.matrices.size(); ++i) {
    const LoraMatrices& m = adapter.matrices[i];
    const int64_t own = column - m.out_column;
    if (own < 0 || own >= m.num_columns) continue;
    for (int64_t r = 0; r < m.rank; ++r) {
      double t = 0, t_size = 0;
      for (int64_t k = 0; k < in; ++k) t += double{m.a[r * in + k]} * x[k], t_size += std::fabs(double{m.a[r * in + k]} * x[k]);
      out += double{m.scale} * adapter.b[i][own * m.rank + r] * t;
      size += std::fabs(double{m.scale} * adapter.b[i][own * m.rank + r]) * t_size;
    }
  }
  return {out, size};
}

std::vector<float> run(const std::vector<float>& x, int64_t in, std::span<const LoraSegment> segments,
                       const std::vector<int32_t>& rows, const std::vector<float>& before, int64_t out, ThreadPool& pool) {
  GuardedFloats y(static_cast<int64_t>(before.size()));
  std::copy(before.begin(), before.end(), y.data());
  lora(x.data(), in, segments, rows.data(), y.data(), out, pool);
  CHECK(y.guards_untouched());
  return y.copy();
}

}  // namespace

TEST_CASE("lora: rows of several adapters of any ranks, and rows without one, are near fp64") {
  ThreadPool pool(2);
  const int64_t in = 37, out = 61, num_rows = 23;
  const std::vector<float> x = random_normal(num_rows * in, 1), before = random_normal(num_rows * out, 2);
  const Adapter adapters[] = {make_adapter(in, {{1, 0, 61}}, 10), make_adapter(in, {{8, 0, 17}, {3, 17, 16}, {64, 33, 28}}, 20),
                              make_adapter(in, {}, 30), make_adapter(in, {{256, 5, 40}}, 40)};
  // Rows 0, 5, 10 … of the first, 1, 6 … of the second; every fifth has none.
  std::vector<int32_t> rows;
  std::vector<LoraSegment> segments;
  for (int32_t a = 0; a < 4; ++a) {
    LoraSegment segment{adapters[a].matrices, static_cast<int32_t>(rows.size()), 0};
    for (int32_t row = a; row < num_rows; row += 5) rows.push_back(row);
    segment.row_end = static_cast<int32_t>(rows.size());
    segments.push_back(segment);
  }
  for_each_simd_target([&](const std::string& target) {
    CAPTURE(target);
    const std::vector<float> after = run(x, in, segments, rows, before, out, pool);
    for (int64_t row = 0; row < num_rows; ++row) {
      for (int64_t column = 0; column < out; ++column) {
        const float was = before[row * out + column], is = after[row * out + column];
        if (row % 5 == 4) {
          CHECK(is == was);
          continue;
        }
        const auto [value, size] = expected(adapters[row % 5], x.data() + row * in, in, column, was);
        CHECK(std::fabs(is - value) <= 1e-6 * size);
      }
    }
  });
}

TEST_CASE("lora: a row's bits depend neither on the rows beside it, nor on threads, nor on targets of one kind") {
  ThreadPool one(1), three(3);
  const int64_t in = 50, out = 200;
  const Adapter adapter = make_adapter(in, {{7, 0, 100}, {16, 100, 100}}, 5);
  const std::vector<float> x = random_normal(11 * in, 1), before = random_normal(11 * out, 2);
  std::vector<int32_t> all(11);
  std::iota(all.rbegin(), all.rend(), 0);
  std::vector<float> fused, unfused;
  for_each_simd_target([&](const std::string& target) {
    CAPTURE(target);
    const LoraSegment segment{adapter.matrices, 0, 11};
    const std::vector<float> together = run(x, in, {&segment, 1}, all, before, out, three);
    std::vector<float>& same_kind = test::has_fused_multiply_add(target) ? fused : unfused;
    if (same_kind.empty()) same_kind = together;
    CHECK(same_bytes(together, same_kind));
    std::vector<float> alone = before;
    for (int32_t row = 0; row < 11; ++row) {
      const LoraSegment only{adapter.matrices, 0, 1};
      alone = run(x, in, {&only, 1}, {row}, alone, out, one);
    }
    CHECK(same_bytes(alone, together));
  });
}

TEST_CASE("lora: a NaN stays in its row") {
  ThreadPool pool(1);
  const int64_t in = 20, out = 33;
  const Adapter adapter = make_adapter(in, {{5, 0, 33}}, 5);
  std::vector<float> x = random_normal(5 * in, 1);
  x[2 * in + 7] = std::nanf("");
  const std::vector<float> before(5 * out, 1.0f);
  const std::vector<int32_t> rows = {0, 1, 2, 3, 4};
  for_each_simd_target([&](const std::string& target) {
    CAPTURE(target);
    const LoraSegment segment{adapter.matrices, 0, 5};
    const std::vector<float> after = run(x, in, {&segment, 1}, rows, before, out, pool);
    for (int64_t i = 0; i < 5 * out; ++i) CHECK(std::isnan(after[i]) == (i / out == 2));
  });
}

}  // namespace llmb::cpu
