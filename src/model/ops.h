// The narrow set of operations that the forward pass is written over. A backend implements them for its device; every
// op has the same name in kernels/cpu and kernels/cuda.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "core/tensor_view.h"
#include "core/types.h"

namespace llmb {

// A weight matrix in whatever form a backend keeps it (packed, quantised), with its optional bias.
class LinearWeight {
 public:
  virtual ~LinearWeight() = default;
  virtual int64_t resident_bytes() const = 0;
};

// A view of matrix rows in a backend's memory: [any, width], row-major, elements of `dtype`. Owns nothing.
struct Rows {
  void* data = nullptr;
  DType dtype = DType::kF32;
  int64_t width = 0;

  Rows from(int64_t row) const {
    return {data == nullptr ? nullptr : static_cast<char*>(data) + row * width * dtype_bytes(dtype), dtype, width};
  }
};

// Rows that are owned; freed on destruction.
class DeviceBuffer {
 public:
  virtual ~DeviceBuffer() = default;
  virtual Rows rows() const = 0;
  virtual int64_t resident_bytes() const = 0;
};

// Calls are queued in order, and one thread makes them. The residual stream, logits and vectors are fp32, every other
// activation is activation_dtype(). The backend that owns the ops tells them which step is in progress: the ops that
// need tokens, positions, slots, block tables or sample rows take them from its plan. Counts of rows may be padded
// beyond the plan's; what is computed for such rows is never looked at.
class Ops {
 public:
  virtual ~Ops() = default;

  virtual DType activation_dtype() const = 0;

  // A weight of the rows of `parts` stacked in order (q, k and v; gate and up); `biases` is empty or one vector a part.
  // The views may go away after the call.
  virtual std::unique_ptr<LinearWeight> make_linear(std::span<const TensorView> parts,
                                                    std::span<const TensorView> biases) = 0;
  virtual std::unique_ptr<DeviceBuffer> make_vector(const TensorView& values) = 0;  // one row, converted to fp32
  virtual std::unique_ptr<DeviceBuffer> allocate(int64_t rows, int64_t width, DType dtype) = 0;  // zeroed

  // out[i] = table[tokens[i]]
  virtual void embedding(const LinearWeight& table,     // [vocab_size, hidden_size]
                         int64_t rows, Rows out) = 0;   // [rows, hidden_size] fp32

  // residual += delta (no data: nothing is added); out = residual / rms(residual) * weight
  virtual void add_rms_norm(Rows residual,               // [rows, hidden_size] fp32  in and out
                            Rows delta,                  // [rows, hidden_size]
                            const DeviceBuffer& weight,  // [hidden_size]
                            float eps, int64_t rows,
                            Rows out) = 0;  // [rows, hidden_size]

  // out = x · weightᵀ + bias
  virtual void linear(const LinearWeight& weight,  // [out_features, in_features], with its optional bias
                      Rows x,                      // [rows, in_features]
                      int64_t rows,
                      Rows out) = 0;  // [rows, out_features]  of activation_dtype(), or fp32

  // Rotates q by its positions; stores rotated k, and v, into the layer's KV slots.
  virtual void rope_and_kv_write(int32_t layer, int64_t rows,
                                 Rows qkv) = 0;  // [rows, q_size + 2 * kv_size]  q is rotated in place

  // Causal attention of each new token over its sequence's cached context, through block tables.
  virtual void paged_attention(int32_t layer,
                               Rows qkv,       // [num_tokens, q_size + 2 * kv_size]  the q part is read
                               Rows out) = 0;  // [num_tokens, q_size]

  // out = silu(gate) * up
  virtual void silu_mul(Rows gate_up,  // [rows, 2 * intermediate_size]  gate first
                        int64_t rows,
                        Rows out) = 0;  // [rows, intermediate_size]

  // out[i] = x[sample_rows[i].token_row]
  virtual void gather_sample_rows(Rows x,  // [num_tokens, width]
                                  int64_t num_samples,
                                  Rows out) = 0;  // [num_samples, width]

  // Chooses tokens for the plan's sample rows [first_sample, first_sample + rows). The chunks of a step come in order.
  virtual void sample(Rows logits,  // [rows, vocab_size] fp32  clobbered
                      int64_t first_sample, int64_t rows) = 0;
};

}  // namespace llmb
