// Every target that the CPU's kernels can run on, with its extensions and without.
#pragma once

#include <string>

#include "kernels/cpu/cpu_target.h"
#include "tests/support/kernel_support.h"

namespace llmb::test {

// As for_each_simd_target; where the processor has AVX-VNNI, "AVX2_VNNI", too.
template <typename Body>
void for_each_cpu_target(const Body& body) {
  for_each_simd_target([&](const std::string& target) {
    const bool has_two = target == "AVX2" && cpu::extensions().avx_vnni;
    if (has_two) {
      body(std::string("AVX2_VNNI"));
      cpu::use_avx_vnni(false);
    }
    body(target);
    if (has_two) cpu::use_avx_vnni(true);
  });
}

}  // namespace llmb::test
