#include "kernels/cpu/arithmetic.h"

#include <atomic>
#include <string_view>

#include "base/check.h"
#include "kernels/cpu/amx.h"
#include "kernels/cpu/simd_targets.h"

#include "hwy/highway.h"  // after simd_targets.h
#include "hwy/targets.h"

namespace llmb::cpu {

namespace {

bool is_fused(int64_t target) {
  const std::string_view name = hwy::TargetName(target);
  return name.starts_with("AVX") || name.starts_with("NEON") || name.starts_with("SVE");
}

// Targets that were built, and that this processor has.
int64_t targets(bool fused) {
  int64_t mask = 0;
  for (const int64_t target : hwy::SupportedAndGeneratedTargets())
    if (is_fused(target) == fused) mask |= target;
  return mask;
}

bool has_bf16_dots() {
#if HWY_ARCH_X86
  __builtin_cpu_init();
  return __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512f");
#else
  return false;
#endif
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

// Found before main(), as set_arithmetic() and tests hide targets.
struct Abilities {
  int64_t fused = targets(true), unfused = targets(false);
  bool has_dots = fused != 0 && has_bf16_dots(), has_fast_dots = has_dots && has_fast_bf16_dots();
};
const Abilities g_abilities;

std::atomic<Arithmetic>& chosen() {
  static std::atomic<Arithmetic> value{fastest_arithmetic(true)};
  return value;
}

}  // namespace

bool can_compute(Arithmetic a) {
  switch (a) {
    case Arithmetic::kUnfused:
      return g_abilities.unfused != 0;
    case Arithmetic::kFma:
      return g_abilities.fused != 0;
    case Arithmetic::kBf16Dot:
      return g_abilities.has_dots;
    case Arithmetic::kBf16Amx:
      return g_abilities.fused != 0 && has_amx();
  }
  return false;
}

Arithmetic fastest_arithmetic(bool has_bf16_products) {
  if (has_bf16_products && can_compute(Arithmetic::kBf16Amx)) return Arithmetic::kBf16Amx;
  if (has_bf16_products && g_abilities.has_fast_dots) return Arithmetic::kBf16Dot;
  return can_compute(Arithmetic::kFma) ? Arithmetic::kFma : Arithmetic::kUnfused;
}

void set_arithmetic(Arithmetic a) {
  LLMB_CHECK(can_compute(a));
  // Where nothing is hidden, nothing is touched: tests choose targets of their own.
  if (a != chosen().load() && (a == Arithmetic::kUnfused || chosen().load() == Arithmetic::kUnfused)) {
    hwy::DisableTargets(a == Arithmetic::kUnfused ? g_abilities.fused : 0);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  }
  chosen().store(a);
}

Arithmetic arithmetic() { return chosen().load(std::memory_order_relaxed); }

}  // namespace llmb::cpu
