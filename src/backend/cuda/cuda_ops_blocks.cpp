// Blocks as wholes: copied, swapped to the host's pool, and moved to another backend and from it.
#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "backend/cuda/cuda_ops.h"
#include "backend/cuda/cuda_ranks.h"
#include "backend/cuda/memory_plan.h"
#include "base/log.h"
#include "kernels/cuda/block_copy.h"

namespace llmb {

using cuda::check;

// A part of both pools: arrays of blocks, one behind the other.
struct CudaOps::Region {
  int64_t begin, host_begin;  // bytes from the pools' begins
  int64_t num_arrays, block_bytes;
};

// Bytes that the host's pool is to hold once what is queued before has run.
struct CudaOps::HostWrite {
  CudaOps& ops;
  std::vector<BlockId> blocks;
  int32_t state;
  std::vector<uint8_t> bytes;  // as read_blocks() gives them
};

template <typename Body>
void CudaOps::for_each_region(const Body& body) const {
  body(Region{0, 0, planes_.num_arrays(), planes_.block_bytes()});
  if (has_scaled_kv())
    body(Region{planes_.bytes(num_blocks_), planes_.bytes(num_host_blocks_), planes_.num_arrays(), scales_bytes()});
  if (config_.mtp.is_used)
    body(Region{hidden_begin(num_blocks_), hidden_begin(num_host_blocks_), 1, hidden_block_bytes()});
}

void CudaOps::add_host_pool(const LoadOptions& load, BackendInfo* info) {
  const KvLayout own = kv_layout(num_blocks_);
  int32_t num_blocks = std::min(num_host_blocks_of_rank(own, load), options_.limits.max_num_host_blocks);
  if (states_ && !load.receives_prompts) num_blocks = 0;
  for_each_region([&](const Region& r) { info->block_bytes += r.num_arrays * r.block_bytes; });
  if (states_) info->state_bytes = states_->slot_bytes();
  try {
    host_pool_ = cuda::PinnedMemory(own.bytes_per_block() * num_blocks);
    if (states_ && num_blocks > 0) host_state_ = cuda::PinnedMemory(states_->slot_bytes());
  } catch (const cuda::CudaError& e) {
    log_warning(std::string("no pinned memory for swapped blocks, so preempted requests are computed again (") +
                e.what() + "); lower --swap-space");
    num_blocks = 0;
  }
  if (all_ranks_ != nullptr) num_blocks = all_ranks_->least(num_blocks);
  if (num_blocks == 0) return;
  info->num_host_blocks = num_host_blocks_ = num_blocks;
  info->swap_bytes_per_s = measure_swap_bytes_per_s();
}

// 0: not known.
double CudaOps::measure_swap_bytes_per_s() {
  const int64_t bytes = std::min({int64_t{16} << 20, host_pool_.bytes(), kv_pool_.bytes()});
  const cuda::Event begin(cudaEventDefault), end(cudaEventDefault);
  for (int round = 0; round < 2; ++round) {  // the first one is slower
    begin.record(stream_);
    check(cudaMemcpyAsync(host_pool_.data(), kv_pool_.data(), bytes, cudaMemcpyDeviceToHost, stream_),
                "cudaMemcpyAsync");
    end.record(stream_);
  }
  end.synchronize();
  float ms = 0;
  check(cudaEventElapsedTime(&ms, begin.get(), end.get()), "cudaEventElapsedTime");
  return ms > 0 ? static_cast<double>(bytes) * 1000 / static_cast<double>(ms) : 0;
}

void CudaOps::copy_blocks(const StepPlan& plan) {
  if (states_) states_->copy_slots(plan);
  const cuda::BlockPair *copies = step_.copies, *out = copies + step_.num_copies, *in = out + step_.num_swaps_out;
  for_each_region([&](const Region& r) {
    const auto num_planes = static_cast<int32_t>(r.num_arrays);
    const cuda::BlockPool pool{kv_pool_.data<uint8_t>() + r.begin, num_blocks_ * r.block_bytes, r.block_bytes};
    const cuda::BlockPool host{host_pool_.data<uint8_t>() + r.host_begin, num_host_blocks_ * r.block_bytes,
                               r.block_bytes, /*on_host=*/true};
    cuda::block_copy(pool, host, num_planes, r.block_bytes, out, step_.num_swaps_out, stream_);
    cuda::block_copy(pool, pool, num_planes, r.block_bytes, copies, step_.num_copies, stream_);
    cuda::block_copy(host, pool, num_planes, r.block_bytes, in, step_.num_swaps_in, stream_);
  });
}

// Beside what is queued, in a stream of their own: no plan in flight writes to them.
bool CudaOps::read_blocks(std::span<const BlockId> blocks, int32_t state, uint8_t* bytes) {
  if (!block_reads_) block_reads_.emplace();
  for (const BlockId block : blocks)
    for_each_region([&](const Region& r) {
      const uint8_t* from = kv_pool_.data<const uint8_t>() + r.begin + block * r.block_bytes;
      for (int64_t i = 0; i < r.num_arrays; ++i, from += num_blocks_ * r.block_bytes, bytes += r.block_bytes)
        check(cudaMemcpyAsync(bytes, from, static_cast<size_t>(r.block_bytes), cudaMemcpyDeviceToHost,
                                    block_reads_->get()),
                    "cudaMemcpyAsync");
    });
  if (state >= 0) states_->read_slot(state, bytes, block_reads_->get());
  block_reads_->synchronize();
  return true;
}

// A state comes by way of memory that the next one takes once this one is copied from there.
void CudaOps::write_host_blocks(std::span<const BlockId> blocks, int32_t state, std::span<const uint8_t> bytes) {
  auto write = std::make_unique<HostWrite>(*this, std::vector(blocks.begin(), blocks.end()), state,
                                           std::vector(bytes.begin(), bytes.end()));
  const auto run = [](void* data) {
    const std::unique_ptr<HostWrite> owned(static_cast<HostWrite*>(data));
    owned->ops.write_now(*owned);
  };
  check(cudaLaunchHostFunc(main_stream_, run, write.get()), "cudaLaunchHostFunc");
  static_cast<void>(write.release());  // run() frees it
  if (state >= 0) states_->write_slot(state, host_state_.data<const uint8_t>());
}

void CudaOps::write_now(const HostWrite& write) {
  const uint8_t* bytes = write.bytes.data();
  for (const BlockId block : write.blocks)
    for_each_region([&](const Region& r) {
      uint8_t* to = host_pool_.data<uint8_t>() + r.host_begin + block * r.block_bytes;
      for (int64_t i = 0; i < r.num_arrays; ++i, to += num_host_blocks_ * r.block_bytes, bytes += r.block_bytes)
        std::memcpy(to, bytes, static_cast<size_t>(r.block_bytes));
    });
  if (write.state >= 0) std::memcpy(host_state_.data(), bytes, static_cast<size_t>(host_state_.bytes()));
}

}  // namespace llmb
