// The ops of the forward pass on the CPU: kernels/cpu over one thread pool, the KV pool, and the step in progress.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "backend/cpu/kv_pool.h"
#include "base/thread_pool.h"
#include "core/model_config.h"
#include "model/ops.h"
#include "model/rope_table.h"

namespace llmb {

// Work is done by the time a call returns. Not thread-safe. `pool` must outlive this.
class CpuOps final : public Ops {
 public:
  // max_position: positions of a step are below it. Throws std::bad_alloc.
  CpuOps(const ModelConfig& config, const KvLayout& kv, int32_t max_position, ThreadPool& pool);

  std::unique_ptr<LinearWeight> make_linear(std::span<const TensorView> parts,
                                            std::span<const TensorView> biases) override;
  std::unique_ptr<DeviceBuffer> make_vector(const TensorView& values) override;
  std::unique_ptr<DeviceBuffer> allocate(int64_t num_floats) override;

  void begin_step(const StepPlan& plan) override;
  void end_step(StepOutput* output) override;

  void embedding(const LinearWeight& table, float* out) override;
  void add_rms_norm(float* residual, const float* delta, const float* weight, float eps, int64_t rows,
                    float* out) override;
  void linear(const LinearWeight& weight, const float* x, int64_t rows, float* out) override;
  void rope_and_kv_write(int32_t layer, float* qkv) override;
  void paged_attention(int32_t layer, const float* qkv, float* out) override;
  void silu_mul(const float* gate_up, int64_t rows, float* out) override;
  void gather_sample_rows(const float* x, int64_t width, float* out) override;
  void sample(float* logits, int64_t first_sample, int64_t rows) override;

 private:
  const ModelConfig config_;
  ThreadPool& pool_;
  KvPool kv_;
  const RopeTable rope_;
  const StepPlan* plan_ = nullptr;    // of the step in progress
  std::vector<int32_t> sample_rows_;  // [num_samples]  token rows
  StepPlan chunk_plan_;               // a slice of plan_'s sample rows
  StepOutput chunk_output_;
  StepOutput output_;
};

}  // namespace llmb
