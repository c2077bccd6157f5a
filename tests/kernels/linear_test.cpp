#include "kernels/cpu/linear.h"

#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <map>
#include <vector>

#include "base/check.h"
#include "base/float_formats.h"
#include "tests/support/compare.h"
#include "tests/support/kernel_support.h"

namespace llmb::cpu {
namespace {

using test::for_each_simd_target;
using test::GuardedFloats;
using test::random_normal;
using test::same_bytes;

// A stored matrix in each dtype, with the values that its bits mean. Bytes start at an odd address: views may be
// unaligned.
struct Stored {
  std::vector<uint8_t> bytes;
  std::vector<double> values;
  TensorView view;
};

Stored make_stored(DType dtype, int64_t rows, int64_t cols, uint32_t seed) {
  Stored s;
  s.bytes.resize(static_cast<size_t>(rows * cols * dtype_bytes(dtype) + 1));
  const std::vector<float> source = random_normal(rows * cols, seed);
  for (size_t i = 0; i < source.size(); ++i) {
    uint8_t* at = s.bytes.data() + 1 + i * static_cast<size_t>(dtype_bytes(dtype));
    if (dtype == DType::kF32) {
      std::memcpy(at, &source[i], 4);
      s.values.push_back(source[i]);
    } else {  // random bits of moderate exponents, subnormal halves among them
      const uint32_t bits = std::bit_cast<uint32_t>(source[i]);
      uint16_t half = static_cast<uint16_t>(bits >> 16);
      if (dtype == DType::kF16) half = static_cast<uint16_t>((bits & 0x83ffu) | ((bits >> 10) % 18 << 10));
      std::memcpy(at, &half, 2);
      s.values.push_back(dtype == DType::kF16 ? f16_to_f32(half) : bf16_to_f32(half));
    }
  }
  s.view = {s.bytes.data() + 1, dtype, rows, cols};
  return s;
}

std::vector<float> run(const PackedLinear& w, const std::vector<float>& x, int64_t rows, ThreadPool& pool) {
  GuardedFloats out(rows * w.out_features());
  const std::vector<float> x_before = x;
  linear(w, x.data(), rows, out.data(), pool);
  CHECK(out.guards_untouched());
  CHECK(same_bytes(x, x_before));
  return out.copy();
}

void check_against_reference(DType dtype, int64_t m, int64_t n, int64_t k, bool with_bias, ThreadPool& pool) {
  const Stored weight = make_stored(dtype, n, k, 1), bias = make_stored(dtype, 1, n, 2);
  const PackedLinear packed =
      PackedLinear::pack({&weight.view, 1}, with_bias ? std::span(&bias.view, 1) : std::span<const TensorView>(), pool);
  CHECK(packed.out_features() == n);
  CHECK(packed.in_features() == k);
  const std::vector<float> x = random_normal(m * k, 3);
  std::vector<double> expected;
  std::vector<float> naive;
  for (int64_t r = 0; r < m; ++r) {
    for (int64_t c = 0; c < n; ++c) {
      double exact = 0;
      float single = 0;
      for (int64_t i = 0; i < k; ++i) {
        exact += x[r * k + i] * weight.values[c * k + i];
        single += x[r * k + i] * static_cast<float>(weight.values[c * k + i]);
      }
      expected.push_back(exact + (with_bias ? bias.values[c] : 0));
      naive.push_back(single + (with_bias ? static_cast<float>(bias.values[c]) : 0));
    }
  }
  const std::vector<float> actual = run(packed, x, m, pool);
  CAPTURE(std::string(dtype_name(dtype)));
  CAPTURE(m);
  CAPTURE(n);
  CAPTURE(k);
  CHECK(test::relative_error(actual, expected) <= 2 * test::relative_error(naive, expected) + 1.2e-7);
}

}  // namespace

TEST_CASE("linear is as close to fp64 as a naive fp32 product, around every tile and block border") {
  ThreadPool pool(2);
  for_each_simd_target([&](const std::string& target) {
    CAPTURE(target);
    for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
      for (const int64_t m : {0, 1, 2, 3, 4, 5, 6, 7, 11, 12, 13, 17, 18, 19, 35, 36, 37})
        check_against_reference(dtype, m, 65, 67, true, pool);
      for (const int64_t n : {1, 15, 16, 17, 63, 64, 127, 128, 129})
        for (const int64_t m : {1, 14, 40}) check_against_reference(dtype, m, n, 130, n % 2 == 1, pool);
      for (const int64_t k : {1, 2, 3, 127, 128, 129, 255, 256, 257, 385, 639, 640, 641, 1283})
        for (const int64_t m : {1, 14, 40}) check_against_reference(dtype, m, 66, k, false, pool);
      for (const int64_t m : {127, 128, 129, 257}) check_against_reference(dtype, m, 3, 33, true, pool);
    }
  });
}

