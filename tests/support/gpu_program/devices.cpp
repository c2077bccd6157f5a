// The host SIMT layer's settings from the environment. LLMB_SIMT_DEVICES: how many devices there are; LLMB_DELAY_SEED:
// when ranks wait before the calls in which they meet.
#include <cstdlib>

#include "kernels/simt/nccl.h"
#include "kernels/simt/settings.h"

namespace llmb {
namespace {

// Before main().
struct DeviceSettings {
  DeviceSettings() {
    if (const char* const count = std::getenv("LLMB_SIMT_DEVICES")) simt::set_num_devices(std::atoi(count));
    if (const char* const seed = std::getenv("LLMB_DELAY_SEED"))
      simt::delay_nccl_calls(std::strtoull(seed, nullptr, 10));
  }
};
const DeviceSettings kDeviceSettings;

}  // namespace
}  // namespace llmb
