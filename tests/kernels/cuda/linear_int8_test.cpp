// linear_int8 beside its CPU twin, whose bits it gives.
#include "kernels/cuda/linear_int8.h"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include "base/thread_pool.h"
#include "kernels/cpu/linear.h"
#include "kernels/cuda/embedding.h"
#include "tests/support/device_array.h"
#include "tests/support/kernel_support.h"

namespace llmb::cuda {
namespace {

using test::converted;
using test::DeviceArray;
using test::random_normal;
using test::same_bytes;

// Rows on the device, rounded to int8.
struct Quantized {
  explicit Quantized(const std::vector<float>& x, int64_t num_rows)
      : rows(num_rows),
        width(static_cast<int64_t>(x.size()) / std::max<int64_t>(num_rows, 1)),
        values(static_cast<size_t>(rows * int8_row_bytes(width))),
        scales(static_cast<size_t>(rows)) {
    const DeviceArray<float> from(x);
    quantize_rows(from.data(), rows, width, values.data(), scales.data(), nullptr);
    cuda::check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    CHECK(values.check_guards());
    CHECK(scales.check_guards());
  }
  int64_t rows, width;
  DeviceArray<int8_t> values;
  DeviceArray<float> scales;
};

struct Problem {
  Problem(int64_t num_rows, int64_t out_features, int64_t in_features, bool with_bias)
      : rows(num_rows),
        features(out_features),
        x(random_normal(rows * in_features, 1)),
        weight(random_normal(features * in_features, 2)),
        bias(with_bias ? random_normal(features, 3) : std::vector<float>()) {}
  int64_t rows, features;
  std::vector<float> x, weight, bias;
};

template <class Out>
std::vector<float> run(const Problem& p) {
  const Quantized weight(p.weight, p.features), x(p.x, p.rows);
  const DeviceArray<float> bias(p.bias);
  DeviceArray<Out> out(static_cast<size_t>(p.rows * p.features));
  linear_int8(Int8View{weight.values.data(), weight.scales.data(), p.bias.empty() ? nullptr : bias.data(), p.features,
                       weight.width},
              {x.values.data(), x.scales.data()}, p.rows, out.data(), nullptr);
  const auto result = out.download_floats();
  CHECK(out.check_guards());
  return result;
}

std::vector<float> run_on_cpu(const Problem& p) {
  ThreadPool pool(1);
  const int64_t k = static_cast<int64_t>(p.weight.size()) / p.features;
  const TensorView weight{p.weight.data(), DType::kF32, p.features, k}, bias{p.bias.data(), DType::kF32, 1, p.features};
  const auto packed =
      cpu::PackedLinear::pack({&weight, 1}, {&bias, p.bias.empty() ? size_t{0} : size_t{1}}, pool, Quantization::kInt8);
  std::vector<float> out(static_cast<size_t>(p.rows * p.features));
  cpu::linear(packed, p.x.data(), p.rows, out.data(), pool);
  return out;
}

TEST_CASE("has the CPU's bits at every tile border") {
  for (const int64_t rows : {1, 2, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129}) {
    CAPTURE(rows);
    const Problem p(rows, 40, 144, rows % 2 == 0);
    CHECK(same_bytes(run<float>(p), run_on_cpu(p)));
  }
  for (const int64_t features : {1, 7, 31, 32, 33, 64, 129})
    for (const int64_t rows : {3, 20, 70}) {
      CAPTURE(features);
      const Problem p(rows, features, 128, rows == 20);
      CHECK(same_bytes(run<float>(p), run_on_cpu(p)));
    }
  for (const int64_t k : {1, 5, 15, 16, 17, 64, 100, 127, 128, 129, 144, 1032, 4250})
    for (const int64_t rows : {2, 18, 66}) {
      CAPTURE(k);
      const Problem p(rows, 33, k, rows == 2);
      CHECK(same_bytes(run<float>(p), run_on_cpu(p)));
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
  for (int64_t i = 0; i < 80; ++i) p.x[6 * 80 + i] = 0, p.x[7 * 80 + i] = 1e-40f, p.weight[9 * 80 + i] = 0;
  const std::vector<float> actual = run<float>(p), expected = run_on_cpu(p);
  for (int64_t i = 0; i < 20 * 40; ++i) {
    CAPTURE(i);
    CHECK(std::isnan(actual[i]) == (i / 40 == 3 || i / 40 == 5 || i % 40 == 2));
    CHECK((std::isnan(actual[i]) || actual[i] == expected[i]));
  }
}

TEST_CASE_TEMPLATE("rows in 16 bits become the integers that the same values in fp32 become", T, __nv_bfloat16,
                   __half) {
  for (const int64_t width : {1, 15, 16, 24, 2048, 2056}) {
    CAPTURE(width);
    const std::vector<T> x = converted<T>(random_normal(3 * width, 4));
    std::vector<float> floats;
    for (const T value : x) floats.push_back(to_float(value));
    const Quantized expected(floats, 3);
    const DeviceArray<T> from(x);
    DeviceArray<int8_t> values(static_cast<size_t>(3 * int8_row_bytes(width)));
    DeviceArray<float> scales(3);
    quantize_rows(from.data(), 3, width, values.data(), scales.data(), nullptr);
    CHECK(values.download() == expected.values.download());
    CHECK(scales.download() == expected.scales.download());
    CHECK(values.check_guards());
  }
}

TEST_CASE("no rows: nothing is written") { CHECK(run<float>(Problem(0, 8, 16, false)).empty()); }

TEST_CASE("any order of threads and blocks gives the same") {
  const Problem p(70, 50, 136, true);
  const auto expected = run<float>(p);
  test::for_each_order(5, [&](uint64_t) { CHECK(same_bytes(run<float>(p), expected)); });
}

TEST_CASE("embeddings of int8 rows are the CPU's") {
  ThreadPool pool(1);
  for (const int64_t hidden : {1, 9, 16, 1100}) {
    CAPTURE(hidden);
    const std::vector<float> table = random_normal(11 * hidden, 5);
    const std::vector<TokenId> tokens = {10, 0, 3, 3};
    const Quantized rows(table, 11);
    const DeviceArray<TokenId> ids(tokens);
    DeviceArray<float> out(static_cast<size_t>(4 * hidden));
    embedding_int8(rows.values.data(), rows.scales.data(), ids.data(), 4, hidden, out.data(), nullptr);
    const TensorView view{table.data(), DType::kF32, 11, hidden};
    std::vector<float> expected(static_cast<size_t>(4 * hidden));
    cpu::embedding(cpu::PackedLinear::pack({&view, 1}, {}, pool, Quantization::kInt8), tokens.data(), 4,
                   expected.data(), pool);
    CHECK(same_bytes(out.download(), expected));
    CHECK(out.check_guards());
  }
}

TEST_CASE("grouped rows have the bits of each expert's own product") {
  constexpr int64_t kFeatures = 70, kIn = 100;
  const Problem a(30, kFeatures, kIn, true);
  Problem b = a;
  b.weight = random_normal(kFeatures * kIn, 7), b.bias = random_normal(kFeatures, 8);
  const std::vector<float> of_a = run<float>(a), of_b = run<float>(b);
  const Quantized x(a.x, 30), first(a.weight, kFeatures), second(b.weight, kFeatures);
  const DeviceArray<float> first_bias(a.bias), second_bias(b.bias);
  const DeviceArray<const void*> weights(std::vector<const void*>{first.values.data(), second.values.data()});
  const DeviceArray<const void*> biases(std::vector<const void*>{first_bias.data(), second_bias.data()});
  const DeviceArray<const float*> scales(std::vector<const float*>{first.scales.data(), second.scales.data()});
  const GroupedWeights grouped{weights.data(), biases.data(), kFeatures, kIn, scales.data()};
  // Rows of x in turn: 20 for the second expert, the others for the first.
  std::vector<int32_t> x_rows;
  for (int32_t i = 0; i < 30; ++i) x_rows.push_back(29 - i);
  const DeviceArray<int32_t> row_ids(x_rows);
  for (const int32_t tile_rows : {16, 64}) {
    CAPTURE(tile_rows);
    std::vector<RowTile> tiles = {{1, 0, std::min(20, tile_rows)}, {0, 20, 10}, {-1, 0, 0}};
    if (tile_rows == 16) tiles.push_back({1, 16, 4});
    const DeviceArray<RowTile> on_device(tiles);
    DeviceArray<float> out(static_cast<size_t>(30 * kFeatures));
    linear_grouped_int8(grouped, {x.values.data(), x.scales.data()}, row_ids.data(), on_device.data(),
                        static_cast<int32_t>(tiles.size()), tile_rows, out.data(), nullptr);
    const auto actual = out.download();
    CHECK(out.check_guards());
    for (int64_t row = 0; row < 30; ++row) {
      const float* const expected = (row < 20 ? of_b : of_a).data() + x_rows[row] * kFeatures;
      CHECK(std::equal(expected, expected + kFeatures, actual.begin() + row * kFeatures));
    }
  }
}

}  // namespace
}  // namespace llmb::cuda
