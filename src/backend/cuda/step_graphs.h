// Steps recorded once as CUDA graphs and replayed: a decode step is some hundred launches, which a host thread cannot
// queue as fast as a GPU runs them.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <map>

namespace llmb {

// Batch sizes that steps are padded to: 1, 2, 4, then steps of 8 up to 256, of 16 up to 512, of 64 beyond, and the
// largest itself. REQUIRES: 1 <= size <= max_size.
int64_t graph_bucket(int64_t size, int64_t max_size);

// One graph for each key. Not thread-safe.
class StepGraphs {
 public:
  StepGraphs() = default;
  StepGraphs(const StepGraphs&) = delete;
  StepGraphs& operator=(const StepGraphs&) = delete;
  ~StepGraphs();

  bool empty() const { return graphs_.empty(); }
  bool holds(int64_t key) const { return graphs_.contains(key); }
  void clear();

  // Records what `body` queues on `stream`; nothing of it runs. Throws CudaError, and what body throws.
  template <typename Body>
  void record(int64_t key, cudaStream_t stream, const Body& body) {
    begin(stream);
    try {
      body();
    } catch (...) {
      abandon(stream);
      throw;
    }
    end(key, stream);
  }

  // REQUIRES: the key was recorded.
  void launch(int64_t key, cudaStream_t stream) const;

 private:
  static void begin(cudaStream_t stream);
  static void abandon(cudaStream_t stream);
  void end(int64_t key, cudaStream_t stream);

  std::map<int64_t, cudaGraphExec_t> graphs_;
};

}  // namespace llmb
