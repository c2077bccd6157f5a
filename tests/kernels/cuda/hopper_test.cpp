#include "kernels/cuda/hopper.h"

#include <doctest/doctest.h>

#include "kernels/cuda/error.h"
#ifdef LLMB_SIMT
#include "kernels/simt/settings.h"
#endif

namespace llmb::cuda {

TEST_CASE("only a device of compute capability 9.0 runs code for Hopper") {
  int major = 0, minor = 0;
  check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0), "cudaDeviceGetAttribute");
  check(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, 0), "cudaDeviceGetAttribute");
  if (major != 9 || minor != 0) CHECK_FALSE(has_hopper_code(nullptr));
#ifdef LLMB_SIMT
  CHECK(has_hopper_code(nullptr));
  for (const auto& [other_major, other_minor] : {std::pair(8, 0), {8, 9}, {9, 1}, {10, 0}, {12, 0}}) {
    llmb::simt::set_compute_capability(other_major, other_minor);
    CHECK_FALSE(has_hopper_code(nullptr));
  }
  llmb::simt::set_compute_capability(9, 0);
#endif
}

}  // namespace llmb::cuda
