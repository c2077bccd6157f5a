// The SIMD targets that the kernels were built for, which of them they run on, and what else of this processor they use.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace llmb::cpu {

// Highway's bits of the targets that were built and that this processor has; after force_target() that one alone.
int64_t usable_targets();
bool has_target(int64_t target);  // whether it is one of them

// Names of those that this processor has, the best first: "AVX3" (AVX-512), "AVX2_VNNI" (AVX2 with AVX-VNNI's dot products
// of bytes), "AVX2", "NEON", "SCALAR", …
std::vector<std::string> target_names();
std::string target_name(int64_t target);  // as it runs now

// All kernels run on this target from now on. False: target_names() has no such name.
// REQUIRES: nothing was packed or computed, and no arithmetic was chosen (arithmetic.h).
bool force_target(std::string_view name);
bool is_target_forced();

// Instructions beyond those of a target that the kernels use where the processor has them.
struct Extensions {
  bool vnni = false, bf16_dots = false;  // of AVX-512
  bool avx_vnni = false;                 // of AVX2
  bool dotprod = false, i8mm = false, bf16_mmla = false;  // of NEON
};
const Extensions& extensions();
void use_avx_vnni(bool is_used);  // for tests. REQUIRES: the processor has it

}  // namespace llmb::cpu
