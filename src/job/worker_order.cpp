#include "job/worker_order.h"

#include <algorithm>

#include "backend/cpu/kv_pool.h"
#include "backend/cpu/memory_limit.h"
#include "base/core_parts.h"
#include "base/packed_bytes.h"
#include "base/thread_pool.h"
#include "model/model_weights.h"

namespace llmb {

namespace {

constexpr double kMaxSilenceMs = 60000;

std::string packed(const ModelInventory& inventory) {
  PackedBytes bytes;
  for (const ModelFile& file : inventory) {
    bytes.add(file.name);
    bytes.add(file.path);
    bytes.add(file.identity.has_value());
    if (!file.identity) continue;
    const auto& [size, mtime_ns, ctime_ns, inode] = *file.identity;
    bytes.add(size), bytes.add(mtime_ns), bytes.add(ctime_ns), bytes.add(inode);
  }
  return bytes.bytes();
}

// The part of the memory that the weights of all leave. Where these are mapped from one file, more is left.
int32_t num_blocks_of(const WorkerOrder& order, const JobModel& model, const JobOptions& o) {
  LoadOptions load = o.load;
  load.max_num_seqs = o.scheduler.max_num_seqs;
  load.max_num_batched_tokens = o.scheduler.max_num_batched_tokens;
  load.max_model_len = model.files.max_model_len;
  load.groups_layers = true;
  const int64_t left = available_memory_bytes() - stored_weight_bytes(model.files.config);
  if (left <= 0) return 0;
  const Result<KvLayout> kv = plan_kv_layout(model.files.config, load, left / order.count);
  return kv.ok() ? kv->num_blocks : 0;
}

}  // namespace

double watchdog_ms(const JobOptions& options, DeviceKind device) {
  return 1000 * options.watchdog_timeout_s.value_or(device == DeviceKind::kCpu ? 3600 : 300);
}

WorkerOrder order_of(const JobOptions& o, const JobModel& model, int index, int count) {
  // Else each process takes the cores that it may run on.
  const bool divides_threads = o.load.num_threads > 0 || usable_cpu_count() < static_cast<int>(usable_cpus().size());
  const int num_threads = o.load.num_threads > 0 ? o.load.num_threads : usable_cpu_count();
  WorkerOrder order;
  order.device = model.device.identity;
  order.inventory = packed(model.inventory);
  order.dtype = o.load.dtype;
  order.arithmetic = o.load.cpu.arithmetic;
  order.max_num_seqs = o.scheduler.max_num_seqs;
  order.max_num_batched_tokens = o.scheduler.max_num_batched_tokens;
  order.block_size = o.load.block_size;
  if (divides_threads) order.num_threads = std::max(1, num_threads / count + (index < num_threads % count));
  order.kv_cache_bytes = o.load.kv_cache_bytes;
  order.swap_space_gib = o.load.swap_space_gib;
  order.watchdog_ms = watchdog_ms(o, model.device.kind);
  order.stage_rows = o.stage_rows;
  return order;
}

WorkerPoolOptions pool_options(const JobOptions& o, const JobModel& model,
                               const std::vector<std::string>& merged_adapters) {
  WorkerPoolOptions pool;
  pool.count = o.num_workers;
  pool.num_slots = o.scheduler.batching == BatchingMode::kNone ? 1 : o.scheduler.max_num_seqs;
  pool.starts_one_first = !o.load.cpu.weight_cache_dir.empty();
  pool.measures_limits = o.measures_machine;
  const double step_ms = watchdog_ms(o, model.device.kind);
  pool.silence_ms = step_ms > 0 ? std::min(step_ms, kMaxSilenceMs) : kMaxSilenceMs;
  pool.grace_ms = 1000 * o.grace_s;
  for (int i = 0; i < pool.count; ++i) {
    WorkerOrder order = order_of(o, model, i, pool.count);
    order.count = pool.count;
    if (o.num_prefill_workers > 0)
      order.role = i < o.num_prefill_workers ? WorkerRole::kPrefill : WorkerRole::kDecode;
    const bool has_own_memory = model.device.kind == DeviceKind::kCuda;
    if (!has_own_memory) order.kv_cache_bytes /= pool.count;
    order.swap_space_gib /= pool.count;
    order.merged_adapters = merged_adapters;
    pool.orders.push_back(std::move(order));
  }
  return pool;
}

Status follow_order(const WorkerOrder& order, const JobModel& model, JobOptions* o) {
  if (model.device.identity != order.device)
    return device_error("it finds the device " + model.device.identity + ", where the job has " + order.device);
  if (packed(model.inventory) != order.inventory)
    return data_loss("the model's files have changed since the job began; run again with files that stay as they are");
  o->load.dtype = order.dtype;
  o->load.cpu.arithmetic = order.arithmetic;
  o->scheduler.max_num_seqs = order.max_num_seqs;
  o->scheduler.max_num_batched_tokens = order.max_num_batched_tokens;
  o->load.block_size = order.block_size;
  o->load.num_threads = order.num_threads;
  o->load.kv_cache_bytes = order.kv_cache_bytes;
  o->load.swap_space_gib = order.swap_space_gib;
  o->load.adapter_bytes /= order.count;
  o->stage_rows = order.stage_rows;
  if (model.device.kind == DeviceKind::kCpu && order.kv_cache_bytes == 0 && order.count > 1)
    o->load.num_blocks_override = num_blocks_of(order, model, *o);
  return {};
}

}  // namespace llmb
