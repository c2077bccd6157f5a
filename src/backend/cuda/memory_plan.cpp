#include "backend/cuda/memory_plan.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <string>

#include "backend/cuda/cuda_states.h"
#include "kernels/cuda/error.h"
#include "model/model_weights.h"

namespace llmb {

namespace {

std::string mib(int64_t bytes) { return std::to_string(bytes >> 20) + " MiB"; }

}  // namespace

int64_t free_device_bytes() {
  size_t free_bytes = 0, total_bytes = 0;
  cuda::check(cudaMemGetInfo(&free_bytes, &total_bytes), "cudaMemGetInfo");
  return static_cast<int64_t>(free_bytes);
}

Status check_weights_fit(const ModelConfig& config, int64_t least_bits) {
  const int64_t needed = stored_weight_bytes(config) / dtype_bytes(config.dtype) * least_bits / 8;
  const int64_t available = free_device_bytes();
  if (needed < available) return {};
  return resource_exhausted("the weights need " + mib(needed) + " of GPU memory, but only " + mib(available) +
                            " are free; stop other programs that use the GPU, or use --device cpu");
}

int32_t num_host_blocks_of_rank(const KvLayout& own, const LoadOptions& options) {
  LoadOptions of_all = options;
  of_all.swap_space_gib *= options.block_size / own.block_size;
  return num_host_blocks(as_planned(own, options), of_all);
}

int32_t max_num_host_blocks(KvLayout own, const LoadOptions& options) {
  const int64_t most = options.max_num_seqs * max_blocks_per_seq(as_planned(own, options), options);
  own.num_blocks = static_cast<int32_t>(std::min<int64_t>(most, INT32_MAX / options.block_size));
  return num_host_blocks_of_rank(own, options);
}

void keep_snapshots(int32_t count, int32_t max_num_seqs, bool alternates, StateLayout* layout) {
  if (alternates) return layout->keep_snapshots(count, max_num_seqs);
  layout->num_snapshots = count;
  layout->num_slots = 2 * max_num_seqs + count;
}

Result<StateLayout> plan_states(const ModelConfig& config, const LoadOptions& options, bool alternates) {
  const int64_t available = free_device_bytes();
  StateLayout layout = state_layout(config, options.max_num_seqs, max_state_drafts(options),
                                    std::min(available / 4, kSnapshotBytes));
  keep_snapshots(layout.num_snapshots, options.max_num_seqs, alternates, &layout);
  const int64_t bytes = CudaStates::pool_bytes(layout);
  if (bytes < available / 2) return layout;
  return resource_exhausted("the states of " + std::to_string(options.max_num_seqs) + " sequences need " + mib(bytes) +
                            " in " + std::to_string(layout.num_slots) + " slots, but only " + mib(available) +
                            " of GPU memory are free; lower --max-num-seqs");
}

Result<int32_t> plan_num_blocks(const LoadOptions& options, const KvLayout& kv, const DeviceMemoryUse& use) {
  const int64_t usable =
      static_cast<int64_t>(options.cuda.gpu_memory_utilization * static_cast<double>(use.total_bytes)) -
      (use.total_bytes - use.free_bytes) - use.reserved_bytes - options.cuda.draft_bytes;
  const int64_t own_bytes = std::max<int64_t>(kv.bytes_per_block(), 1);  // a stage may have no layer that attends
  const int64_t bytes_per_block = own_bytes + options.draft_block_bytes + use.beside_block_bytes;
  const int64_t blocks_per_seq = max_blocks_per_seq(as_planned(kv, options), options);
  int64_t num_blocks = options.num_blocks_override;
  if (num_blocks == 0) {
    const int64_t budget = options.kv_cache_bytes > 0 ? options.kv_cache_bytes : std::max<int64_t>(usable, 0);
    const int64_t bytes_in_budget = options.kv_cache_bytes > 0 ? own_bytes + options.draft_block_bytes : bytes_per_block;
    num_blocks = std::min(budget / bytes_in_budget, most_blocks(as_planned(kv, options), options));
    if (num_blocks < blocks_per_seq)
      return resource_exhausted(
          "the KV cache of " + mib(budget) + " cannot hold one sequence of max_model_len " +
          std::to_string(options.max_model_len) + ", which needs " + mib(blocks_per_seq * bytes_per_block) +
          "; lower --max-model-len, or raise --gpu-memory-utilization if the GPU has more to give");
  }
  num_blocks = std::min<int64_t>(num_blocks, INT32_MAX / std::max(options.block_size, options.lent_tokens));  // slots are 32-bit
  // A pool that was asked for by number may use all free memory.
  const int64_t most = options.num_blocks_override > 0 || options.kv_cache_bytes > 0
                           ? use.free_bytes - use.reserved_bytes - options.cuda.draft_bytes
                           : std::max<int64_t>(usable, 0);
  if (num_blocks > most / bytes_per_block)
    return resource_exhausted("the KV cache needs " + mib(num_blocks * bytes_per_block) + ", but only " +
                              mib(std::max<int64_t>(most, 0)) + " of GPU memory are left for it");
  return static_cast<int32_t>(num_blocks);
}

}  // namespace llmb
