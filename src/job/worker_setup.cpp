#include "job/worker_setup.h"

#include <algorithm>
#include <utility>

#include "job/draft_model.h"
#include "job/rank_team.h"
#include "job/speculative_corpus.h"
#include "model/adapter_library.h"

namespace llmb {

namespace {

// For all sequences: a step with more drafts than this costs about as much as the steps that they save.
constexpr int32_t kMaxStepDrafts = 64;
// Prompt rows that a step on a GPU scores where scoring is all that the run does. Each takes the memory of a sequence's
// sample row: 20 bytes for each of hidden_size, and a bit for each token of the vocabulary.
constexpr int32_t kMaxStepScores = 2048;
// Tokens of a step that forms leave no choice of, one sequence with another.
constexpr int64_t kForcedPerSequence = 4;

// Whether chunks of attention cut texts of this length.
bool attends_in_chunks(const ModelConfig& config, int32_t max_model_len) {
  return std::any_of(config.layers.begin(), config.layers.end(), [&](const LayerConfig& layer) {
    return layer.chunk > 0 && layer.chunk < max_model_len;
  });
}

WorkerOptions basic_options(const JobOptions& o, const JobModel& model) {
  WorkerOptions options;
  options.device = model.device.name;
  options.model = model.files.config;
  options.scheduler = o.scheduler;
  options.scheduler.max_model_len = model.files.max_model_len;
  options.load = o.load;
  options.load.model_dir = o.model.model;
  options.load.load_format = o.model.load_format;
  options.load.dummy_seed = o.seed;
  options.load.max_num_seqs = o.scheduler.max_num_seqs;
  options.load.max_num_batched_tokens = o.scheduler.max_num_batched_tokens;
  options.load.max_model_len = model.files.max_model_len;
  options.grace_ms = 1000 * o.grace_s;
  options.speculation = o.speculation;
  options.load.pooling = model.files.pooling;
  options.model.mtp.is_used = o.speculation.mtp;
  const bool is_gpu = model.device.kind == DeviceKind::kCuda, scores = is_gpu && o.generation.task == Task::kScore;
  // Between chunks of attention a GPU verifies no drafts; where it scores, sample rows are for prompts.
  const bool verifies = !is_gpu || !attends_in_chunks(options.model, options.load.max_model_len);
  if (options.load.pooling || (options.speculation.is_default && (scores || !verifies))) options.speculation = {};
  // A step must have room for the longest of prompts that are computed whole.
  if (model.files.context && model.files.context->is_indivisible) {
    int32_t& most = options.scheduler.max_num_batched_tokens;
    most = options.load.max_num_batched_tokens = std::max(most, model.files.max_model_len);
  }
  if (options.speculation.any()) {
    const int64_t most = int64_t{o.speculation.max_tokens} * o.scheduler.max_num_seqs;
    options.scheduler.max_num_drafts = static_cast<int32_t>(std::min<int64_t>(most, kMaxStepDrafts));
    options.load.max_num_drafts = options.scheduler.max_num_drafts;
    options.scheduler.allows_trees = o.speculation.has_trees();
  } else {
    // For tokens that a form leaves no choice of, a few for each sequence, and for prompts that are scored. Nothing is
    // guessed.
    const int64_t least = scores ? kMaxStepScores : kMaxStepDrafts;
    const int64_t wanted = std::max(least, kForcedPerSequence * o.scheduler.max_num_seqs);
    options.scheduler.max_num_drafts = static_cast<int32_t>(std::min<int64_t>(wanted, o.scheduler.max_num_batched_tokens));
    options.load.max_num_drafts = options.scheduler.max_num_drafts;
    options.load.max_drafts_per_group = 0;
  }
  options.load.verifies_trees = options.scheduler.allows_trees;
  options.load.adapters = model.files.adapters;
  options.load.drafting_layers = o.speculation.num_layers;
  return options;
}

}  // namespace

Status follow_states(const ModelConfig& config, JobOptions* o) {
  const bool is_int4 = o->load.kv_cache_dtype == DType::kI4;
  if (o->speculation.trees && is_int4)
    return unsupported("`speculative`: over an int4 KV cache drafts are chains, no trees; leave out tree");
  if (!config.has_states()) return {};
  const std::string name = "model_type \"" + config.model_type + "\" has layers with a recurrent state: ";
  if (o->speculation.trees)
    return unsupported("`speculative`: " + name + "these follow chains of drafts, no trees; leave out tree");
  if (o->speculation.num_layers > 0)
    return unsupported("`speculative`: " + name + "its first layers cannot draft; use lookup or a draft model");
  if (o->scheduler.preemption == PreemptionMode::kSwap)
    return unsupported("`preemption`: " + name + "preempted requests are computed again; leave swap out");
  o->load.max_drafts_per_group = o->speculation.any() ? o->speculation.max_tokens : 0;
  return {};
}

std::optional<JobStop> set_up_worker(const JobOptions& o, const JobModel& model, WorkerOptions* worker) {
  *worker = basic_options(o, model);
  if (!o.speculation.corpus.empty()) {
    auto corpus = read_corpus(o.speculation.corpus, model.files.context->tokenizer.get());
    if (!corpus.ok()) return JobStop{JobEnd::kOptionRefused, "`speculative_corpus`: " + corpus.status().message()};
    worker->corpus = std::move(*corpus);
  }
  if (!o.speculation.draft_model.empty()) {
    auto draft = find_draft_model(o.speculation.draft_model, model, worker->load);
    if (!draft.ok()) return JobStop{JobEnd::kOptionRefused, "`speculative`: " + draft.status().message()};
    worker->draft_model = std::move(*draft);
  }
  if (!o.speculation.medusa.empty()) {
    auto heads = find_medusa_heads(o.speculation.medusa, model);
    if (!heads.ok()) return JobStop{JobEnd::kOptionRefused, "`speculative`: " + heads.status().message()};
    worker->load.heads_dir = std::move(*heads);
  }
  if (!o.speculation.eagle.empty()) {
    auto dir = o.speculation.mtp ? invalid_argument("mtp and eagle: both are a layer behind the last one; leave out one")
                                 : find_eagle_layer(o.speculation.eagle, model, &worker->model);
    if (!dir.ok()) return JobStop{JobEnd::kOptionRefused, "`speculative`: " + dir.status().message()};
    worker->load.eagle_dir = std::move(*dir);
  }
  if (o.speculation.mtp)
    if (const Status able = check_mtp(worker->model, worker->load, model); !able.ok())
      return JobStop{JobEnd::kOptionRefused, "`speculative`: " + able.message()};
  if (const int32_t num_layers = o.speculation.num_layers; num_layers > 0)
    if (const Status able = check_drafting_layers(num_layers, model); !able.ok())
      return JobStop{JobEnd::kOptionRefused, "`speculative`: " + able.message()};
  if (worker->draft_model)
    place_draft_model(worker->model, rank_grid(o).num_ranks() == 1, &*worker->draft_model, &worker->load);
  return {};
}

}  // namespace llmb
