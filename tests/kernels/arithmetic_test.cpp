// The classes of arithmetic: which there are here, and that products keep to the one that was chosen.
#include "kernels/cpu/arithmetic.h"

#include <doctest/doctest.h>

#include <cstring>
#include <string>
#include <vector>

#include "base/float_formats.h"
#include "kernels/cpu/linear.h"
#include "kernels/cpu/machine_limits.h"
#include "tests/support/kernel_support.h"

namespace llmb::cpu {

namespace {

// One of each class that can be told from the others by its bytes.
std::vector<float> product(bool is_bf16, ThreadPool& pool) {
  constexpr int64_t kRows = 3, kN = 64, kK = 333;
  std::vector<uint16_t> weights;
  std::vector<float> x;
  for (int64_t i = 0; i < kN * kK; ++i) weights.push_back(f32_to_bf16(static_cast<float>(i * 37 % 101 - 50) / 7));
  for (int64_t i = 0; i < kRows * kK; ++i) x.push_back(static_cast<float>(i * 53 % 211 - 99) / 3);
  const TensorView part = {weights.data(), DType::kBF16, kN, kK};
  const PackedLinear packed =
      PackedLinear::pack({&part, 1}, {}, pool, Quantization::kNone, is_bf16 ? DType::kBF16 : DType::kF32);
  std::vector<float> out(kRows * kN);
  linear(packed, x.data(), kRows, out.data(), pool);
  return out;
}

bool same_bytes(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

}  // namespace

TEST_CASE("names lead to their classes and back, and nothing else does") {
  for (const Arithmetic a : kAllArithmetic) CHECK(arithmetic_by_name(arithmetic_name(a)) == a);
  for (const char* other : {"", "auto", "FMA", "fma ", "bf16"}) CHECK_FALSE(arithmetic_by_name(other));
}

TEST_CASE("every class that can be computed is, whatever was chosen before, and the fastest is one of them") {
  ThreadPool pool(2);
  const Arithmetic before = arithmetic();
  CHECK(before == fastest_arithmetic(true));
  CHECK(can_compute(before));
  CHECK(can_compute(fastest_arithmetic(false)));
  CHECK_FALSE(is_bf16_arithmetic(fastest_arithmetic(false)));
  std::vector<std::pair<Arithmetic, std::vector<float>>> plain, rounded;
  for (int round = 0; round < 2; ++round) {
    for (const Arithmetic a : kAllArithmetic) {
      if (!can_compute(a)) continue;
      CAPTURE(std::string(arithmetic_name(a)));
      set_arithmetic(a);
      CHECK(arithmetic() == a);
      CHECK(test::has_fused_multiply_add(simd_target_name()) == (a != Arithmetic::kUnfused));
      CHECK(has_fast_bf16() == is_bf16_arithmetic(a));
      const auto now = product(false, pool), now_rounded = product(true, pool);
      for (const auto& [other, bytes] : plain) {
        const bool both_fuse = (other == Arithmetic::kUnfused) == (a == Arithmetic::kUnfused);
        CHECK(same_bytes(bytes, now) == both_fuse);
      }
      for (const auto& [other, bytes] : rounded)
        if (other == a) CHECK(same_bytes(bytes, now_rounded));
      plain.emplace_back(a, now);
      rounded.emplace_back(a, now_rounded);
    }
  }
  set_arithmetic(before);
}

}  // namespace llmb::cpu
