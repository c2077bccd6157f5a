// The recurrent states of sequences on a GPU: their memory, and the ops over them. A twin of backend/cpu/cpu_states.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <vector>

#include "backend/cuda/step_stage.h"
#include "core/model_config.h"
#include "core/state_layout.h"
#include "core/step_plan.h"
#include "kernels/cuda/memory.h"
#include "kernels/cuda/state_entries.h"
#include "model/ops.h"

namespace llmb {

// Calls queue work and return. Driven by one thread. Everything throws cuda::CudaError.
class CudaStates {
 public:
  // The pool is there from now on: layout.num_slots slots, for steps of so many entries, padded ones included.
  CudaStates(const ModelConfig& config, const StateLayout& layout, int32_t max_num_entries, cudaStream_t stream);

  static int64_t pool_bytes(const StateLayout& layout) {
    return layout.num_slots * cuda::state_slot_floats(layout) * int64_t{sizeof(float)};
  }

  // Copies the states that the plan asks for; before the step.
  void copy_slots(const StepPlan& plan);
  // A slot as bytes that another pool of this layout understands. read: in any stream; write: in the step's
  int64_t slot_bytes() const { return slot_floats_ * int64_t{sizeof(float)}; }
  void read_slot(int32_t slot, uint8_t* bytes, cudaStream_t stream) const;
  void write_slot(int32_t slot, const uint8_t* bytes);
  // Says where the step's sequences go on, once its positions are there. This and the ops can be recorded.
  void resolve(const StepArrays& step);

  // Ops::causal_conv, Ops::update_states, for the step that was resolved. layer: of the model, one that has a state
  void causal_conv(int32_t layer, Rows x, const DeviceBuffer& weight, const DeviceBuffer* bias, Rows out,
                   cudaStream_t stream);
  void update_states(int32_t layer, Rows qkv, Rows gates, const DeviceBuffer& log_a, const DeviceBuffer& dt_bias,
                     const DeviceBuffer* skip, Rows out, cudaStream_t stream);
  // Whose entries of a step of this shape the ops are for; -1: all. Rows are those of the step.
  void set_part(const StepShape& shape, int part);

 private:
  const StateLayout layout_;
  const int64_t slot_floats_;
  const cudaStream_t stream_;
  std::vector<int32_t> indices_;  // [num_hidden_layers]  among the layers that have a state
  const cuda::DeviceMemory pool_;     // [num_slots, slot_floats_]
  const cuda::DeviceMemory entries_;  // [max_num_entries] of StateEntry
  int32_t first_entry_ = 0, num_entries_ = 0, num_tokens_ = 0;  // of the step that was resolved, or its part
};

}  // namespace llmb
