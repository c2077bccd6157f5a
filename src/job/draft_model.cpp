#include "job/draft_model.h"

#include <algorithm>
#include <utility>

#include "backend/cpu/cpu_backend.h"
#include "backend/draft_feed.h"
#include "core/rank_part.h"
#include "model/config_loader.h"
#include "model/eagle_layer.h"
#include "model/medusa_heads.h"
#include "model/model_location.h"
#include "model/model_weights.h"
#include "model/weight_files.h"
#include "tokenizer/tokenizer.h"

namespace llmb {

namespace {

bool are_same(const Tokenizer& a, const Tokenizer& b) {
  if (a.vocab_size() != b.vocab_size()) return false;
  for (TokenId id = 0; id < a.vocab_size(); ++id)
    if (a.token_piece(id) != b.token_piece(id)) return false;
  return true;
}

// A few megabytes of weights are read in less time than it takes to share them among threads.
constexpr int64_t kMaxParamsOfOneThread = 10'000'000;

// Activations, logits and recorded steps of a small model. How many they are exactly is seen only when it has loaded.
constexpr int64_t kGpuWorkspaceBytes = int64_t{1} << 30;

// The process has one arithmetic, the target's: its bytes depend on it.
void choose_arithmetic(const ModelConfig& config, const JobModel& target, const LoadOptions& target_load,
                       LoadOptions* load) {
  const auto chosen = choose_cpu_arithmetic(target.files.config, target_load.cpu.quantization, target_load.dtype,
                                            target_load.cpu.arithmetic);
  const bool takes_it = !is_bf16_arithmetic(chosen->arithmetic) || config.dtype == DType::kBF16;
  if (takes_it) load->cpu.arithmetic = chosen->arithmetic;
  else load->dtype = DType::kF32;
}

LoadOptions load_options(const std::string& dir, const ModelConfig& config, const JobModel& target,
                         const LoadOptions& target_load) {
  LoadOptions load;
  load.model_dir = dir;
  const bool is_divided = target_load.block_size % kSliceTokens == 0;  // among ranks, or as large as one GPU's may be
  load.block_size = is_divided ? kSliceTokens : target_load.block_size;
  load.max_num_seqs = target_load.max_num_seqs;
  load.max_num_batched_tokens = target_load.max_num_batched_tokens;
  load.max_model_len = std::min(target_load.max_model_len, config.max_position_embeddings);
  load.num_threads = config.num_matmul_params() < kMaxParamsOfOneThread ? 1 : target_load.num_threads;
  load.cpu.runs_in_wait = true;  // the target waits for the drafts
  if (target.device.kind == DeviceKind::kCpu) choose_arithmetic(config, target, target_load, &load);
  return load;
}

}  // namespace

Result<DraftModel> find_draft_model(const std::string& name, const JobModel& target, const LoadOptions& target_load) {
  if (target.device.kind == DeviceKind::kLedger)
    return unsupported("draft models run on the CPU or a GPU; on this device use lookup");
  const auto found = locate_model(name, "", {.tokenizer = false}, hub_cache_dir());
  if (!found.ok()) return found.status();
  auto config = load_model_config(found->path);
  if (!config.ok()) return config.status();
  if (config->is_encoder) return invalid_argument(name + ": is an encoder, which gives no tokens");
  const Tokenizer* tokenizer = target.files.context->tokenizer.get();
  if (tokenizer != nullptr) {
    const auto own = Tokenizer::load(found->path);
    if (own.ok() && !are_same(**own, *tokenizer))
      return invalid_argument(name + ": its tokenizer is another than the model's: its tokens mean other texts");
  }
  if (config->vocab_size != target.files.config.vocab_size)
    return invalid_argument(name + ": its vocabulary has " + std::to_string(config->vocab_size) +
                            " tokens, the model's " + std::to_string(target.files.config.vocab_size));
  if (config->has_states())
    return unsupported(name + ": a model with recurrent states cannot draft: wrong drafts would change them");
  LoadOptions load = load_options(found->path, *config, target, target_load);
  return DraftModel{std::move(*config), std::move(load), {}, target.device.kind == DeviceKind::kCuda};
}

void place_draft_model(const ModelConfig& target, bool is_alone, DraftModel* draft, LoadOptions* target_load) {
  const ModelConfig& config = draft->config;
  DType dtype = config.cpu_kv_dtype(Quantization::kNone);
  if (draft->is_on_gpu) {
    dtype = draft->load.dtype.value_or(config.gpu_dtype());
    const int64_t weight_bytes = stored_weight_bytes(config) / dtype_bytes(config.dtype) * dtype_bytes(dtype);
    target_load->cuda.draft_bytes = weight_bytes + kGpuWorkspaceBytes;
  }
  LoadOptions target_options = *target_load;
  target_options.groups_layers = true;
  const DeviceKind device = draft->is_on_gpu ? DeviceKind::kCuda : DeviceKind::kCpu;
  if (is_alone) draft->lent = find_lent_blocks(device, target, target_options, config, draft->load);
  if (draft->lent) {
    draft->load.block_size = draft->lent.block_size;
    target_load->lent_tokens = draft->lent.num_tokens();
    return;
  }
  const KvLayout kv = make_kv_layout(config, draft->load.block_size, dtype, group_layers(config, 0));
  target_load->draft_block_bytes = kv.bytes_per_block() * (target_load->block_size / draft->load.block_size);
}

Result<std::string> find_medusa_heads(const std::string& name, const JobModel& target) {
  if (target.device.kind == DeviceKind::kLedger) return unsupported("heads draft on the CPU or a GPU; use lookup");
  const auto found = locate_model(name, "", {.weights = false, .tokenizer = false}, hub_cache_dir());
  if (!found.ok()) return found.status();
  const auto files = MedusaFiles::open(found->path, target.files.config);
  if (!files.ok()) return files.status();
  return found->path;
}

Result<std::string> find_eagle_layer(const std::string& name, const JobModel& target, ModelConfig* model) {
  if (target.device.kind == DeviceKind::kLedger)
    return unsupported("eagle: its layer drafts on the CPU or a GPU; on this device use lookup");
  if (target.files.pooling) return unsupported("eagle: vectors and scores of texts need no drafts");
  const auto found = locate_model(name, "", {.tokenizer = false}, hub_cache_dir());
  if (!found.ok()) return found.status();
  const auto files = EagleFiles::open(found->path, *model);
  if (!files.ok()) return files.status();
  files->describe(model);
  return found->path;
}

Status check_drafting_layers(int32_t num_layers, const JobModel& target) {
  const ModelConfig& config = target.files.config;
  const std::string name = "layers:" + std::to_string(num_layers) + ": ";
  if (target.device.kind == DeviceKind::kLedger)
    return unsupported(name + "layers draft on the CPU or a GPU; use lookup");
  if (num_layers >= config.num_hidden_layers)
    return invalid_argument(name + "the model has " + std::to_string(config.num_hidden_layers) +
                            " layers; fewer of them can draft");
  for (int32_t i = 0; i < config.num_hidden_layers; ++i)
    if (config.layer(i).window > 0) return unsupported(name + "not for models whose layers see a window; use lookup");
  return {};
}

Status check_mtp(const ModelConfig& config, const LoadOptions& load, const JobModel& target) {
  const std::string name = "mtp: ";
  if (!config.mtp.is_known)
    return unsupported(name + "a model of type \"" + config.model_type + "\" has no layer that predicts further tokens");
  if (target.device.kind == DeviceKind::kLedger)
    return unsupported(name + "the layer that predicts further tokens drafts on the CPU or a GPU; on this device use lookup");
  if (load.pooling) return unsupported(name + "vectors and scores of texts need no drafts");
  if (load.load_format == LoadFormat::kDummy) return {};
  const auto files = WeightFiles::open(load.model_dir, config);
  if (files.ok() && files->is_gguf() && !config.has_states())
    return unsupported(name + "of GGUF files only Qwen 3.5's and Qwen3-Next's have a layer that is read; use lookup");
  return files.status().with_context(name + "the layer that predicts further tokens");
}

}  // namespace llmb
