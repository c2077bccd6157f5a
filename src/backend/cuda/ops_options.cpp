#include "backend/cuda/ops_options.h"

#include <algorithm>
#include <string>

#include "backend/cuda/memory_plan.h"
#include "backend/cuda/step_graphs.h"
#include "backend/ranks/step_outputs.h"
#include "core/drafted_tokens.h"
#include "core/score_scales.h"

namespace llmb {

namespace {

// 256 rows of the largest vocabularies read the LM head once.
constexpr int64_t kMaxLogitBytes = int64_t{320} << 20;
// Table sizes that most steps fit: these are sampled at once and can be replayed; larger ones are sampled in parts.
constexpr int64_t kBiasesPerSeq = 64;
constexpr int64_t kMaxPenalties = int64_t{1} << 20;

}  // namespace

int64_t max_logit_rows(const ModelConfig& config, const LoadOptions& options) {
  if (options.pooling) return 1;  // that nobody uses
  return std::clamp<int64_t>(kMaxLogitBytes / (int64_t{config.vocab_size} * 4), 1, options.max_num_samples());
}

CudaOpsOptions ops_options(const ModelConfig& config, const ModelConfig& own, const Range& own_layers,
                           int32_t max_plans_in_flight, const LoadOptions& options, DType dtype, DType kv_dtype,
                           int32_t num_slices) {
  CudaOpsOptions o;
  o.dtype = dtype;
  o.kv_dtype = kv_dtype;
  o.quantization = options.cpu.quantization;
  o.vocab_size = config.vocab_size;
  o.limits.max_num_tokens = options.max_num_batched_tokens;
  o.limits.max_num_seqs = options.max_num_seqs;
  o.limits.max_num_samples = options.max_num_samples();
  o.limits.max_blocks_per_seq = static_cast<int32_t>(ceil_div(options.max_model_len, options.block_size)) * num_slices;
  o.limits.max_plans_in_flight = max_plans_in_flight;
  o.groups = layer_groups(config, options);
  if (own_layers.count() < config.num_hidden_layers)
    o.groups = groups_of_layers(o.groups, own_layers.begin, own_layers.begin + own.num_used_layers());
  o.limits.num_layer_groups = o.groups.num_groups();
  o.block_size = options.block_size / num_slices;
  o.num_slices = num_slices;
  o.limits.max_num_host_blocks = max_num_host_blocks(make_kv_layout(own, o.block_size, kv_dtype, o.groups), options);
  o.limits.has_states = config.has_states();
  o.limits.narrows = !config.has_own_kv(config.num_hidden_layers - 1);
  o.limits.mask_words = options.pooling ? 0 : (config.vocab_size + 31) / 32;
  // A row's biases are of different tokens. So are its penalties, but for one token that is not known yet.
  const int64_t max_rows = options.max_num_samples();
  const int64_t biases_of_row = config.vocab_size;
  const int64_t penalties_of_row = std::min<int64_t>(options.max_model_len, int64_t{config.vocab_size} + 1);
  o.limits.max_num_biases = std::clamp(kBiasesPerSeq * max_rows, biases_of_row, biases_of_row * max_rows);
  o.limits.max_num_penalties = std::clamp(kMaxPenalties, penalties_of_row, penalties_of_row * max_rows);
  o.max_position = options.max_model_len;
  o.score_scales = score_scales(config, own, own_layers.begin);
  o.max_logit_rows = max_logit_rows(config, options);
  o.num_drafted = kMaxPlansInFlight * options.max_num_drafts * (options.heads_dir.empty() ? 1 : kBestOfHead);
  o.deterministic = options.cuda.deterministic;
  return o;
}

KvLayout kv_of_all_ranks(const ModelConfig& config, const LoadOptions& options, DType kv_dtype, int32_t num_blocks) {
  KvLayout kv = make_kv_layout(config, options.block_size, kv_dtype, layer_groups(config, options));
  kv.num_blocks = num_blocks;
  return kv;
}

Status check_device_plan(const StepPlan& plan, const StepLimits& limits, bool is_early_stage) {
  if (!limits.hold_copies_of(plan)) return internal_error("plan copies too many blocks");
  if (is_early_stage && follows_another(plan)) return internal_error("a plan of stages follows another one");
  for (const SampleRow& row : plan.sample_rows)
    if (row.num_logprobs > kMaxBestTokens) return internal_error("plan wants too many log probabilities");
  return {};
}

void describe(const ModelConfig& config, const LoadOptions& options, const CudaDevice& device, DType dtype,
              BackendInfo* info) {
  const Quantization quantization = options.cpu.quantization;
  const std::string weights = std::string(", ") + quantization_name(quantization) + " weights";
  info->kind = DeviceKind::kCuda;
  info->device = "cuda:" + std::to_string(device.index) + " (" + device.name + ", " + dtype_name(dtype) +
                 (quantization != Quantization::kNone ? weights : std::string()) +
                 (options.cuda.deterministic ? ", deterministic)" : ")");
  info->max_drafts_per_group = config.has_states() ? max_state_drafts(options) : num_recorded_drafts(options);
  info->max_best_tokens = kMaxBestTokens;
  info->verifies_trees = !config.has_states();
  info->copies_blocks = info->runs_first_layers = info->scores_prompts = true;
  info->has_mtp = config.mtp.is_used;
  info->draft_block_bytes = options.draft_block_bytes, info->lent_tokens = options.lent_tokens;
}

}  // namespace llmb
