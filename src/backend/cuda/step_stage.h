// A step's plan on its way to the device: packed into pinned memory, sent by one copy, found there at addresses that
// depend only on how many rows the step is laid out for, so that a recorded step can be replayed on the next plan.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "backend/cuda/sample_parts.h"
#include "core/resolve_step.h"
#include "core/step_plan.h"
#include "kernels/cuda/memory.h"
#include "kernels/cuda/paged_attention_schedule.h"

namespace llmb {

// The rows that a step is laid out for: its plan's, or more.
struct StepShape {
  int32_t num_tokens = 0;
  int32_t num_seqs = 0;
  int32_t num_samples = 0;
};

// Device addresses. Padded tokens have slot -1, padded sample rows token row -1.
struct StepArrays {
  const TokenId* tokens = nullptr;             // [num_tokens]  < 0: see StepPlan
  const int32_t* positions = nullptr;          // [num_tokens]
  const int32_t* slots = nullptr;              // [num_tokens]
  const int32_t* sample_rows = nullptr;        // [num_samples]  rows of tokens
  SampleRow* samples = nullptr;                // [num_samples]
  const int32_t* cta_start = nullptr;          // [num_ctas + 1]
  const cuda::AttentionItem* items = nullptr;  // [<= max_items]
  const BlockId* block_ids = nullptr;          // block tables, packed
  const TokenBias* bias = nullptr;             // what the rows' slices index: of all rows, or of a part
  TokenPenalty* penalty = nullptr;             // the same
  bool has_wgmma_items = true;                 // attention may have units of more than kTileRows rows
  // Not empty: the rows' biases and penalties do not fit at once. Rows are sampled part by part, after
  // upload_tables() of theirs; such a step cannot be replayed. Valid until the next upload().
  std::span<const SamplePart> parts;
};

struct StepLimits {
  int32_t max_num_tokens = 0;
  int32_t max_num_seqs = 0;
  int32_t max_blocks_per_seq = 0;
  int64_t max_num_biases = 0, max_num_penalties = 0;  // of rows that are sampled at once; every row's fit
};

// One thread drives it. At most two steps are on their way: upload() of a step waits for nobody, so the step two before
// it must have run.
class StepStage {
 public:
  // Throws cuda::CudaError.
  StepStage(const StepLimits& limits, const cuda::AttentionShape& attention, int32_t num_ctas);

  // Where a step of this shape lies.
  StepArrays arrays(const StepShape& shape) const;

  // Queues the copy, and that of biases and penalties where there are no parts. REQUIRES: shape holds plan, limits
  // hold shape.
  StepArrays upload(const StepPlan& plan, const StepShape& shape, cudaStream_t stream);

  // Queues the copy of a group's biases and penalties to where arrays() says. They may lie in pageable memory, which
  // the copy has left when the call returns.
  void upload_tables(const SamplePart& part, cudaStream_t stream);

 private:
  struct Layout;  // byte offsets of a shape's arrays
  Layout layout(const StepShape& shape) const;
  void pack(const StepPlan& plan, const StepShape& shape, const Layout& at, uint8_t* out);
  // The group with its biases and penalties in pinned memory.
  SamplePart staged(const SamplePart& part);

  const StepLimits limits_;
  const cuda::AttentionShape attention_;
  const int32_t num_ctas_;
  cuda::AttentionSchedule schedule_;
  cuda::PinnedMemory host_[2], host_tables_[2];  // in turn
  cuda::DeviceMemory device_, device_tables_;
  std::vector<SamplePart> parts_;  // of the last plan
  // Groups of one row give one token each, so that all but the tokens is known here.
  GivenTokens one_each_;
  ResolvedStep resolved_;
  int turn_ = 0;
};

}  // namespace llmb
