// Whether this machine has what several GPUs need for one model.
#pragma once

#include "base/status.h"

namespace llmb {

// kDeviceError, in one line: there are fewer GPUs than ranks, or they are of several kinds, or there is no NCCL.
// Nothing is used yet.
Status find_rank_gpus(int num_ranks);

}  // namespace llmb
