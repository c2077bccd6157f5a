// The program with the host SIMT layer in place of GPUs, each of which works by itself; devices.cpp says how many.
#include "kernels/simt/background.h"

namespace llmb {
namespace {

// Before main() of src/cli/main.cpp.
const simt::Background kAtWork;

}  // namespace
}  // namespace llmb
