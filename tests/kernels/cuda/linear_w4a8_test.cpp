// linear_w4a8 beside its CPU twin, whose bits it gives; its weights' numbers beside those of the CPU's packing.
#include "kernels/cuda/linear_w4a8.h"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include "base/thread_pool.h"
#include "kernels/cpu/linear.h"
#include "kernels/cpu/number_panels.h"
#include "kernels/cuda/w4a8_pack.h"
#include "tests/kernels/cuda/byte_rows.h"

namespace llmb::cuda {
namespace {

using test::DeviceArray;
using test::random_normal;
using test::same_bytes;
using test_bytes::ByteRows;

// A device of few multiprocessors, so that sums over k are cut in several ways; one block, which cuts none.
constexpr LinearCodesOptions kOptions{3}, kOneBlock{1, 1};

struct Problem {
  Problem(int64_t num_rows, int64_t out_features, int64_t in_features, bool with_bias)
      : rows(num_rows),
        features(out_features),
        k(in_features),
        x(random_normal(rows * k, 1)),
        weight(random_normal(features * k, 2)),
        bias(with_bias ? random_normal(features, 3) : std::vector<float>()) {}

  cpu::PackedLinear packed() const {
    ThreadPool pool(1);
    const TensorView matrix{weight.data(), DType::kF32, features, k}, row{bias.data(), DType::kF32, 1, features};
    return cpu::PackedLinear::pack({&matrix, 1}, {&row, bias.empty() ? size_t{0} : size_t{1}}, pool,
                                   Quantization::kW4A8);
  }

  int64_t rows, features, k;
  std::vector<float> x, weight, bias;
};

// A problem's weight on the device, quantised there in two parts.
struct Weight {
  explicit Weight(const Problem& p)
      : features(p.features),
        k(p.k),
        units(static_cast<size_t>(w4a8::bytes(features, k))),
        scales(static_cast<size_t>(features)),
        bias(p.bias) {
    check(cudaMemset(units.data(), 0, units.size()), "cudaMemset");
    const DeviceArray<float> from(p.weight);
    const int64_t first = features / 3;
    quantize_w4a8(from.data(), first, k, 0, units.data(), scales.data(), nullptr);
    quantize_w4a8(from.data() + first * k, features - first, k, first, units.data(), scales.data() + first, nullptr);
    check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    CHECK((units.check_guards() && scales.check_guards()));
  }
  W4A8View view() const {
    return {units.data(), scales.data(), bias.size() == 0 ? nullptr : bias.data(), features, k};
  }
  // [features, int8_row_bytes(k)]
  std::vector<int8_t> numbers() const {
    DeviceArray<int8_t> out(static_cast<size_t>(features * int8_row_bytes(k)));
    widen_w4a8(view(), out.data(), nullptr);
    CHECK(out.check_guards());
    return out.download();
  }

