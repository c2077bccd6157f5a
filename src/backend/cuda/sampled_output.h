// The tokens that a step sampled, on their way from the device to the host, and those of its rows.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <vector>

#include "backend/cuda/cuda_ops.h"
#include "backend/cuda/step_flight.h"
#include "core/resolve_step.h"
#include "core/step_plan.h"

namespace llmb {

// A step has room for so many of the best tokens of each row, few where that is enough: they all go to the host.
int32_t max_top_of(const StepPlan& plan);

// Queues the copies. `host` mirrors the device's arrays of ops.sampled(); of the best tokens, as far as the step has
// rows.
void download_sampled(const CudaOps& ops, const StepPlan& plan, bool with_top, uint8_t* host, cudaStream_t stream);

// Where the device alone knows some of the plan's drafts: queues the copy of all its tokens. `resolved`: the step's.
void download_tokens(const StepPlan& plan, const TokenId* resolved, TokenId* host, cudaStream_t stream);

// Reads what these copied.
class StepReader {
 public:
  // To `output` what the plan gave, as the device has done it. `step`: its number; `given`: by the plan before it, then
  // by this one. REQUIRES: flight.await()
  void read(CudaOps& ops, int64_t step, const StepFlight& flight, GivenTokens* given, StepOutput* output);

 private:
  void read_rows(const CudaOps& ops, const StepPlan& plan, const uint8_t* host);
  void read_tokens(const StepPlan& plan, const GivenTokens& before, const TokenId* host);

  SampledRows rows_;
  std::vector<TokenId> tokens_;  // as the step had them
};

}  // namespace llmb
