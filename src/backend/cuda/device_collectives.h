// The calls in which ranks on GPUs meet, over NCCL: those of base/collectives.h for device memory, in a stream's order.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>

#include "base/collectives.h"
#include "base/status.h"
#include "core/types.h"
#include "kernels/cuda/nccl.h"

namespace llmb {

// All ranks queue the same calls in the same order with equal counts, send() and receive() aside. Calls queue work and
// return, and can be recorded. One thread makes them; abort() may come from any. Throws CudaError.
//
// No result depends on timing, but sums of all_reduce() may be added in any order that NCCL takes.
class DeviceCollectives {
 public:
  // Joins the calling thread's device with those of the ranks of `host`, which all call this at a time. Waits for them
  // until `has_failed` says that some rank never comes.
  static Result<std::unique_ptr<DeviceCollectives>> make(Collectives& host, const std::function<bool()>& has_failed);
  ~DeviceCollectives();
  DeviceCollectives(const DeviceCollectives&) = delete;
  DeviceCollectives& operator=(const DeviceCollectives&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }

  // data[i] = the sum of all ranks' data[i]. dtype: of floating-point numbers
  void all_reduce(void* data, DType dtype, int64_t count, cudaStream_t stream) const;
  // Part r of `all` is what rank r gave; `part` may be this rank's place in it.
  void all_gather(const void* part,  // [bytes]
                  int64_t bytes,
                  void* all,  // [size, bytes]
                  cudaStream_t stream) const;
  // The same of parts of any lengths: rank r gives the rows from bounds[r] up to before bounds[r + 1], in their place.
  void gather_parts(void* all,  // [bounds[size], row_bytes]  in and out
                    int64_t row_bytes, std::span<const int64_t> bounds, cudaStream_t stream) const;
  // The first bytes of each rank's part of several arrays, in their place, in one exchange.
  struct FirstBytes {
    void* all = nullptr;  // [size, stride] bytes, in and out
    int64_t stride = 0, bytes = 0;
  };
  void gather_first_bytes(std::span<const FirstBytes> arrays, cudaStream_t stream) const;
  void broadcast(void* data, int64_t bytes, int root, cudaStream_t stream) const;
  void send(const void* data, int64_t bytes, int to, cudaStream_t stream) const;
  void receive(void* data, int64_t bytes, int from, cudaStream_t stream) const;
  // Sends and receives of all with all at a time: part r of `parts` goes to rank r, and part r of `out` is what rank r
  // gave. This rank's own part is not copied.
  void exchange(const void* parts,  // [size, stride] bytes, of which the first ones of each count
                int64_t stride, int64_t bytes,
                void* out,  // [size, bytes]
                cudaStream_t stream) const;

  // Ends whatever is queued or runs, with any result: for ranks of which one has failed. Nothing is queued any more.
  void abort();
  // Ok, or what NCCL found out meanwhile about other ranks.
  Status status();

 private:
  DeviceCollectives(cuda::NcclComm comm, int rank, int size) : comm_(comm), rank_(rank), size_(size) {}
  const cuda::NcclComm comm_;
  const int rank_, size_;
  std::mutex mutex_;  // of what follows
  bool is_aborted_ = false;
};

}  // namespace llmb
