// The recurrent states of sequences on the CPU: their memory, and the ops over them.
#pragma once

#include <cstdint>
#include <vector>

#include "backend/cpu/mapped_floats.h"
#include "base/thread_pool.h"
#include "core/model_config.h"
#include "core/state_layout.h"
#include "core/step_plan.h"
#include "kernels/cpu/causal_conv.h"
#include "kernels/cpu/update_states.h"

namespace llmb {

// Memory is touched, and so resident, only as slots are used. Not thread-safe.
class CpuStates {
 public:
  CpuStates(const ModelConfig& config, const StateLayout& layout);  // throws std::bad_alloc

  // The step whose ops follow: copies the states that it asks for. `plan` stays until the next one; positions: of its
  // rows.
  void begin_step(const StepPlan& plan, const std::vector<int32_t>& positions, ThreadPool& pool);

  // A slot as bytes that another pool of this layout understands.
  int64_t slot_bytes() const { return layout_.slot_bytes() + int64_t{sizeof(int32_t)}; }
  void read(int32_t slot, uint8_t* bytes) const;   // [slot_bytes()]
  void write(int32_t slot, const uint8_t* bytes);  // [slot_bytes()]  between steps

  // Ops::causal_conv, Ops::update_states. layer: of the model, one that has a state
  void causal_conv(int32_t layer, const float* x, const float* weight, const float* bias, float* out, ThreadPool& pool);
  void update_states(int32_t layer, const float* qkv, const float* gates, const cpu::StateWeights& weights, float* out,
                     ThreadPool& pool);

 private:
  float* state(int32_t slot, int64_t index) const {
    return memory_.data() + (slot * int64_t{layout_.num_layers} + index) * layout_.layer_size();
  }
  cpu::StateEntries entries_of(int32_t layer);

  const StateLayout layout_;
  std::vector<int32_t> indices_;  // [num_hidden_layers]  among the layers that have one
  const MappedFloats memory_;     // [num_slots, num_layers, layer_size()]
  const StepPlan* plan_ = nullptr;
  std::vector<int32_t> borders_;          // [num_slots]  state_border() of the step that wrote the slot last
  std::vector<int32_t> first_positions_, num_drafts_, entry_borders_;  // [num_entries]
  std::vector<float*> states_;            // [num_entries]  of the layer in progress
};

}  // namespace llmb
