// The narrow interface between the engine and whatever computes: CPU, CUDA, or a test double.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "base/status.h"
#include "core/adapter_store.h"
#include "core/arithmetic.h"
#include "core/kv_layout.h"
#include "core/model_config.h"
#include "core/pooling.h"
#include "core/types.h"
#include "core/state_layout.h"
#include "core/step_plan.h"

namespace llmb {

class AdapterLibrary;

enum class LoadFormat { kAuto, kDummy };

enum class DeviceKind { kCpu, kCuda, kLedger };

// Members that every backend reads, and those of one device.
struct LoadOptions {
  std::string model_dir;
  LoadFormat load_format = LoadFormat::kAuto;  // kDummy: seeded random normal weights, only config.json is read
  uint64_t dummy_seed = 0;
  int32_t block_size = 16;
  int64_t kv_cache_bytes = 0;       // 0: chosen by the backend for max_num_seqs sequences of max_model_len
  int32_t num_blocks_override = 0;  // > 0: this many blocks, whatever kv_cache_bytes says
  // Keys and values of a second model that drafts: beside the pool, so many bytes for the tokens of each block, or in
  // blocks that the pool lends, each for so many of its tokens (core/lent_blocks.h).
  int64_t draft_block_bytes = 0;
  int32_t lent_tokens = 0;
  double swap_space_gib = 0;        // host memory for blocks of preempted sequences, at most
  bool receives_prompts = false;    // computed elsewhere, by way of the host's pool: one is there beside states, too
  int32_t max_num_seqs = 0;
  int32_t max_num_batched_tokens = 0;
  int32_t max_num_drafts = 0;  // draft tokens that a step holds at most; 0: none
  int32_t max_drafts_per_group = INT32_MAX;  // of one sequence, where it has a state with room for them
  bool verifies_trees = true;  // of drafts; else chains only, for which the CPU keeps no blocks
  int32_t max_model_len = 0;
  std::optional<Pooling> pooling;  // steps give vectors in place of tokens: 0 for each group, and StepOutput::hidden
  int32_t drafting_layers = 0;          // of the model, that draft (StepPlan::num_layers); 0: none
  std::shared_ptr<AdapterLibrary> adapters;  // that plans name by their ids; null: none
  int64_t adapter_bytes = int64_t{1} << 30;  // that adapters may take, beside one (AdapterPool)
  std::string heads_dir;                // of heads that draft behind the last layer (model/medusa_heads.h); "": none
  std::string eagle_dir;                // of a layer that drafts behind the last one (model/eagle_layer.h); "": none
  bool groups_layers = false;           // by their windows (core/layer_groups.h); else all share block tables
  int32_t num_threads = 0;              // of the host; 0: all usable cores
  std::optional<DType> dtype;           // of activations; none: what the backend thinks best
  std::optional<DType> kv_cache_dtype;  // none: config.cpu_kv_dtype(quantization) on the CPU, dtype on a GPU

  struct Cpu {
    Quantization quantization = Quantization::kNone;  // of weights, while they load
    bool rounds_block_activations = false;            // to int8, by blocks, over weights in blocks of few bits
    std::optional<Arithmetic> arithmetic;             // none: the fastest
    std::string weight_cache_dir;                     // packed weights are kept there and mapped by later runs; "": not
    bool runs_in_wait = false;  // in the caller's thread, who has nothing else to do: small steps take less time
  } cpu;

  struct Cuda {
    double gpu_memory_utilization = 0.92;  // share of the memory that weights, activations and KV pool may take
    bool deterministic = false;            // a result depends neither on what else runs nor on how prompts are chunked
    int64_t draft_bytes = 0;  // left for a second model that drafts, but for its keys and values
  } cuda;

