#include "job/worker.h"

#include <algorithm>
#include <new>
#include <utility>

#include "base/log.h"
#include "base/thread_pool.h"
#include "job/measured_stages.h"
#include "speculation/layers_drafter.h"
#include "speculation/lookahead_drafter.h"
#include "speculation/lookup_drafter.h"
#include "speculation/medusa_drafter.h"
#include "speculation/model_drafter.h"

namespace llmb {

namespace {

constexpr int32_t kMaxAnswerTokens = 1 << 19;  // of ended answers that are looked up in

// Blocks of the pool that are for drafts by the model's own layers. One sequence has to fit beside them.
int32_t num_scratch_blocks(const WorkerOptions& options, const BackendInfo& info) {
  if (options.speculation.num_layers == 0 && !info.has_mtp) return 0;
  const int64_t of_one = LayersDrafter::blocks_per_sequence(options.speculation.max_tokens, info.kv.block_size);
  const int64_t wanted = of_one * std::min(options.scheduler.max_num_seqs, options.scheduler.max_num_drafts);
  const int64_t spare = info.kv.num_blocks - max_blocks_per_seq(info.kv, options.load);
  return static_cast<int32_t>(std::clamp<int64_t>(spare, 0, wanted));
}

// num_scratch: blocks at the end of the target's pool that are the drafters'. own_drafts: the target's
std::unique_ptr<Speculator> make_speculator(const WorkerOptions& options, std::unique_ptr<Backend> draft_backend,
                                            std::unique_ptr<DraftFeed> draft_feed, const LentBlocks& lent, OwnDrafts own_drafts,
                                            Backend& target, int32_t num_scratch, const StepCost& cost,
                                            const Clock& clock) {
  std::vector<std::unique_ptr<Drafter>> drafters;
  if (options.speculation.lookup) {
    auto lookup = std::make_unique<LookupDrafter>(clock, kMaxAnswerTokens, options.speculation.trees);
    for (const std::vector<TokenId>& text : options.corpus) lookup->add_to_corpus(text);
    drafters.push_back(std::move(lookup));
  }
  const bool has_heads = target.info().num_heads > 0;
  if (has_heads) draft_feed.reset();  // slots are of one drafter
  if (draft_backend) {
    const LoadOptions& load = options.draft_model->load;
    const ModelDrafterOptions limits = {load.max_num_batched_tokens, load.max_num_seqs, load.max_model_len,
                                        options.speculation.trees, lent};
    if (draft_feed) own_drafts = {};
    drafters.push_back(std::make_unique<ModelDrafter>(std::move(draft_backend), limits, clock, std::move(draft_feed)));
  }
  if (has_heads) {
    const LoadOptions& load = options.load;
    const MedusaDrafterOptions medusa = {load.max_num_seqs, load.max_num_batched_tokens, load.max_num_samples()};
    drafters.push_back(std::make_unique<MedusaDrafter>(target, medusa, clock, std::exchange(own_drafts, {})));
  }
  // They take turns: drafts in these blocks are of one call.
  const auto add_layers = [&](int32_t num_layers, const char* name) {
    if (num_scratch == 0) log_warning("the KV cache holds one request only: the model's layers do not draft");
    const LayersDrafterOptions layers = {num_layers, options.load.max_model_len,
                                         target.info().kv.num_blocks - num_scratch, num_scratch,
                                         options.speculation.trees, name};
    drafters.push_back(std::make_unique<LayersDrafter>(target, layers, clock, std::exchange(own_drafts, {})));
  };
  if (options.speculation.num_layers > 0) add_layers(options.speculation.num_layers, "layers");
  if (target.info().has_mtp) add_layers(0, options.load.eagle_dir.empty() ? "mtp" : "eagle");
  if (options.speculation.lookahead) drafters.push_back(std::make_unique<LookaheadDrafter>());
  if (drafters.empty()) return nullptr;
  SpeculatorOptions speculator;
  speculator.max_tokens = options.speculation.max_tokens;
  speculator.max_step_tokens = options.scheduler.max_num_drafts;
  return std::make_unique<Speculator>(speculator, std::move(drafters), cost, clock);
}

}  // namespace

LoadOptions target_load_options(const WorkerOptions& options) {
  LoadOptions load = options.load;
  load.groups_layers = true;
  // Only the prefix cache finds moved blocks again.
  if (options.scheduler.preemption == PreemptionMode::kRecompute || !options.scheduler.enable_prefix_caching)
    load.swap_space_gib = 0;
  return load;
}

std::optional<JobStop> Worker::load(const BackendFactory& make_backend) {
  LoadOptions load = target_load_options(options_);
  RankOptions ranks = options_.ranks;
  const BackendFactory make_watched = [&](std::string_view device) -> Result<std::unique_ptr<Backend>> {
    auto backend = make_backend(device);
    if (!backend.ok()) return backend;
    return std::unique_ptr<Backend>(std::make_unique<WatchedBackend>(std::move(*backend), watch_));
  };
  balance_stages(make_watched, options_.device, options_.model, load, &ranks);
  const bool is_alone = ranks.grid.num_ranks() == 1;
  if (const Status status = is_alone ? take_backend(make_backend(options_.device))
                                     : take_backend(make_rank_team(ranks, &load), &ranked_backend_);
      !status.ok()) {
    const bool is_memory = status.code() == StatusCode::kResourceExhausted;
    return JobStop{is_memory ? JobEnd::kOutOfMemory : JobEnd::kDeviceFault, status.message()};
  }
  watched_backend_.emplace(*backend_, watch_);
  if (const Status status = watched_backend_->load(options_.model, load); !status.ok()) return model_stop(status);
  if (const Status status = load_draft_model(make_backend); !status.ok())
    return model_stop(status.with_context("the draft model"));
  return {};
}

StepMetrics Worker::metrics() const {
  StepMetrics metrics = engine_->metrics();
  if (ranked_backend_ != nullptr) metrics.ranks = ranked_backend_->times();
  return metrics;
}

// Its pool is the target's, or has room for as many tokens, in blocks that are no larger: so its sequences fit wherever
// the target's do.
Status Worker::load_draft_model(const BackendFactory& make_backend) {
  if (!options_.draft_model) return {};
  auto backend = make_backend(options_.device);
  if (!backend.ok()) return backend.status();
  draft_feed_ = share_queue(*backend_, **backend);
  lent_ = options_.draft_model->lent;
  if (lent_) lend_blocks(*backend_, **backend, &lent_);
  draft_backend_ = std::make_unique<WatchedBackend>(std::move(*backend), watch_);
  LoadOptions load = options_.draft_model->load;
  if (!lent_) load.num_blocks_override = info().kv.num_blocks * (info().kv.block_size / load.block_size);
  load.swap_space_gib = 0;
  return draft_backend_->load(options_.draft_model->config, load);
}

Status Worker::run(RequestSource& requests, CompletionSink& completions, const Tokenizer* tokenizer, Clock& clock,
                   const std::atomic<int>& interrupted, const std::function<void(const EngineProgress&)>& on_progress) {
  EngineOptions options;
  options.scheduler = options_.scheduler;
  options.scheduler.block_size = info().kv.block_size;
  const int32_t num_scratch = num_scratch_blocks(options_, info());
  options.scheduler.num_blocks = info().kv.num_blocks - num_scratch;
  options.scheduler.windows = info().kv.groups.windows;
  options.scheduler.max_idle_blocks = info().max_idle_blocks;
  options.scheduler.num_alternating = std::min(options_.ranks.grid.num_stages, info().max_plans_in_flight);
  options.model = options_.model;
  OwnDrafts own = own_drafts_of(*backend_);
  if (own.queue) own.queue = std::make_unique<WatchedBackend>(std::move(own.queue), watch_);
  speculator_ = make_speculator(options_, std::move(draft_backend_), std::move(draft_feed_), lent_, std::move(own),
                                *watched_backend_, num_scratch, step_cost_, clock);
  options.proposer = speculator_.get();
  options.step_cost = &step_cost_;
  options.grace_ms = options_.grace_ms;
  options.gives_blocks = options_.gives_blocks;
  options.num_threads = options_.load.num_threads > 0 ? options_.load.num_threads : std::min(16, usable_cpu_count());
  // The ledger computes nothing: what it would measure is noise.
  if (info().kind == DeviceKind::kLedger) options.virtual_token_ms = 1;
  engine_ = std::make_unique<Engine>(options, *watched_backend_, tokenizer, clock, requests, completions, interrupted,
                                     on_progress);
  try {
    return engine_->run();
  } catch (const std::bad_alloc&) {
    return resource_exhausted("out of memory");
  }
}

}  // namespace llmb
