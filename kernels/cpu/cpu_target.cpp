#include "kernels/cpu/cpu_target.h"

#include <algorithm>

#include "kernels/cpu/simd_targets.h"

#include "hwy/highway.h"  // after simd_targets.h
#include "hwy/targets.h"

#if HWY_ARCH_ARM_A64 && defined(__linux__)
#include <sys/auxv.h>
#elif HWY_ARCH_X86
#include <cpuid.h>
#endif

namespace llmb::cpu {

namespace {

// Bits of AT_HWCAP and AT_HWCAP2 on 64-bit ARM, which older headers do not name.
[[maybe_unused]] constexpr uint64_t kHasDotprod = 1u << 20, kHasI8mm = 1u << 13, kHasBf16 = 1u << 14;

#if HWY_ARCH_X86
// By cpuid, as not every compiler knows the name.
bool find_avx_vnni() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) != 0 && eax >= 1 &&
         __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) != 0 && (eax >> 4 & 1) != 0;
}
#endif

Extensions find_extensions() {
  Extensions found;
#if HWY_ARCH_X86
  __builtin_cpu_init();
  found.vnni = __builtin_cpu_supports("avx512vnni");
  found.bf16_dots = __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512f");
  found.avx_vnni = find_avx_vnni();
#elif HWY_ARCH_ARM_A64 && defined(__linux__)
  found.dotprod = (getauxval(AT_HWCAP) & kHasDotprod) != 0;
  found.i8mm = found.dotprod && (getauxval(AT_HWCAP2) & kHasI8mm) != 0;
  found.bf16_mmla = (getauxval(AT_HWCAP2) & kHasBf16) != 0;
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

Extensions& used_extensions() {
  static Extensions used = find_extensions();
  return used;
}

constexpr std::string_view kAvx2Vnni = "AVX2_VNNI";

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
  for_each_target(found_targets(), [&](int64_t target) {
    if (target == HWY_AVX2 && find_extensions().avx_vnni) names.emplace_back(kAvx2Vnni);
    names.emplace_back(hwy::TargetName(target));
  });
  return names;
}

std::string target_name(int64_t target) {
  return target == HWY_AVX2 && extensions().avx_vnni ? std::string(kAvx2Vnni) : hwy::TargetName(target);
}

bool force_target(std::string_view name) {
  const std::vector<std::string> names = target_names();
  if (std::find(names.begin(), names.end(), name) == names.end()) return false;
  for_each_target(found_targets(), [&](int64_t target) {
    if (name == hwy::TargetName(target) || (name == kAvx2Vnni && target == HWY_AVX2)) g_forced = target;
  });
  used_extensions().avx_vnni = name == kAvx2Vnni;
  hwy::SetSupportedTargetsForTest(g_forced);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  return true;
}

bool is_target_forced() { return g_forced != 0; }

const Extensions& extensions() { return used_extensions(); }

void use_avx_vnni(bool is_used) { used_extensions().avx_vnni = is_used; }

}  // namespace llmb::cpu