  // Rows that a step samples at most: the last one of each sequence, and its drafts.
  int32_t max_num_samples() const { return std::min(max_num_seqs, max_num_batched_tokens) + max_num_drafts; }
};

struct BackendInfo {
  DeviceKind kind = DeviceKind::kCpu;
  std::string device;                // for people: "cpu (avx512, 2 threads)"
  KvLayout kv;                       // num_blocks is the pool that the scheduler may hand out
  int64_t weight_bytes = 0;          // resident
  int32_t max_plans_in_flight = 1;   // 1, 2, or as many as a pipeline has stages (core/plans_in_flight.h)
  int32_t max_drafts_per_group = 0;  // that one group verifies; 0: none
  bool verifies_trees = false;       // else drafts are chains
  bool copies_blocks = false;
  bool runs_first_layers = false;       // plans may have num_layers
  bool has_mtp = false;                 // plans may have is_mtp
  int32_t num_heads = 0;                // that draft behind the last layer: plans may have hidden_rows; 0: none
  bool scores_prompts = false;          // plans may have groups in mode kScore
  int32_t max_best_tokens = 0;          // that a group in mode kBest gives
  int32_t num_host_blocks = 0;          // of the pool that plans swap blocks to
  double swap_bytes_per_s = 0;          // measured, of one way; 0: not known
  int32_t num_state_slots = 0;          // of layers with a recurrent state; 0: the model has none, nor entries a slot
  int32_t num_snapshots = 0;            // of these slots, that a prefix cache may keep
  // > 0: slots hold what an int4 KV cache keeps beside its blocks, of positions since the last multiple of this. So
  // behind such a multiple any slot will do.
  int32_t state_period = 0;
  int32_t max_idle_blocks = INT32_MAX;  // that a prefix cache should keep: more takes memory that others may need
  int64_t block_bytes = 0;              // that read_blocks() gives of each; 0: it does not
  int64_t state_bytes = 0;              // that it gives of a state slot; 0: slots are not read
  int64_t draft_block_bytes = 0;        // as it was loaded with
  int32_t lent_tokens = 0;              // likewise
  double load_ms = 0;
};

// The hardware's limits, for MFU and MBU.
struct MachineLimits {
  double flops_per_s = 0;  // of the arithmetic that products with weights use: int8 operations where they are int8
  double bytes_per_s = 0;
};

// Drafts of a sequence that its state has room for.
inline int32_t max_state_drafts(const LoadOptions& options) {
  return std::min({options.max_num_drafts, options.max_drafts_per_group, kMaxStateDrafts});
}

inline LayerGroups layer_groups(const ModelConfig& config, const LoadOptions& options) {
  return group_layers(config, options.groups_layers ? options.max_model_len : 0);
}

// Blocks that a sequence of max_model_len tokens holds at most.
inline int64_t max_blocks_per_seq(const KvLayout& kv, const LoadOptions& options) {
  return max_live_blocks(kv.groups.windows, ceil_div(options.max_model_len, kv.block_size),
                         options.max_num_batched_tokens, kv.block_size);
}

// Blocks that max_num_seqs sequences of max_model_len hold at most, with what a second model has in lent ones.
inline int64_t most_blocks(const KvLayout& kv, const LoadOptions& options) {
  const int64_t num_lent = options.lent_tokens > 0 ? ceil_div(options.max_model_len, options.lent_tokens) : 0;
  return options.max_num_seqs * (max_blocks_per_seq(kv, options) + num_lent);
}

// Blocks that options.swap_space_gib holds, and no more than the pool or max_num_seqs sequences of max_model_len have:
// more than these run and are preempted only where newcomers go before those that were preempted.
inline int32_t num_host_blocks(const KvLayout& kv, const LoadOptions& options) {
  const int64_t of_sequences =
      std::min<int64_t>(options.max_num_seqs * max_blocks_per_seq(kv, options), INT32_MAX / kv.block_size);
  const double bytes = options.swap_space_gib * (1 << 30);
  return static_cast<int32_t>(std::min(static_cast<double>(std::max<int64_t>(kv.num_blocks, of_sequences)),
                                       bytes / static_cast<double>(std::max<int64_t>(kv.bytes_per_block(), 1))));
}

// One thread drives a backend: load() once, then submit() and wait(). Invariants:
//  1. At most info().max_plans_in_flight plans are in flight: submitted, their wait() not yet called. A plan must stay
//     unchanged until its wait() returns.
//  2. Plans run one after the other, in order: what a plan writes into the KV pool, every later one sees and may
//     overwrite. So a block that the scheduler has freed may be given away at once, even while a plan in flight still
//     reads or writes it for its last owner: the plan that uses it anew runs later.
//  3. An error of submit() leaves what was in flight as it was; after an error of wait() nothing is in flight.
class Backend {
 public:
  virtual ~Backend() = default;

  virtual Status load(const ModelConfig& config, const LoadOptions& options) = 0;
  virtual const BackendInfo& info() const = 0;  // valid after load()

  // REQUIRES: validate_step_plan(plan, info().kv.num_blocks, the newest plan in flight, info().num_host_blocks).ok(), and fewer than
  // max_plans_in_flight in flight.
  virtual Status submit(const StepPlan& plan) = 0;
  // Fills `output` for the oldest plan in flight.
  virtual Status wait(StepOutput* output) = 0;

  // Copies blocks of the pool, and a state slot where state >= 0, as bytes that another backend of the same model and
  // layout understands. False: another rank has failed, which the next plan says. REQUIRES: info().block_bytes > 0 or
  // there are no blocks; likewise state_bytes and the slot; no plan in flight writes to them
  virtual bool read_blocks(std::span<const BlockId> /*blocks*/, int32_t /*state*/,
                           std::span<uint8_t> /*bytes*/) {  // [blocks, info().block_bytes], then [state_bytes]
    return false;
  }
  // Lets blocks of the host's pool, and a state slot, hold such bytes, in order with plans: those in flight see what they
  // held before, the next one sees these. REQUIRES: as read_blocks(); one of the pool's blocks each
  virtual void write_host_blocks(std::span<const BlockId> /*blocks*/, int32_t /*state*/,
                                 std::span<const uint8_t> /*bytes*/) {}  // as read_blocks() gives them

  // After load(). Plans should name adapters only while they are wanted and ready: a step waits for others. null: has none
  virtual AdapterStore* adapters() { return nullptr; }

  // Measures briefly (~0.2 s). {0, 0} where it means nothing.
  virtual MachineLimits measure_limits() { return {}; }
};

}  // namespace llmb
