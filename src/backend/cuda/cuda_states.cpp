#include "backend/cuda/cuda_states.h"

#include "backend/cuda/cuda_weights.h"
#include "base/check.h"
#include "kernels/cuda/causal_conv.h"
#include "kernels/cuda/update_states.h"

namespace llmb {

CudaStates::CudaStates(const ModelConfig& config, const StateLayout& layout, int32_t max_num_entries,
                       cudaStream_t stream)
    : layout_(layout),
      slot_floats_(cuda::state_slot_floats(layout)),
      stream_(stream),
      pool_(pool_bytes(layout)),
      entries_(max_num_entries * int64_t{sizeof(cuda::StateEntry)}) {
  int32_t count = 0;
  for (int32_t i = 0; i < config.num_hidden_layers; ++i) {
    indices_.push_back(count);
    count += config.layer(i).has_state;
  }
}

void CudaStates::read_slot(int32_t slot, uint8_t* bytes, cudaStream_t stream) const {
  cuda::check(cudaMemcpyAsync(bytes, pool_.data<float>() + slot * slot_floats_, static_cast<size_t>(slot_bytes()),
                              cudaMemcpyDeviceToHost, stream),
              "cudaMemcpyAsync");
}

void CudaStates::write_slot(int32_t slot, const uint8_t* bytes) {
  cuda::check(cudaMemcpyAsync(pool_.data<float>() + slot * slot_floats_, bytes, static_cast<size_t>(slot_bytes()),
                              cudaMemcpyHostToDevice, stream_),
              "cudaMemcpyAsync");
}

void CudaStates::copy_slots(const StepPlan& plan) {
  for (const StateCopy& copy : plan.state_copies)
    cuda::check(cudaMemcpyAsync(pool_.data<float>() + copy.to * slot_floats_, pool_.data<float>() + copy.from * slot_floats_,
                                static_cast<size_t>(slot_floats_) * sizeof(float), cudaMemcpyDeviceToDevice, stream_),
                "cudaMemcpyAsync");
}

void CudaStates::resolve(const StepArrays& step) {
  set_part(step.shape, -1);
  LLMB_CHECK(num_entries_ * int64_t{sizeof(cuda::StateEntry)} <= entries_.bytes());
  cuda::resolve_states(step.states, num_entries_, step.positions, pool_.data<float>(), slot_floats_,
                       entries_.data<cuda::StateEntry>(), stream_);
}

void CudaStates::set_part(const StepShape& shape, int part) {
  const StepSplit& second = shape.second;
  first_entry_ = part == 1 ? second.entry : 0;
  num_entries_ = (part == 0 ? second.entry : shape.num_seqs) - first_entry_;
  num_tokens_ = part < 0 ? shape.num_tokens : part == 0 ? second.row : shape.num_tokens - second.row;
}

void CudaStates::causal_conv(int32_t layer, Rows x, const DeviceBuffer& weight, const DeviceBuffer* bias, Rows out,
                             cudaStream_t stream) {
  const auto* const b = bias != nullptr ? data<const float>(bias->rows()) : nullptr;
  const bool has_silu = layout_.config.kind != StateKind::kShortConv;
  with_type(x.dtype, [&]<typename T>(T) {
    cuda::causal_conv(layout_, indices_[layer], data<const T>(x), data<const float>(weight.rows()), b, has_silu,
                      entries_.data<const cuda::StateEntry>() + first_entry_, num_entries_, num_tokens_, data<T>(out),
                      stream);
  });
}

void CudaStates::update_states(int32_t layer, Rows qkv, Rows gates, const DeviceBuffer& log_a,
                               const DeviceBuffer& dt_bias, const DeviceBuffer* skip, Rows out, cudaStream_t stream) {
  const cuda::StateWeights weights{data<const float>(log_a.rows()), data<const float>(dt_bias.rows()),
                                   skip != nullptr ? data<const float>(skip->rows()) : nullptr};
  with_type(qkv.dtype, [&]<typename T>(T) {
    cuda::update_states(layout_, indices_[layer], data<const T>(qkv), data<const float>(gates), weights,
                        entries_.data<const cuda::StateEntry>() + first_entry_, num_entries_, num_tokens_, data<T>(out),
                        stream);
  });
}

}  // namespace llmb
