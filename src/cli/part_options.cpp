#include "cli/part_options.h"

#include <map>
#include <string>
#include <utility>

#include "engine/request_preparer.h"

namespace llmb {

LoadOptions load_options(const Options& o, int32_t max_model_len) {
  LoadOptions load;
  load.model_dir = o.model_dir;
  load.load_format = o.load_format == "dummy" ? LoadFormat::kDummy : LoadFormat::kAuto;
  load.dummy_seed = o.seed;
  load.block_size = o.block_size;
  load.kv_cache_bytes = o.kv_cache_bytes.value_or(0);
  load.num_blocks_override = o.num_blocks.value_or(0);
  load.max_num_seqs = o.max_num_seqs;
  load.max_num_batched_tokens = o.max_num_batched_tokens;
  load.max_model_len = max_model_len;
  load.num_threads = o.threads;
  static const std::map<std::string, DType> kDTypes = {
      {"float32", DType::kF32}, {"bfloat16", DType::kBF16}, {"float16", DType::kF16}, {"int8", DType::kI8}};
  if (const auto dtype = kDTypes.find(o.dtype); dtype != kDTypes.end()) load.dtype = dtype->second;
  if (const auto dtype = kDTypes.find(o.kv_cache_dtype); dtype != kDTypes.end()) load.kv_cache_dtype = dtype->second;
  load.cpu.quantization = o.quantization;
  load.cpu.arithmetic = arithmetic_by_name(o.arithmetic);
  load.cpu.weight_cache_dir = o.weight_cache;
  load.cuda.gpu_memory_utilization = o.gpu_memory_utilization;
  load.cuda.deterministic = o.deterministic;
  return load;
}

SchedulerConfig scheduler_config(const Options& o, const BackendInfo& backend, int32_t max_model_len) {
  SchedulerConfig config;
  config.batching = o.batching;
  config.max_num_seqs = o.max_num_seqs;
  config.max_num_batched_tokens = o.max_num_batched_tokens;
  config.block_size = backend.kv.block_size;
  config.num_blocks = backend.kv.num_blocks;
  config.max_model_len = max_model_len;
  config.batch_window_ms = o.batch_window_ms;
  return config;
}

MachineLimits machine_limits(const Options& o, Backend& backend) {
  MachineLimits limits;
  if (!o.peak_flops || !o.peak_bandwidth) limits = backend.measure_limits();
  if (o.peak_flops) limits.flops_per_s = *o.peak_flops;
  if (o.peak_bandwidth) limits.bytes_per_s = *o.peak_bandwidth;
  return limits;
}

std::unique_ptr<RequestIntake> make_intake(const Options& o, const ModelFiles& model,
                                           std::unique_ptr<LineReader> reader, std::shared_ptr<const Clock> clock,
                                           const CompletedLines* completed) {
  RequestLimits limits;
  limits.vocab_size = model.config.vocab_size;
  limits.prompt = prompt_bound(*model.context);
  IntakeOptions options;
  options.seed = o.seed;
  options.request_rate = o.request_rate;
  options.completed = completed;
  return std::make_unique<RequestIntake>(std::move(reader),
                                         std::make_unique<RequestParser>(model.default_params, limits), model.context,
                                         std::move(clock), options);
}

}  // namespace llmb