TEST_CASE("a row's result is bit-identical alone, in any batch, and with 1, 2 or 3 threads") {
  ThreadPool one(1), two(2), three(3);
  for_each_simd_target([&](const std::string& target) {
    CAPTURE(target);
    for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
      constexpr int64_t kRows = 200, kN = 70, kK = 715;
      const Stored weight = make_stored(dtype, kN, kK, 4), bias = make_stored(dtype, 1, kN, 5);
      const PackedLinear packed = PackedLinear::pack({&weight.view, 1}, {&bias.view, 1}, two);
      const std::vector<float> x = random_normal(kRows * kK, 6);
      const std::vector<float> whole = run(packed, x, kRows, one);
      CHECK(same_bytes(whole, run(packed, x, kRows, two)));
      CHECK(same_bytes(whole, run(packed, x, kRows, three)));
      for (const int64_t chunk : {1, 2, 5, 6, 7, 12, 13, 32, 100}) {
        CAPTURE(chunk);
        for (int64_t begin = 0; begin + chunk <= kRows; begin += chunk) {
          const std::vector<float> part(x.begin() + begin * kK, x.begin() + (begin + chunk) * kK);
          CHECK(same_bytes(std::span(whole).subspan(begin * kN, chunk * kN), run(packed, part, chunk, three)));
        }
      }
    }
  });
}

TEST_CASE("a group of products gives each the bits that it has alone, whatever their numbers of rows and sizes") {
  ThreadPool one(1), three(3);
  for_each_simd_target([&](const std::string& target) {
    CAPTURE(target);
    std::vector<PackedLinear> weights;
    std::vector<std::vector<float>> x, alone;
    std::vector<GuardedFloats> out;
    std::vector<LinearCall> calls;
    constexpr int64_t kSizes[][3] = {{3, 70, 20}, {0, 64, 20}, {200, 33, 130}, {1, 1, 1}, {40, 200, 16}};
    for (const auto& [rows, n, k] : kSizes) {
      const Stored weight = make_stored(DType::kBF16, n, k, static_cast<uint32_t>(n));
      weights.push_back(PackedLinear::pack({&weight.view, 1}, {}, one));
      x.push_back(random_normal(rows * k, 9));
      alone.push_back(run(weights.back(), x.back(), rows, one));
      out.emplace_back(rows * n);
    }
    for (size_t i = 0; i < weights.size(); ++i)
      calls.push_back({&weights[i], x[i].data(), kSizes[i][0], out[i].data()});
    linear_group(calls, three);
    for (size_t i = 0; i < weights.size(); ++i) {
      CHECK(out[i].guards_untouched());
      CHECK(same_bytes(out[i].span(), alone[i]));
    }
    linear_group({}, three);
  });
}

TEST_CASE("add_embedding adds the rows that embedding would look up") {
  ThreadPool pool(2);
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    const Stored table = make_stored(dtype, 70, 33, 10);
    const PackedLinear packed = PackedLinear::pack({&table.view, 1}, {}, pool);
    const std::vector<int32_t> rows = {0, 69, 64, 63, 63};
    std::vector<float> looked_up(rows.size() * 33);
    embedding(packed, rows.data(), 5, looked_up.data(), pool);
    GuardedFloats sum(5 * 33, 0.5f);
    add_embedding(packed, rows.data(), 5, sum.data(), pool);
    CHECK(sum.guards_untouched());
    for (size_t i = 0; i < looked_up.size(); ++i) CHECK(sum.span()[i] == 0.5f + looked_up[i]);
    const int32_t past = 70;
    CHECK_THROWS_AS(add_embedding(packed, &past, 1, sum.data(), pool), CheckFailure);
  }
}

TEST_CASE("targets with fused multiply-add agree bit for bit, and so do those without") {
  ThreadPool pool(2);
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    const Stored weight = make_stored(dtype, 100, 300, 7);
    const PackedLinear packed = PackedLinear::pack({&weight.view, 1}, {}, pool);
    const std::vector<float> x = random_normal(20 * 300, 8);
    std::map<bool, std::vector<float>> first;
    for_each_simd_target([&](const std::string& target) {
      CAPTURE(target);
      const std::vector<float> out = run(packed, x, 20, pool);
      const auto [it, is_first] = first.emplace(test::has_fused_multiply_add(target), out);
      if (!is_first) CHECK(same_bytes(it->second, out));
    });
  }
}

