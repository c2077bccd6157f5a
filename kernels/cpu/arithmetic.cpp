#include "kernels/cpu/arithmetic.h"

#include <atomic>
#include <string_view>

#include "base/check.h"
#include "kernels/cpu/amx.h"
#include "kernels/cpu/cpu_target.h"
#include "kernels/cpu/simd_targets.h"

#include "hwy/highway.h"  // after simd_targets.h
#include "hwy/targets.h"

namespace llmb::cpu {

namespace {

bool is_fused(int64_t target) {
  const std::string_view name = hwy::TargetName(target);
  return name.starts_with("AVX") || name.starts_with("NEON") || name.starts_with("SVE");
}

int64_t targets(bool fused) {
  int64_t mask = 0;
  for (int64_t left = usable_targets(); left != 0; left &= left - 1)
    if (is_fused(left & -left) == fused) mask |= left & -left;
  return mask;
}

// Dot products are on AMD's processors, twice as fast as multiply-adds in fp32; on an Intel Xeon of 2023 they were
// measured at half the rate.
bool has_fast_bf16_dots() {
#if HWY_ARCH_X86
  return __builtin_cpu_is("amd");
#else
  return false;
#endif
}

std::atomic<Arithmetic>& chosen() {
  static std::atomic<Arithmetic> value{fastest_arithmetic(true)};
  return value;
}

}  // namespace

bool can_compute(Arithmetic a) {
  switch (a) {
    case Arithmetic::kUnfused:
      return targets(false) != 0;
    case Arithmetic::kFma:
      return targets(true) != 0;
    case Arithmetic::kBf16Dot:
      return has_target(HWY_AVX3) && extensions().bf16_dots;
    case Arithmetic::kBf16Amx:
      return has_target(HWY_AVX3) && has_amx();
    case Arithmetic::kBf16Mmla:
      return has_target(HWY_NEON) && extensions().bf16_mmla;
  }
  return false;
}

Arithmetic fastest_arithmetic(bool has_bf16_products) {
  if (has_bf16_products && can_compute(Arithmetic::kBf16Amx)) return Arithmetic::kBf16Amx;
  if (has_bf16_products && can_compute(Arithmetic::kBf16Mmla)) return Arithmetic::kBf16Mmla;
  if (has_bf16_products && has_fast_bf16_dots() && can_compute(Arithmetic::kBf16Dot)) return Arithmetic::kBf16Dot;
  return can_compute(Arithmetic::kFma) ? Arithmetic::kFma : Arithmetic::kUnfused;
}

void set_arithmetic(Arithmetic a) {
  LLMB_CHECK(can_compute(a));
  // Where nothing is hidden, nothing is touched: tests choose targets of their own.
  if (a != chosen().load() && (a == Arithmetic::kUnfused || chosen().load() == Arithmetic::kUnfused)) {
    hwy::DisableTargets(a == Arithmetic::kUnfused ? targets(true) : 0);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  }
  chosen().store(a);
}

Arithmetic arithmetic() { return chosen().load(std::memory_order_relaxed); }

}  // namespace llmb::cpu
