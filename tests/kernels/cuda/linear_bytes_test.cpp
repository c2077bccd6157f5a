// linear_int4 of weights of eight bits in groups, beside an fp64 reference; and of weights whose columns are in another
// order than those of x.
#include <algorithm>
#include <numeric>
#include <tuple>

#include "core/tensor_view.h"
#include "kernels/cuda/hopper.h"
#include "kernels/cuda/order_columns.h"
#include "tests/kernels/cuda/linear_int4_case.h"

namespace llmb::cuda {
namespace {

using namespace test_int4;

constexpr Meaning kMeanings[] = {Meaning::kBytes, Meaning::kBytesFromZeros};

LinearInt4Options hopper_options(int32_t num_sms, bool deterministic) {
  LinearInt4Options o{num_sms};
  o.hopper = true, o.deterministic = deterministic;
  return o;
}

// The kernels that this device can run.
template <typename Body>
void for_each_kernel(const Body& body) {
  LinearInt4 any(kOptions, nullptr);
  body(any, "any device");
  if (!has_hopper_code(nullptr)) return;
  LinearInt4 deterministic(hopper_options(3, true), nullptr), fast(hopper_options(3, false), nullptr);
  body(deterministic, "Hopper, deterministic");
  body(fast, "Hopper");
}

TEST_CASE_TEMPLATE("bytes of checkpoints mean the numbers that decode_block() gives", T, __nv_bfloat16, __half) {
  for (const Meaning meaning : kMeanings)
    for (const int64_t k : {32, 96, 192}) {
      CAPTURE(k);
      std::vector<float> expected;
      const Weight<T> weight(140, k, meaning, &expected);
      CHECK(weight.numbers() == expected);  // 0 is -0
    }
}

TEST_CASE_TEMPLATE("every code with every zero is their difference times the scale, rounded once", T, __nv_bfloat16,
                   __half) {
  constexpr int64_t kAll = 256, kBlock = 35;
  std::vector<uint8_t> blocks;
  std::vector<float> expected;
  for (int zero = 0; zero < kAll; ++zero) {
    const T scale = from_float<T>(0.0137f * static_cast<float>(zero % 7 - 3));
    for (int code = 0; code < kAll; ++code) {
      if (code % 32 == 0) {
        blocks.resize(blocks.size() + 2);
        std::memcpy(blocks.data() + blocks.size() - 2, &scale, 2);
        blocks.push_back(static_cast<uint8_t>(zero));
      }
      blocks.push_back(static_cast<uint8_t>(code));
      expected.push_back(to_float(from_float<T>(to_float(scale) * static_cast<float>(code - zero))));
    }
  }
  REQUIRE(blocks.size() == static_cast<size_t>(kAll * kAll / 32 * kBlock));
  std::vector<float> ignored;
  Weight<T> weight(kAll, kAll, Meaning::kBytesFromZeros, &ignored);
  weight.clear();
  const DeviceArray<uint8_t> from(blocks);
  pack_int4_blocks<T>(from.data(), kAll, kAll, 0, weight.meaning, weight.units.data(), nullptr);
  CHECK(weight.numbers() == expected);
}

TEST_CASE_TEMPLATE("bytes: products have the accuracy of fp32 at every border of rows, features and k", T,
                   __nv_bfloat16, __half) {
  for_each_kernel([](LinearInt4& linear, const char* kernel) {
    CAPTURE(kernel);
    const auto check_sizes = [&](Meaning meaning, int64_t rows, int64_t features, int64_t k) {
      CAPTURE(rows);
      CAPTURE(features);
      CAPTURE(k);
      std::vector<float> numbers;
      const Weight<T> weight(features, k, meaning, &numbers);
      const Product<T> p(rows, k, features);
      const bool with_bias = rows % 2 == 0;
      check_product(p, weight, numbers, p.template run<float>(linear, weight, with_bias, 0, rows), with_bias);
    };
    for (const Meaning meaning : kMeanings) {
      for (const int64_t rows : {1, 7, 8, 16, 17, 64, 65, 200}) check_sizes(meaning, rows, 136, 224);
      for (const int64_t features : {1, 8, 15, 127, 128, 129, 300}) check_sizes(meaning, 3, features, 128);
      for (const int64_t k : {32, 64, 96, 640, 1056}) check_sizes(meaning, 10, 130, k);
    }
  });
}

TEST_CASE_TEMPLATE("bytes: a row's bits do not depend on the rows beside it; 16 bits are rounded once", T,
                   __nv_bfloat16, __half) {
  constexpr int64_t kFeatures = 260, kIn = 448, kRows = 200;
  const Product<T> p(kRows, kIn, kFeatures);
  std::vector<float> numbers;
  const Weight<T> weight(kFeatures, kIn, Meaning::kBytesFromZeros, &numbers);
  for_each_kernel([&](LinearInt4& linear, const char* kernel) {
    if (std::string(kernel) == "Hopper") return;
    CAPTURE(kernel);
    const auto all = p.template run<float>(linear, weight, true, 0, kRows);
    for (const auto& [first, count] : {std::pair{0, 1}, {3, 8}, {5, 17}, {2, 33}, {6, 64}, {3, 65}, {20, 128}}) {
      const auto some = p.template run<float>(linear, weight, true, first, count);
      const bool same = std::equal(some.begin(), some.end(), all.begin() + first * kFeatures);
      CHECK(same);
    }
    auto expected = all;
    for (float& value : expected) value = to_float(from_float<T>(value));
    const bool rounded_once = p.template run<T>(linear, weight, true, 0, kRows) == expected;
    CHECK(rounded_once);
  });
}

TEST_CASE(
    "bytes: one ring of few stages or many, one block or many, any order of threads: what is summed is the same") {
  using T = __nv_bfloat16;
  const Product<T> p(9, 1024, 200);
  std::vector<float> numbers;
  const Weight<T> weight(200, 1024, Meaning::kBytes, &numbers);
  LinearInt4 usual({4, 2}, nullptr), short_ring({4, 2, 1}, nullptr), long_ring({8, 1, 200 * 1024}, nullptr);
  const auto expected = p.run<float>(usual, weight, true, 0, 9);
  CHECK(p.run<float>(short_ring, weight, true, 0, 9) == expected);
  CHECK(p.run<float>(long_ring, weight, true, 0, 9) == expected);
  test::for_each_order(3, [&](uint64_t) {
    const bool same = p.run<float>(usual, weight, true, 0, 9) == expected;
    CHECK(same);
  });
  for (const int32_t num_sms : {1, 5, 100}) {
    LinearInt4 other({num_sms}, nullptr);
    check_product(p, weight, numbers, p.run<float>(other, weight, true, 0, 9), true);
  }
}

// Indexed blocks whose groups are of 32, 64 and 96 columns anywhere, their numbers by decode_row().
template <class T>
struct Indexed {
  Indexed(int64_t rows, int64_t cols, bool has_bytes, uint64_t seed) : features(rows), k(cols) {
    constexpr bool kIsHalf = std::is_same_v<T, __half>;
    const BlockFormat four_bits = kIsHalf ? BlockFormat::kIndexedInt4F16 : BlockFormat::kIndexedInt4BF16;
    const BlockFormat eight_bits = kIsHalf ? BlockFormat::kIndexedInt8F16 : BlockFormat::kIndexedInt8BF16;
    std::mt19937 rng(seed);
    for (int64_t group = 0; static_cast<int64_t>(of.size()) < k; ++group)
      of.insert(of.end(), std::min<int64_t>(32 * (1 + group % 3), k - static_cast<int64_t>(of.size())), group);
    num_groups = of.back() + 1;
    std::shuffle(of.begin(), of.end(), rng);
    columns.resize(static_cast<size_t>(k));
    std::iota(columns.begin(), columns.end(), 0);
    std::stable_sort(columns.begin(), columns.end(), [&](int32_t a, int32_t b) { return of[a] < of[b]; });
    for (int64_t i = 0; i < k; i += 32) groups.push_back(of[columns[i]]);
    view = {nullptr, kIsHalf ? DType::kF16 : DType::kBF16, features,
            k,       has_bytes ? eight_bits : four_bits,   {of.data(), num_groups}};
    bytes.resize(static_cast<size_t>(features * view.row_bytes()));
    view.data = bytes.data();
    for (int64_t row = 0; row < features; ++row) {
      uint8_t* const to = bytes.data() + row * view.row_bytes();
      const int64_t codes = view.row_bytes() - 3 * num_groups;
      for (int64_t i = 0; i < codes; ++i) to[i] = static_cast<uint8_t>(rng());
      for (int64_t g = 0; g < num_groups; ++g) {
        const T scale = from_float<T>(0.01f + 0.0001f * static_cast<float>(rng() % 1000));
        std::memcpy(to + codes + 2 * g, &scale, 2);
        to[codes + 2 * num_groups + g] = static_cast<uint8_t>(rng() % (has_bytes ? 256 : 17));
      }
    }
    numbers.resize(static_cast<size_t>(features * k));
    for (int64_t row = 0; row < features; ++row) decode_row(view, row, numbers.data() + row * k);
    for (float& number : numbers) number = to_float(from_float<T>(number));
  }
  int64_t features, k, num_groups = 0;
  std::vector<uint16_t> of;
  std::vector<int32_t> columns, groups;
  std::vector<uint8_t> bytes;
  TensorView view;
  std::vector<float> numbers;
};

TEST_CASE_TEMPLATE("columns in another order: numbers are decode_row()'s, products those of the order as it was", T,
                   __nv_bfloat16, __half) {
  for (const bool has_bytes : {false, true})
    for (const auto& [features, k, rows] : {std::tuple{5, 32, 1}, {130, 96, 7}, {200, 448, 17}, {136, 1056, 65}}) {
      CAPTURE(has_bytes);
      CAPTURE(k);
      const Indexed<T> from(features, k, has_bytes, 7);
      std::vector<float> ignored;
      Weight<T> weight(features, k, has_bytes ? Meaning::kBytesFromZeros : Meaning::kFromZeros, &ignored);
      weight.clear();
      const DeviceArray<uint8_t> blocks(from.bytes);
      const DeviceArray<int32_t> columns(from.columns), groups(from.groups);
      const BlockOrder order{columns.data(), groups.data(), from.num_groups};
      const int64_t half = features / 2;  // as parts that are stacked
      pack_int4_blocks<T>(blocks.data(), half, k, 0, weight.meaning, weight.units.data(), nullptr, order);
      pack_int4_blocks<T>(blocks.data() + half * from.view.row_bytes(), features - half, k, half, weight.meaning,
                          weight.units.data(), nullptr, order);
      CHECK(weight.units.check_guards());
      const std::vector<float> packed = weight.numbers();
      std::vector<float> expected(packed.size());
      for (int64_t f = 0; f < features; ++f)
        for (int64_t i = 0; i < k; ++i) expected[f * k + i] = from.numbers[f * k + from.columns[i]];
      CHECK(packed == expected);

      const Product<T> p(rows, k, features);
      Product<T> ordered(rows, k, features);
      const DeviceArray<T> x(p.x);
      DeviceArray<T> out(static_cast<size_t>(rows * k));
      order_columns(reinterpret_cast<const uint16_t*>(x.data()), columns.data(), rows, k,
                    reinterpret_cast<uint16_t*>(out.data()), nullptr);
      CHECK(out.check_guards());
      ordered.x = rounded<T>(out.download_floats());
      for_each_kernel([&](LinearInt4& linear, const char* kernel) {
        CAPTURE(kernel);
        check_product(p, weight, from.numbers, ordered.template run<float>(linear, weight, true, 0, rows), true);
      });
    }
}

TEST_CASE("order_columns: every column goes where it belongs, in rows that shared memory holds and in longer ones") {
  for (const auto& [rows, width] : {std::pair{0, 64},
                                    {1, 8},
                                    {3, 40},
                                    {2, 2040},
                                    {2, 2048},
                                    {1, 2056},
                                    {300, 72},
                                    {2, 49152},
                                    {1, 49160},
                                    {2, 60000}}) {
    CAPTURE(rows);
    CAPTURE(width);
    std::vector<uint16_t> x;
    for (int64_t i = 0; i < int64_t{rows} * width; ++i) x.push_back(static_cast<uint16_t>(i * 40503 >> 3));
    std::vector<int32_t> order(static_cast<size_t>(width));
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), std::mt19937(3));
    const DeviceArray<uint16_t> from(x);
    const DeviceArray<int32_t> columns(order);
    DeviceArray<uint16_t> out(x.size());
    order_columns(from.data(), columns.data(), rows, width, out.data(), nullptr);
    CHECK(out.check_guards());
    std::vector<uint16_t> expected(x.size());
    for (int64_t row = 0; row < rows; ++row)
      for (int64_t i = 0; i < width; ++i) expected[row * width + i] = x[row * width + order[i]];
    const bool same = out.download() == expected;
    CHECK(same);
  }
}

}  // namespace
}  // namespace llmb::cuda
