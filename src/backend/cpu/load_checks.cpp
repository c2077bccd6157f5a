#include "backend/cpu/load_checks.h"

#include <algorithm>
#include <string>

#include "backend/cpu/kv_pool.h"
#include "backend/cpu/memory_limit.h"
#include "backend/cpu/open_groups.h"
#include "base/log.h"
#include "base/thread_pool.h"
#include "core/plans_in_flight.h"
#include "kernels/cpu/machine_limits.h"

namespace llmb {

Status check_dtype(const ModelConfig& config, const LoadOptions& options) {
  if (options.cpu.quantization == Quantization::kFp8)
    return unsupported("quantization fp8 is for GPUs only; on the CPU take int8, or use --device cuda");
  const DType dtype = options.dtype.value_or(DType::kF32);
  if (dtype == DType::kF32) return {};
  const std::string name = std::string("dtype ") + dtype_name(dtype) + ": ";
  if (dtype != DType::kBF16) return unsupported(name + "the CPU computes in float32, or bfloat16 over such weights");
  if (options.cpu.quantization != Quantization::kNone)
    return unsupported(name + "not with quantization " + quantization_name(options.cpu.quantization) +
                       ", which says what products take; leave one of the two out");
  if (config.dtype == DType::kBF16) return {};
  return unsupported(name + "on the CPU only over weights stored as bfloat16; these are " + dtype_name(config.dtype) +
                     ", leave it out");
}

Status check_kv_dtype(const ModelConfig& config, const LoadOptions& options) {
  if (options.kv_cache_dtype == DType::kF16)
    return unsupported("kv-cache-dtype float16: on the CPU it is float32, bfloat16, int8, fp8 or int4");
  return options.kv_cache_dtype == DType::kI4 ? check_int4_kv(config, options) : Status();
}

Status check_block_activations(const ModelConfig& config, const LoadOptions& options,
                               const WeightFiles* files) {
  if (!options.cpu.rounds_block_activations) return {};
  const std::string name = "gguf-activations int8: ";
  if (files == nullptr || !files->is_gguf() || !config.is_dequantised)
    return unsupported(name + "the model has no weights in GGUF's blocks of few bits; leave it out");
  if (options.cpu.quantization == Quantization::kNone) return {};
  return unsupported(name + "not with quantization " + quantization_name(options.cpu.quantization) +
                     ", which rounds these weights anew; leave one of the two out");
}

int num_threads_for(int wanted) {
  const int num_cores = usable_cpu_count(), most = std::max(16, 4 * num_cores);
  if (wanted <= 0) return num_cores;
  if (wanted <= most) return wanted;
  log_warning("--threads " + std::to_string(wanted) + ": " + std::to_string(num_cores) + " cores are usable; " +
              std::to_string(most) + " threads are started (the results are the same)");
  return most;
}

Result<KvLayout> plan_memory(const ModelConfig& config, const LoadOptions& options, int64_t weights) {
  const int64_t available = available_memory_bytes();
  if (available > 0 && weights >= available)
    return resource_exhausted("the weights need " + std::to_string(weights >> 20) + " MiB, but only " +
                              std::to_string(available >> 20) + " MiB of memory are available");
  int64_t states =
      options.max_num_seqs * state_layout(config, options.max_num_seqs, max_state_drafts(options)).slot_bytes();
  if (options.kv_cache_dtype == DType::kI4) {
    const KvLayout kv = make_kv_layout(config, options.block_size, DType::kI4, layer_groups(config, options));
    states += options.max_num_seqs * OpenGroups::slot_bytes(kv, options);
  }
  if (available > 0 && states >= (available - weights) / 2)
    return resource_exhausted("the states of " + std::to_string(options.max_num_seqs) + " sequences need " +
                              std::to_string(states >> 20) + " MiB, but only " + std::to_string(available >> 20) +
                              " MiB of memory are available; lower --max-num-seqs");
  return plan_kv_layout(config, options, available > 0 ? available - weights - states : 0);
}

StateLayout plan_states(const ModelConfig& own, const LoadOptions& options, int64_t used, int32_t num_ranks) {
  const int64_t available = available_memory_bytes();
  const int64_t most =
      available > 0 ? std::clamp<int64_t>((available - used) / 4, 0, kSnapshotBytes) : kSnapshotBytes;
  return state_layout(own, options.max_num_seqs, max_state_drafts(options), most / num_ranks);
}

void describe(const ModelConfig& config, const LoadOptions& options, int num_threads, int32_t num_stages,
              BackendInfo* info) {
  const bool is_int4 = options.kv_cache_dtype == DType::kI4;
  info->kind = DeviceKind::kCpu;
  info->device = "cpu (" + cpu::simd_target_name() + ", " + std::to_string(num_threads) +
                 (num_threads == 1 ? " thread)" : " threads)");
  info->max_plans_in_flight = plans_in_flight_of(num_stages);
  info->max_drafts_per_group = config.has_states() ? max_state_drafts(options)
                               : is_int4           ? std::min(options.max_num_drafts, kMaxOpenDrafts)
                                                   : options.max_num_drafts;
  info->max_best_tokens = INT32_MAX;
  info->verifies_trees = options.verifies_trees && !config.has_states() && !is_int4;
  info->copies_blocks = info->scores_prompts = true;
  info->runs_first_layers = !is_int4, info->has_mtp = config.mtp.is_used;
  info->draft_block_bytes = options.draft_block_bytes, info->lent_tokens = options.lent_tokens;
}

}  // namespace llmb
