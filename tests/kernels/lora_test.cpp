#include "kernels/cpu/lora.h"

#include <doctest/doctest.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <numeric>

#include "base/float_formats.h"
#include "core/types.h"
#include "kernels/cpu/activation.h"
#include "kernels/cpu/linear.h"
#include "tests/support/kernel_support.h"

namespace llmb::cpu {
namespace {

using test::for_each_simd_target;
using test::GuardedFloats;
using test::random_normal;
using test::same_bytes;

enum class Stored { kF32, kBF16, kBF16Widened };  // the last: bf16's values in fp32

// One adapter's matrices for a projection, as a backend packs them, and A and B as they are stored.
struct Adapter {
  std::vector<LoraMatrices> matrices;
  std::vector<std::vector<float>> a, b;  // [rank, in], [num_columns, rank]
  std::vector<std::vector<uint8_t>> memory;
};

void store(float value, bool is_bf16, int64_t index, uint8_t* to) {
  const uint16_t half = static_cast<uint16_t>(std::bit_cast<uint32_t>(value) >> 16);
  if (is_bf16) std::memcpy(to + 2 * index, &half, 2);
  else std::memcpy(to + 4 * index, &value, 4);
}

// parts: rank, out_column and num_columns of each.
Adapter make_adapter(int64_t in, std::initializer_list<std::array<int64_t, 3>> parts, uint32_t seed,
                     Stored stored = Stored::kF32) {
  Adapter adapter;
  for (const auto& [rank, out_column, num_columns] : parts) {
    LoraMatrices m{stored == Stored::kBF16, rank, in, out_column, num_columns, 0.75f, nullptr, nullptr};
    std::vector<float>& a = adapter.a.emplace_back(random_normal(rank * in, ++seed));
    std::vector<float>& b = adapter.b.emplace_back(random_normal(num_columns * rank, ++seed));
    for (auto* list : {&a, &b})
      for (float& value : *list)
        if (stored != Stored::kF32) value = bf16_to_f32(f32_to_bf16(value));
    std::vector<uint8_t> of_a(m.a_bytes()), of_b(m.b_bytes());
    for (int64_t r = 0; r < rank; ++r) {
      for (int64_t k = 0; k < in; ++k)
        store(a[r * in + k], m.is_bf16, m.a_index(r, k - k % kLoraPanel) + k % kLoraPanel, of_a.data());
      for (int64_t c = 0; c < num_columns; ++c) store(b[c * rank + r], m.is_bf16, m.b_index(r, c), of_b.data());
    }
    m.a = of_a.data(), m.b = of_b.data();
    adapter.memory.push_back(std::move(of_a));
    adapter.memory.push_back(std::move(of_b));
    adapter.matrices.push_back(m);
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
      for (int64_t k = 0; k < in; ++k) {
        const double term = double{adapter.a[i][r * in + k]} * x[k];
        t += term, t_size += std::fabs(term);
      }
      const double factor = double{m.scale} * adapter.b[i][own * m.rank + r];
      out += factor * t;
      size += std::fabs(factor) * t_size;
    }
  }
  return {out, size};
}

struct Segments {
  std::vector<LoraSegment> list;
  std::vector<int32_t> rows;
};

LoraWork work_of(const Segments& segments) {
  LoraWork work;
  work.segments = segments.list;
  work.row_ids = segments.rows.data();
  return work;
}

// By tiles of so many rows and columns, as a product's tasks do it.
std::vector<float> run(const std::vector<float>& x, int64_t in, const Segments& segments, const std::vector<float>& before,
                       int64_t out, ThreadPool& pool, int64_t tile_rows = 9, int64_t tile_columns = 64) {
  GuardedFloats y(static_cast<int64_t>(before.size()));
  std::copy(before.begin(), before.end(), y.data());
  LoraWork work = work_of(segments);
  lora_shrink(x.data(), in, &work, pool);
  const int64_t num_rows = static_cast<int64_t>(before.size()) / out;
  for (int64_t row = 0; row < num_rows; row += tile_rows)
    for (int64_t column = 0; column < out; column += tile_columns)
      lora_expand(work, row, std::min(row + tile_rows, num_rows), column, std::min(column + tile_columns, out),
                  y.data() + row * out + column, out);
  CHECK(y.guards_untouched());
  return y.copy();
}

// Rows 0, n + 1, 2 (n + 1) … of the first of n adapters, and so on; every last of n + 1 has none.
Segments deal(std::span<const Adapter> adapters, int32_t num_rows) {
  Segments dealt;
  const auto n = static_cast<int32_t>(adapters.size());
  for (int32_t a = 0; a < n; ++a) {
    const auto begin = static_cast<int32_t>(dealt.rows.size());
    for (int32_t row = a; row < num_rows; row += n + 1) dealt.rows.push_back(row);
    dealt.list.push_back({adapters[a].matrices, begin, static_cast<int32_t>(dealt.rows.size())});
  }
  return dealt;
}

}  // namespace