  int64_t features, k;
  DeviceArray<uint8_t> units;
  DeviceArray<float> scales;
  DeviceArray<float> bias;
};

template <class Out>
std::vector<float> run(const Problem& p, const LinearCodesOptions& options = kOptions) {
  const Weight weight(p);
  const ByteRows<int8_t> x(p.x, p.rows, p.k);
  DeviceArray<Out> out(static_cast<size_t>(p.rows * p.features));
  LinearW4A8 linear(options, nullptr);
  linear.run(weight.view(), {x.codes.data(), x.scales.data()}, p.rows, out.data(), nullptr);
  const auto result = out.download_floats();
  CHECK(out.check_guards());
  return result;
}

std::vector<float> run_on_cpu(const Problem& p) {
  ThreadPool pool(1);
  std::vector<float> out(static_cast<size_t>(p.rows * p.features));
  cpu::linear(p.packed(), p.x.data(), p.rows, out.data(), pool);
  return out;
}

TEST_CASE("numbers and scales are the CPU's") {
  for (const auto& [features, k] : {std::pair{1, 1}, {150, 31}, {140, 32}, {20, 33}, {17, 128}, {300, 130}, {3, 1032}}) {
    CAPTURE(k);
    Problem p(1, features, k, false);
    std::fill(p.weight.begin(), p.weight.begin() + std::min(k, 40), 0.0f);  // a group of zeros, or a row
    p.weight.back() = 30;
    const Weight weight(p);
    const std::vector<int8_t> numbers = weight.numbers();
    const std::vector<float> scales = weight.scales.download();
    const cpu::PackedLinear packed = p.packed();
    const auto* const expected_scales = reinterpret_cast<const float*>(packed.packed_bytes()[1].data());
    int64_t num_wrong = 0;
    for (int64_t f = 0; f < features; ++f) {
      num_wrong += scales[f] != expected_scales[f];
      for (int64_t i = 0; i < k; ++i)
        num_wrong += numbers[f * int8_row_bytes(k) + i] != cpu::w4a8_number(packed.panel(f / 64), i, f % 64);
    }
    CHECK(num_wrong == 0);
  }
}

TEST_CASE("has the CPU's bits at every border of rows, features and k, cut and uncut") {
  for (const int64_t rows : {1, 2, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128}) {
    CAPTURE(rows);
    const Problem p(rows, 136, 272, rows % 2 == 0);
    CHECK(same_bytes(run<float>(p), run_on_cpu(p)));
  }
  for (const int64_t features : {1, 7, 15, 16, 17, 127, 128, 129, 300}) {
    CAPTURE(features);
    const Problem p(3, features, 160, true);
    CHECK(same_bytes(run<float>(p), run_on_cpu(p)));
  }
  for (const int64_t k : {1, 15, 16, 17, 31, 32, 33, 127, 128, 129, 250, 256, 1032, 4250}) {
    CAPTURE(k);
    const Problem p(k > 1000 ? 5 : 35, 33, k, false);
    const std::vector<float> expected = run_on_cpu(p);
    CHECK(same_bytes(run<float>(p), expected));
    CHECK(same_bytes(run<float>(p, kOneBlock), expected));
  }
}

TEST_CASE_TEMPLATE("16-bit outputs are the fp32 ones, rounded once", Out, __nv_bfloat16, __half) {
  const Problem p(19, 70, 96, true);
  std::vector<float> expected = run_on_cpu(p);
  for (float& x : expected) x = to_float(from_float<Out>(x));
  CHECK(same_bytes(run<Out>(p), expected));
}

TEST_CASE("what is not finite stays in its row or feature; zeros and the smallest numbers are zeros") {
  Problem p(20, 40, 80, true);
  p.x[3 * 80 + 7] = std::numeric_limits<float>::quiet_NaN();
  p.x[5 * 80] = -std::numeric_limits<float>::infinity();
  p.weight[2 * 80 + 79] = std::numeric_limits<float>::infinity();
  p.weight[4 * 80] = std::numeric_limits<float>::quiet_NaN();
  for (int64_t i = 0; i < 80; ++i) p.x[6 * 80 + i] = 0, p.x[7 * 80 + i] = 1e-40f, p.weight[9 * 80 + i] = 0;
  const std::vector<float> actual = run<float>(p), expected = run_on_cpu(p);
  for (int64_t i = 0; i < 20 * 40; ++i) {
    CAPTURE(i);
    CHECK(std::isnan(actual[i]) == (i / 40 == 3 || i / 40 == 5 || i % 40 == 2 || i % 40 == 4));
    CHECK((std::isnan(actual[i]) || actual[i] == expected[i]));
  }
}

TEST_CASE("any order of threads and blocks gives the same, and so do rings of few stages and many") {
  const Problem p(12, 200, 1024, true);
  const auto expected = run<float>(p);
  test::for_each_order(4, [&](uint64_t) { CHECK(same_bytes(run<float>(p), expected)); });
  for (const int32_t ring_bytes : {1, 60 * 1024, 200 * 1024}) CHECK(same_bytes(run<float>(p, {4, 2, ring_bytes}), expected));
}

}  // namespace
}  // namespace llmb::cuda