TEST_CASE("a NaN or infinity in one row of x stays in that row, for any number of rows") {
  ThreadPool pool(2);
  const Stored weight = make_stored(DType::kBF16, 65, 129, 9);
  const PackedLinear packed = PackedLinear::pack({&weight.view, 1}, {}, pool);
  for_each_simd_target([&](const std::string& target) {
    CAPTURE(target);
    for (const int64_t rows : {5, 20}) {
      std::vector<float> x = random_normal(rows * 129, 10);
      const std::vector<float> clean = run(packed, x, rows, pool);
      x[2 * 129 + 128] = std::nanf("");
      const std::vector<float> out = run(packed, x, rows, pool);
      for (int64_t i = 0; i < rows * 65; ++i) {
        if (i / 65 == 2) CHECK(std::isnan(out[i]));
        else CHECK(out[i] == clean[i]);
      }
    }
  });
}

TEST_CASE("parts are stacked in order with their biases, also where dtypes differ, and empty parts add nothing") {
  ThreadPool pool(2);
  const Stored a = make_stored(DType::kBF16, 70, 33, 11), b = make_stored(DType::kF32, 3, 33, 12),
               none = make_stored(DType::kF16, 0, 33, 13), c = make_stored(DType::kF16, 60, 33, 14);
  const Stored ba = make_stored(DType::kF32, 1, 70, 15), bb = make_stored(DType::kF16, 1, 3, 16),
               bnone = make_stored(DType::kF32, 1, 0, 17), bc = make_stored(DType::kBF16, 1, 60, 18);
  const TensorView parts[] = {a.view, b.view, none.view, c.view}, biases[] = {ba.view, bb.view, bnone.view, bc.view};
  const PackedLinear stacked = PackedLinear::pack(parts, biases, pool);
  CHECK(stacked.out_features() == 133);
  CHECK(stacked.format() == PackedFormat::kF32);
  const std::vector<float> x = random_normal(2 * 33, 19);
  const std::vector<float> out = run(stacked, x, 2, pool);
  int64_t column = 0;
  for (size_t i = 0; i < 4; ++i) {
    const PackedLinear single = PackedLinear::pack({&parts[i], 1}, {&biases[i], 1}, pool);
    const std::vector<float> expected = run(single, x, 2, pool);
    const int64_t n = parts[i].rows;
    for (int64_t r = 0; r < 2; ++r)
      CHECK(same_bytes(std::span(expected).subspan(r * n, n), std::span(out).subspan(r * 133 + column, n)));
    column += n;
  }
}

TEST_CASE("pack refuses parts of different widths and biases of the wrong length") {
  ThreadPool pool(1);
  const Stored a = make_stored(DType::kF32, 2, 3, 20), b = make_stored(DType::kF32, 2, 4, 21);
  const TensorView mixed[] = {a.view, b.view};
  CHECK_THROWS_AS(PackedLinear::pack(mixed, {}, pool), CheckFailure);
  CHECK_THROWS_AS(PackedLinear::pack({}, {}, pool), CheckFailure);
  CHECK_THROWS_AS(PackedLinear::pack({&a.view, 1}, {&b.view, 1}, pool), CheckFailure);
}

TEST_CASE("packed weights keep their stored size") {
  ThreadPool pool(1);
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    const Stored a = make_stored(dtype, 128, 96, 22);
    CHECK(PackedLinear::pack({&a.view, 1}, {}, pool).resident_bytes() == 128 * 96 * dtype_bytes(dtype));
  }
}

TEST_CASE("embedding gathers exactly the stored rows, repeated and at panel borders") {
  ThreadPool pool(3);
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    for (const int64_t hidden : {1, 2, 33, 64}) {
      const Stored table = make_stored(dtype, 130, hidden, 23);
      const PackedLinear packed = PackedLinear::pack({&table.view, 1}, {}, pool);
      const std::vector<TokenId> tokens = {0, 63, 64, 129, 0, 128, 127};
      GuardedFloats out(static_cast<int64_t>(tokens.size()) * hidden);
      embedding(packed, tokens.data(), static_cast<int64_t>(tokens.size()), out.data(), pool);
      CHECK(out.guards_untouched());
      for (size_t i = 0; i < tokens.size(); ++i)
        for (int64_t k = 0; k < hidden; ++k) CHECK(out.span()[i * hidden + k] == table.values[tokens[i] * hidden + k]);
      const TokenId outside = 130;
      CHECK_THROWS_AS(embedding(packed, &outside, 1, out.data(), pool), CheckFailure);
      embedding(packed, nullptr, 0, nullptr, pool);
    }
  }
}

TEST_CASE("half floats widen exactly: every bit pattern") {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const uint32_t exponent = bits >> 10 & 31, mantissa = bits & 1023;
    const double sign = bits >> 15 ? -1.0 : 1.0;
    const float f = f16_to_f32(static_cast<uint16_t>(bits));
    if (exponent == 31 && mantissa != 0) {
      CHECK(std::isnan(f));
    } else if (exponent == 31) {
      CHECK(f == sign * INFINITY);
    } else {
      CHECK(f == sign * (exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, int(exponent) - 25)));
      CHECK(std::signbit(f) == (bits >> 15 == 1));
    }
  }
}

}  // namespace llmb::cpu