TEST_CASE("lora: rows of several adapters of any ranks, and rows without one, are near fp64") {
  ThreadPool pool(2);
  const int64_t in = 37, out = 161, num_rows = 23;
  const std::vector<float> x = random_normal(num_rows * in, 1), before = random_normal(num_rows * out, 2);
  const Adapter adapters[] = {make_adapter(in, {{1, 0, 161}}, 10, Stored::kBF16),
                              make_adapter(in, {{8, 0, 17}, {3, 17, 16}, {64, 33, 128}}, 20),
                              make_adapter(in, {}, 30), make_adapter(in, {{256, 5, 40}}, 40, Stored::kBF16)};
  for_each_simd_target([&](const std::string& target) {
    CAPTURE(target);
    const std::vector<float> after = run(x, in, deal(adapters, num_rows), before, out, pool);
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

TEST_CASE("lora: a row's bits depend neither on the rows beside it, threads or tiles, nor on targets of one kind") {
  ThreadPool one(1), three(3);
  const int64_t in = 50, out = 200, num_rows = 21;
  const std::vector<float> x = random_normal(num_rows * in, 1), before = random_normal(num_rows * out, 2);
  std::vector<float> fused, unfused;
  for_each_simd_target([&](const std::string& target) {
    CAPTURE(target);
    for (const Stored stored : {Stored::kBF16, Stored::kBF16Widened}) {
      const Adapter adapter = make_adapter(in, {{7, 0, 100}, {18, 100, 100}}, 5, stored);
      Segments all{{{adapter.matrices, 0, num_rows}}, std::vector<int32_t>(num_rows)};
      std::iota(all.rows.begin(), all.rows.end(), 0);
      const std::vector<float> together = run(x, in, all, before, out, three);
      std::vector<float>& same_kind = test::has_fused_multiply_add(target) ? fused : unfused;
      if (same_kind.empty()) same_kind = together;
      CHECK(same_bytes(together, same_kind));
      std::vector<float> alone = before;
      for (int32_t row = 0; row < num_rows; ++row)
        alone = run(x, in, {{{adapter.matrices, 0, 1}}, {row}}, alone, out, one, num_rows, 32);
      CHECK(same_bytes(alone, together));
    }
  });
}

TEST_CASE("lora: a segment without rows adds nothing") {
  ThreadPool pool(2);
  const Adapter adapter = make_adapter(20, {{5, 0, 33}}, 5);
  const std::vector<float> x = random_normal(2 * 20, 1), before = random_normal(2 * 33, 2);
  CHECK(same_bytes(run(x, 20, {{{adapter.matrices, 0, 0}}, {}}, before, 33, pool), before));
}

TEST_CASE("lora: a NaN stays in its row") {
  ThreadPool pool(1);
  const int64_t in = 20, out = 33;
  const Adapter adapter = make_adapter(in, {{5, 0, 33}}, 5);
  std::vector<float> x = random_normal(5 * in, 1);
  x[2 * in + 7] = std::nanf("");
  const std::vector<float> before(5 * out, 1.0f);
  for_each_simd_target([&](const std::string& target) {
    CAPTURE(target);
    const Segments all{{{adapter.matrices, 0, 5}}, {0, 1, 2, 3, 4}};
    const std::vector<float> after = run(x, in, all, before, out, pool);
    for (int64_t i = 0; i < 5 * out; ++i) CHECK(std::isnan(after[i]) == (i / out == 2));
  });
}

TEST_CASE("lora: products in every form, with and without their activation, give what they and lora give in turn") {
  ThreadPool pool(3);
  const int64_t in = 96, num_rows = 70;
  const std::vector<float> x = random_normal(num_rows * in, 1);
  for (const int64_t out : {256, 200}) {
    const std::vector<float> values = random_normal(out * in, 2), bias = random_normal(out, 3);
    const TensorView weights{values.data(), DType::kF32, out, in}, biases{bias.data(), DType::kF32, 1, out};
    const Adapter adapters[] = {make_adapter(in, {{4, 0, out / 2}, {9, out / 2, out - out / 2}}, 20, Stored::kBF16),
                                make_adapter(in, {{16, 7, 150}}, 30)};
    LoraWork work = work_of(deal(adapters, num_rows));
    const Segments dealt = deal(adapters, num_rows);
    work.row_ids = dealt.rows.data();
    for (const Quantization quantization : {Quantization::kNone, Quantization::kInt8, Quantization::kInt4}) {
      const PackedLinear weight = PackedLinear::pack({&weights, 1}, {&biases, 1}, pool, quantization);
      std::vector<float> plain(num_rows * out), together(num_rows * out);
      linear(weight, x.data(), num_rows, plain.data(), pool);
      lora_shrink(x.data(), in, &work, pool);
      linear(weight, x.data(), num_rows, together.data(), pool, &work);
      const std::vector<float> in_turn = run(x, in, dealt, plain, out, pool, num_rows, ceil_div(out, 16) * 16);
      CHECK(same_bytes(together, in_turn));
      CHECK(!same_bytes(together, plain));
      const ActivationSpec spec{Activation::kSilu};
      if (!can_activate(weight, spec)) continue;
      std::vector<float> activated(num_rows * out / 2), expected_rows(num_rows * out / 2);
      linear_activate(weight, spec, x.data(), num_rows, activated.data(), pool, &work);
      activate(spec, in_turn.data(), num_rows, out / 2, expected_rows.data(), pool);
      CHECK(same_bytes(activated, expected_rows));
    }
  }
}

}  // namespace llmb::cpu
