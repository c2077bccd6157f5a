#include "backend/cuda/device_collectives.h"

#include <chrono>
#include <condition_variable>
#include <thread>
#include <utility>

#include "base/check.h"

namespace llmb {

using cuda::check_nccl;
using cuda::nccl;
using cuda::NcclType;

namespace {

NcclType nccl_type(DType dtype) {
  LLMB_CHECK(dtype == DType::kF32 || dtype == DType::kF16 || dtype == DType::kBF16);
  return dtype == DType::kF32 ? NcclType::kF32 : dtype == DType::kF16 ? NcclType::kF16 : NcclType::kBF16;
}

// A communicator that a thread of its own makes: it may wait for ever for a rank that has died.
struct Joining {
  std::mutex mutex;
  std::condition_variable changed;
  bool has_ended = false;
  cuda::NcclResult result = cuda::kNcclSuccess;
  cuda::NcclComm comm = nullptr;
};

}  // namespace

Result<std::unique_ptr<DeviceCollectives>> DeviceCollectives::make(Collectives& host,
                                                                   const std::function<bool()>& has_failed) {
  if (!cuda::nccl_problem().empty()) return device_error(cuda::nccl_problem());
  const int rank = host.rank(), size = host.size();
  cuda::NcclUniqueId id{};
  if (rank == 0) check_nccl(nccl().get_unique_id(&id), "ncclGetUniqueId");
  host.broadcast(&id, sizeof id, 0);
  int device = 0;
  cuda::check(cudaGetDevice(&device), "cudaGetDevice");
  const auto joining = std::make_shared<Joining>();
  std::thread([joining, id, rank, size, device] {
    cuda::NcclComm comm = nullptr;
    cuda::NcclResult result = cuda::kNcclCudaError;
    if (cudaSetDevice(device) == cudaSuccess) result = nccl().comm_init_rank(&comm, size, id, rank);
    std::lock_guard lock(joining->mutex);
    joining->has_ended = true, joining->result = result, joining->comm = comm;
    joining->changed.notify_all();
  }).detach();
  std::unique_lock lock(joining->mutex);
  while (!joining->has_ended) {
    joining->changed.wait_for(lock, std::chrono::milliseconds(20));
    if (!joining->has_ended && has_failed()) return device_error("another rank has failed");
  }
  check_nccl(joining->result, "ncclCommInitRank");
  LLMB_CHECK(joining->comm != nullptr);
  return std::unique_ptr<DeviceCollectives>(new DeviceCollectives(joining->comm, rank, size));
}

DeviceCollectives::~DeviceCollectives() {
  if (!is_aborted_) nccl().comm_destroy(comm_);
}

void DeviceCollectives::all_reduce(void* data, DType dtype, int64_t count, cudaStream_t stream) const {
  check_nccl(nccl().all_reduce(data, data, static_cast<size_t>(count), nccl_type(dtype), cuda::NcclSum::kSum, comm_,
                               stream),
             "ncclAllReduce");
}

void DeviceCollectives::all_gather(const void* part, int64_t bytes, void* all, cudaStream_t stream) const {
  check_nccl(nccl().all_gather(part, all, static_cast<size_t>(bytes), NcclType::kByte, comm_, stream), "ncclAllGather");
}

void DeviceCollectives::gather_parts(void* all, int64_t row_bytes, std::span<const int64_t> bounds,
                                     cudaStream_t stream) const {
  const auto bytes_of = [&](int rank) {
    return (bounds[static_cast<size_t>(rank) + 1] - bounds[static_cast<size_t>(rank)]) * row_bytes;
  };
  const auto rows_of = [&](int rank) { return static_cast<char*>(all) + bounds[static_cast<size_t>(rank)] * row_bytes; };
  check_nccl(nccl().group_start(), "ncclGroupStart");
  for (int other = 0; other < size_; ++other) {
    if (other == rank_) continue;
    if (bytes_of(rank_) > 0) send(rows_of(rank_), bytes_of(rank_), other, stream);
    if (bytes_of(other) > 0) receive(rows_of(other), bytes_of(other), other, stream);
  }
  check_nccl(nccl().group_end(), "ncclGroupEnd");
}

void DeviceCollectives::gather_first_bytes(std::span<const FirstBytes> arrays, cudaStream_t stream) const {
  check_nccl(nccl().group_start(), "ncclGroupStart");
  for (const FirstBytes& array : arrays)
    for (int other = 0; other < size_; ++other) {
      if (other == rank_ || array.bytes == 0) continue;
      send(static_cast<const char*>(array.all) + rank_ * array.stride, array.bytes, other, stream);
      receive(static_cast<char*>(array.all) + other * array.stride, array.bytes, other, stream);
    }
  check_nccl(nccl().group_end(), "ncclGroupEnd");
}

void DeviceCollectives::broadcast(void* data, int64_t bytes, int root, cudaStream_t stream) const {
  check_nccl(nccl().broadcast(data, data, static_cast<size_t>(bytes), NcclType::kByte, root, comm_, stream),
             "ncclBroadcast");
}

void DeviceCollectives::send(const void* data, int64_t bytes, int to, cudaStream_t stream) const {
  check_nccl(nccl().send(data, static_cast<size_t>(bytes), NcclType::kByte, to, comm_, stream), "ncclSend");
}

void DeviceCollectives::receive(void* data, int64_t bytes, int from, cudaStream_t stream) const {
  check_nccl(nccl().receive(data, static_cast<size_t>(bytes), NcclType::kByte, from, comm_, stream), "ncclRecv");
}

void DeviceCollectives::exchange(const void* parts, int64_t stride, int64_t bytes, void* out,
                                 cudaStream_t stream) const {
  check_nccl(nccl().group_start(), "ncclGroupStart");
  for (int other = 0; other < size_; ++other) {
    if (other == rank_) continue;
    send(static_cast<const char*>(parts) + other * stride, bytes, other, stream);
    receive(static_cast<char*>(out) + other * bytes, bytes, other, stream);
  }
  check_nccl(nccl().group_end(), "ncclGroupEnd");
}

void DeviceCollectives::abort() {
  std::lock_guard lock(mutex_);
  if (std::exchange(is_aborted_, true)) return;
  nccl().comm_abort(comm_);
}

Status DeviceCollectives::status() {
  std::lock_guard lock(mutex_);
  if (is_aborted_) return device_error("ranks have stopped");
  cuda::NcclResult result = cuda::kNcclSuccess;
  nccl().comm_get_async_error(comm_, &result);
  const bool is_fine = result == cuda::kNcclSuccess || result == cuda::kNcclInProgress;
  return is_fine ? Status() : device_error(std::string("NCCL: ") + nccl().get_error_string(result));
}

}  // namespace llmb
