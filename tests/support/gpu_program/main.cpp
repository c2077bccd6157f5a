// The program with the host SIMT layer in place of GPUs, each of which works by itself. LLMB_SIMT_DEVICES: how many
// there are; LLMB_DELAY_SEED: when ranks wait before the calls in which they meet.
#include <cstdlib>

#include "kernels/simt/background.h"
#include "kernels/simt/nccl.h"
#include "kernels/simt/settings.h"

namespace llmb {
namespace {

// Before main() of src/cli/main.cpp.
struct Devices {
  Devices() {
    if (const char* const count = std::getenv("LLMB_SIMT_DEVICES")) simt::set_num_devices(std::atoi(count));
    if (const char* const seed = std::getenv("LLMB_DELAY_SEED"))
      simt::delay_nccl_calls(std::strtoull(seed, nullptr, 10));
  }
  const simt::Background at_work;
};
const Devices kDevices;

}  // namespace
}  // namespace llmb
