// The narrow set of operations that the forward pass is written over. A backend implements them for its device; every
// op has the same name in kernels/cpu and kernels/cuda.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "core/step_plan.h"
#include "core/tensor_view.h"
#include "core/types.h"

namespace llmb {

// A weight matrix in whatever form a backend keeps it (packed, quantised), with its optional bias.
class LinearWeight {
 public:
  virtual ~LinearWeight() = default;
  virtual int64_t resident_bytes() const = 0;
};

// fp32 memory of the device; freed on destruction.
class DeviceBuffer {
 public:
  virtual ~DeviceBuffer() = default;
  virtual float* data() = 0;
  virtual int64_t resident_bytes() const = 0;
};

// Activations are fp32 [rows, columns], row-major, in device memory of the backend. Calls are queued in order, and one
// thread makes them. Between begin_step and end_step the ops that need tokens, positions, slots, block tables or sample
// rows take them from the plan of that step.
class Ops {
 public:
  virtual ~Ops() = default;

  // A weight of the rows of `parts` stacked in order (q, k and v; gate and up); `biases` is empty or one vector a part.
  // The views may go away after the call.
  virtual std::unique_ptr<LinearWeight> make_linear(std::span<const TensorView> parts,
                                                    std::span<const TensorView> biases) = 0;
  virtual std::unique_ptr<DeviceBuffer> make_vector(const TensorView& values) = 0;  // converted to fp32
  virtual std::unique_ptr<DeviceBuffer> allocate(int64_t num_floats) = 0;           // zeroed

  // `plan` must stay unchanged until end_step returns.
  virtual void begin_step(const StepPlan& plan) = 0;
  // Waits for the queued work of the step and fills `output`: one entry for each of the plan's sample rows.
  virtual void end_step(StepOutput* output) = 0;

  // out[i] = table[tokens[i]]
  virtual void embedding(const LinearWeight& table,  // [vocab_size, hidden_size]
                         float* out) = 0;            // [num_tokens, hidden_size]

  // residual += delta (delta == nullptr: nothing is added); out = residual / rms(residual) * weight
  virtual void add_rms_norm(float* residual,      // [rows, hidden_size]  in and out
                            const float* delta,   // [rows, hidden_size]
                            const float* weight,  // [hidden_size]
                            float eps, int64_t rows,
                            float* out) = 0;  // [rows, hidden_size]

  // out = x · weightᵀ + bias
  virtual void linear(const LinearWeight& weight,  // [out_features, in_features], with its optional bias
                      const float* x,              // [rows, in_features]
                      int64_t rows,
                      float* out) = 0;  // [rows, out_features]

  // Rotates q by its positions; stores rotated k, and v, into the layer's KV slots.
  virtual void rope_and_kv_write(int32_t layer,
                                 float* qkv) = 0;  // [num_tokens, q_size + 2 * kv_size]  q is rotated in place

  // Causal attention of each new token over its sequence's cached context, through block tables.
  virtual void paged_attention(int32_t layer,
                               const float* qkv,  // [num_tokens, q_size + 2 * kv_size]  the q part is read
                               float* out) = 0;   // [num_tokens, q_size]

  // out = silu(gate) * up
  virtual void silu_mul(const float* gate_up,  // [rows, 2 * intermediate_size]  gate first
                        int64_t rows,
                        float* out) = 0;  // [rows, intermediate_size]

  // out[i] = x[sample_rows[i].token_row]
  virtual void gather_sample_rows(const float* x,  // [num_tokens, width]
                                  int64_t width,
                                  float* out) = 0;  // [num_samples, width]

  // Chooses tokens for the plan's sample rows [first_sample, first_sample + rows). The chunks of a step come in order.
  virtual void sample(float* logits,  // [rows, vocab_size]  clobbered
                      int64_t first_sample, int64_t rows) = 0;
};

}  // namespace llmb
