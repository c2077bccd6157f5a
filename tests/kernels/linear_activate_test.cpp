// linear_activate gives the bytes of linear and activate, one after the other.
#include <doctest/doctest.h>

#include <vector>

#include "base/check.h"
#include "base/float_formats.h"
#include "kernels/cpu/activation.h"
#include "kernels/cpu/linear.h"
#include "tests/support/kernel_support.h"

namespace llmb::cpu {
namespace {

using test::GuardedFloats;
using test::random_normal;

struct Format {
  DType stored;
  Quantization quantization = Quantization::kNone;
  DType activations = DType::kF32;
};

PackedLinear make_weight(const Format& format, int64_t n, int64_t k, ThreadPool& pool) {
  const std::vector<float> values = random_normal(n * k, 1), bias = random_normal(n, 2);
  std::vector<uint16_t> halves;
  for (const float x : values) halves.push_back(f32_to_bf16(x));
  const bool is_float = format.stored == DType::kF32;
  const TensorView w{is_float ? static_cast<const void*>(values.data()) : halves.data(), format.stored, n, k};
  const TensorView b{bias.data(), DType::kF32, 1, n};
  return PackedLinear::pack({&w, 1}, {&b, 1}, pool, format.quantization, format.activations);
}

void check_same(const PackedLinear& weight, const ActivationSpec& spec, int64_t rows, ThreadPool& pool) {
  const int64_t wide = weight.out_features(), intermediate = spec.gated ? wide / 2 : wide;
  const std::vector<float> x = random_normal(rows * weight.in_features(), 3);
  std::vector<float> between(static_cast<size_t>(rows * wide)), expected(static_cast<size_t>(rows * intermediate));
  linear(weight, x.data(), rows, between.data(), pool);
  activate(spec, between.data(), rows, intermediate, expected.data(), pool);
  GuardedFloats out(rows * intermediate);
  REQUIRE(can_activate(weight, spec));
  linear_activate(weight, spec, x.data(), rows, out.data(), pool);
  CHECK(out.guards_untouched());
  CHECK(test::same_bytes(out.copy(), expected));
}

}  // namespace

TEST_CASE("every format, with and without a gate, whole panels and halves, gives the bytes of the two ops") {
  ThreadPool one(1), three(3);
  const ActivationSpec gated{Activation::kSilu}, plain{Activation::kGelu, false};
  for (const Format& format :
       {Format{DType::kF32}, Format{DType::kBF16}, Format{DType::kBF16, Quantization::kNone, DType::kBF16},
        Format{DType::kBF16, Quantization::kInt8}, Format{DType::kBF16, Quantization::kInt4},
        Format{DType::kBF16, Quantization::kW4A8}}) {
    for (const int64_t panels : {1, 2, 5}) {
      const PackedLinear weight = make_weight(format, 2 * 64 * panels, 70, three);
      const PackedLinear odd = make_weight(format, 64 * panels + 7, 70, three);
      test::for_each_simd_target([&](const std::string& target) {
        CAPTURE(target);
        CAPTURE(panels);
        for (const int64_t rows : {0, 1, 3, 13, 40, 129, 300}) {
          CAPTURE(rows);
          for (ThreadPool* pool : {&one, &three}) {
            check_same(weight, gated, rows, *pool);
            check_same(odd, plain, rows, *pool);
          }
        }
      });
    }
  }
}

TEST_CASE("the halves of a gated product must be whole panels; every activation goes through") {
  ThreadPool pool(2);
  const Format format{DType::kBF16};
  for (const Activation kind : {Activation::kSilu, Activation::kGelu, Activation::kGeluTanh, Activation::kRelu}) {
    for (const bool is_gated : {false, true}) {
      const ActivationSpec spec{kind, is_gated};
      check_same(make_weight(format, 128, 33, pool), spec, 20, pool);
    }
  }
  ActivationSpec clamped{Activation::kClampedSwiglu};
  clamped.limit = 1;
  check_same(make_weight(format, 128, 33, pool), clamped, 20, pool);
  const PackedLinear narrow = make_weight(format, 192, 33, pool);
  CHECK(!can_activate(narrow, clamped));
  CHECK(can_activate(narrow, {Activation::kRelu, false}));
  CHECK_THROWS_AS(linear_activate(narrow, clamped, nullptr, 0, nullptr, pool), CheckFailure);
}

}  // namespace llmb::cpu
