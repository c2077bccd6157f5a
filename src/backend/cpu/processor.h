// This processor: what it is called, what the kernels use of it, and why.
#pragma once

#include <string>

#include "base/status.h"

namespace llmb {

std::string processor_name();  // as Linux tells; "" where it does not

// Runs the kernels on the SIMD target of this name: "AVX2", "SCALAR", … kInvalidArgument: it is none of those that this
// processor has, which the message lists. REQUIRES: no backend has been loaded.
Status force_cpu_target(const std::string& name);

// Some lines for --version --verbose.
std::string describe_processor();

}  // namespace llmb
