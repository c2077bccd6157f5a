// For kernel tests: every SIMD target in turn, seeded data, and arrays that notice writes past their ends.
#pragma once

#include <cstdint>
#include <cstring>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "kernels/cpu/simd_targets.h"

#include "hwy/targets.h"  // after simd_targets.h

namespace llmb::test {

// Calls body(target name) with run-time dispatch fixed to each target that was built and that this machine supports.
template <typename Body>
void for_each_simd_target(const Body& body) {
  const auto choose = [](int64_t targets) {
    hwy::SetSupportedTargetsForTest(targets);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  };
  choose(0);
  for (const int64_t target : hwy::SupportedAndGeneratedTargets()) {
    choose(target);
    body(std::string(hwy::TargetName(target)));
  }
  choose(0);
}

// Whether the target fuses multiply and add; targets that do agree bit for bit, and so do those that do not.
inline bool has_fused_multiply_add(const std::string& target) {
  return target.starts_with("AVX") || target.starts_with("NEON");
}

// n floats between guard words. Starts filled with NaN, so that an element that is never written is noticed too.
class GuardedFloats {
 public:
  explicit GuardedFloats(int64_t n, float fill = std::nanf("")) : memory_(n + 2 * kGuards, kGuardValue) {
    for (float& x : span()) x = fill;
  }
  float* data() { return memory_.data() + kGuards; }
  std::span<float> span() { return std::span(memory_).subspan(kGuards, memory_.size() - 2 * kGuards); }
  std::vector<float> copy() { return {span().begin(), span().end()}; }
  bool guards_untouched() const {
    for (size_t i = 0; i < kGuards; ++i)
      if (memory_[i] != kGuardValue || memory_[memory_.size() - 1 - i] != kGuardValue) return false;
    return true;
  }

 private:
  static constexpr size_t kGuards = 80;  // more than the widest store
  static constexpr float kGuardValue = -12345.678f;
  std::vector<float> memory_;
};

inline std::vector<float> random_normal(int64_t n, uint32_t seed, float scale = 1) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal(0, scale);
  std::vector<float> v(static_cast<size_t>(n));
  for (float& x : v) x = normal(rng);
  return v;
}

inline bool same_bytes(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size_bytes()) == 0);
}

}  // namespace llmb::test
