// The streams of a step in two parts: one for products, one for attention, each with multiprocessors of its own
// (kernels/cuda/divided_device.h), and the events by which they wait for each other. Products of both parts follow each
// other on one stream and attention on the other, so that workspaces serve both parts. What is queued can be recorded.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "backend/cuda/device.h"
#include "kernels/cuda/divided_device.h"
#include "kernels/cuda/memory.h"

namespace llmb {

// Driven by one thread. Everything throws cuda::CudaError.
class SplitStreams {
 public:
  // Multiprocessors that attention is to have.
  static int32_t attention_sms(const CudaDevice& device);

  explicit SplitStreams(const CudaDevice& device);

  // Each returns the stream for what is queued next. A part's products come behind its attention, and this behind its
  // products; both behind what `main` had at begin(), and what comes to `main` behind join() follows all of them.
  cudaStream_t begin(cudaStream_t main);
  cudaStream_t begin_products(int part);
  cudaStream_t begin_attention(int part);
  cudaStream_t join();

  // Those that attention has; all of them where the driver refuses to divide the device.
  int32_t num_attention_sms() const { return device_.num_sms(kAttention); }
  bool is_divided() const { return device_.is_divided(); }

 private:
  static constexpr int kProducts = 0, kAttention = 1;
  void end_attention();

  const cuda::DividedDevice device_;
  cudaStream_t main_ = nullptr;
  cuda::Event forked_, products_done_, attention_done_;
  cuda::Event ready_[2], attended_[2];  // of each part
  int attending_ = -1;                  // the part whose attention is being queued
  bool has_attended_[2] = {};           // since its products
};

}  // namespace llmb
