#include "kernels/cpu/cpu_target.h"

#include "kernels/cpu/simd_targets.h"

#include "hwy/highway.h"  // after simd_targets.h
#include "hwy/targets.h"

#if HWY_ARCH_ARM_A64 && defined(__linux__)
#include <sys/auxv.h>
#endif

namespace llmb::cpu {

namespace {

// Bits of AT_HWCAP and AT_HWCAP2 on 64-bit ARM, which older headers do not name.
[[maybe_unused]] constexpr uint64_t kHasDotprod = 1u << 20, kHasI8mm = 1u << 13;

Extensions find_extensions() {
  Extensions found;
#if HWY_ARCH_X86
  __builtin_cpu_init();
  found.vnni = __builtin_cpu_supports("avx512vnni");
  found.bf16_dots = __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512f");
#elif HWY_ARCH_ARM_A64 && defined(__linux__)
  found.dotprod = (getauxval(AT_HWCAP) & kHasDotprod) != 0;
  found.i8mm = found.dotprod && (getauxval(AT_HWCAP2) & kHasI8mm) != 0;
#endif
  return found;
}

// Every 64-bit ARM has NEON. Highway's own detection wants AES beside it, which a Raspberry Pi 4 lacks, and warns there.
int64_t find_targets() {
#if HWY_ARCH_ARM_A64
  hwy::SetSupportedTargetsForTest(HWY_TARGETS);
#endif
  int64_t mask = 0;
  for (const int64_t target : hwy::SupportedAndGeneratedTargets()) mask |= target;
  return mask;
}

int64_t found_targets() {
  static const int64_t mask = find_targets();
  return mask;
}
[[maybe_unused]] const int64_t g_found = found_targets();  // before main(), as set_arithmetic() and tests hide targets
int64_t g_forced = 0;

// Bits of Highway's targets are in the order of their worth, the best first.
template <typename Visit>
void for_each_target(int64_t mask, const Visit& visit) {
  for (; mask != 0; mask &= mask - 1) visit(mask & -mask);
}

}  // namespace

int64_t usable_targets() { return g_forced != 0 ? g_forced : found_targets(); }
bool has_target(int64_t target) { return (usable_targets() & target) != 0; }

std::vector<std::string> target_names() {
  std::vector<std::string> names;
  for_each_target(found_targets(), [&](int64_t target) { names.emplace_back(hwy::TargetName(target)); });
  return names;
}

bool force_target(std::string_view name) {
  for_each_target(found_targets(), [&](int64_t target) {
    if (name == hwy::TargetName(target)) g_forced = target;
  });
  if (g_forced == 0 || name != hwy::TargetName(g_forced)) return false;
  hwy::SetSupportedTargetsForTest(g_forced);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  return true;
}

bool is_target_forced() { return g_forced != 0; }

const Extensions& extensions() {
  static const Extensions found = find_extensions();
  return found;
}

}  // namespace llmb::cpu
