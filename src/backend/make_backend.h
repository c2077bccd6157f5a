// Chooses the backend for a device name: the one place that knows what was built in.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "backend/backend.h"
#include "backend/ranks/rank_context.h"
#include "base/status.h"

namespace llmb {

struct DeviceChoice {
  DeviceKind kind = DeviceKind::kCpu;
  std::string name;      // for make_backend: "cpu", "cuda:0", "ledger"
  std::string identity;  // what the bytes of results may depend on: "cpu", "cuda (NVIDIA H200)"
  std::string note;      // why "auto" does not take the GPU that is there; mostly empty
};

// "auto": the first GPU where there is one that can be used, else the CPU; "cpu"; "cuda", "cuda:N"; "ledger": the test
// double that computes no model. kUnsupported: a device that this build does not have; kDeviceError: it cannot be used;
// kInvalidArgument: no such name.
Result<DeviceChoice> choose_device(std::string_view asked);

// `device` as in choose_device().
Result<std::unique_ptr<Backend>> make_backend(std::string_view device);
// The same; a GPU runs steps in two halves, one's attention beside the other's products: where the table of what steps take
// says that they gain by it, or wherever they can.
Result<std::unique_ptr<Backend>> make_splitting_backend(std::string_view device, bool always = false);

// One of several ranks that compute a model together on devices of this kind: a CPU, or the first GPU that its process
// sees.
Result<std::unique_ptr<Backend>> make_rank_backend(DeviceKind kind, std::shared_ptr<RankContext> ranks);

// kDeviceError, by name: this machine lacks a GPU of one kind for each of so many ranks, or what they meet through.
Status check_rank_gpus(int num_ranks);

}  // namespace llmb
