// For tests of what the host SIMT layer must notice.
#pragma once

#include <string>


namespace llmb::test {

// The message that the layer throws while `run` and then the device run; "" where it throws nothing.
template <class Run>
std::string fault_of(Run&& run) {
  try {
    run();
    cuda::check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  } catch (const simt::Fault& fault) {
    return fault.what();
  }
  return "";
}

}  // namespace llmb::test
