#include "tests/support/model_drafters.h"

#include <doctest/doctest.h>

#include <utility>
#include <vector>

#include "backend/cpu/cpu_backend.h"
#include "model/config_loader.h"
#include "speculation/layers_drafter.h"
#include "speculation/lookahead_drafter.h"
#include "speculation/lookup_drafter.h"
#include "speculation/medusa_drafter.h"
#include "speculation/model_drafter.h"
#include "tests/support/medusa_heads.h"
#include "tests/support/source_dir.h"
#include "tokenizer/tokenizer.h"

namespace llmb::test {

EngineJobOptions bundled_model() {
  EngineJobOptions o;
  o.make_backend = [] { return make_cpu_backend(); };
  o.load.model_dir = source_dir() + "/data/model";
  o.load.num_threads = 2;
  o.config = *load_model_config(o.load.model_dir);
  auto tokenizer = Tokenizer::load(o.load.model_dir);
  REQUIRE(tokenizer.ok());
  o.tokenizer = std::move(*tokenizer);
  o.eos_token_ids = o.config.eos_token_ids;
  o.scheduler.max_model_len = 96;
  o.scheduler.num_blocks = 400;
  o.scheduler.max_num_drafts = o.load.max_num_drafts = 64;  // room for rows that score prompts, too
  return o;
}

namespace {

// target: only where setup.share_queue is, or setup.lend_blocks; then of `o`
std::unique_ptr<Drafter> make_model_drafter(const DraftSetup& setup, const EngineJobOptions& o, Backend* target,
                                            const Clock& clock) {
  const std::string dir = source_dir() + setup.model;
  LoadOptions load;
  load.model_dir = dir;
  load.max_num_seqs = 64;
  load.max_num_batched_tokens = setup.max_num_batched_tokens;
  load.max_model_len = setup.max_model_len;
  load.num_blocks_override = setup.num_blocks;
  load.num_threads = 1;
  load.dtype = setup.dtype;
  load.cpu.runs_in_wait = true;
  auto backend = setup.make_backend != nullptr ? setup.make_backend() : make_cpu_backend();
  std::unique_ptr<DraftFeed> feed;
  if (setup.share_queue != nullptr) feed = setup.share_queue(*target, *backend);
  const ModelConfig config = *load_model_config(dir);
  LentBlocks lent;
  if (setup.lend_blocks != nullptr) {
    lent = setup.find_lent_blocks(o.config, o.load, config, load);
    REQUIRE(lent);
    load.block_size = lent.block_size;
    REQUIRE(setup.lend_blocks(*target, *backend, &lent));
  }
  const Status status = backend->load(config, load);
  REQUIRE_MESSAGE(status.ok(), status.message());
  const ModelDrafterOptions limits = {load.max_num_batched_tokens, load.max_num_seqs, load.max_model_len,
                                      setup.is_tree, lent};
  return std::make_unique<ModelDrafter>(std::move(backend), limits, clock, std::move(feed));
}

// The target, loaded already, with blocks behind the scheduler's.
class LoadedBackend final : public Backend {
 public:
  LoadedBackend(const EngineJobOptions& o, int32_t num_scratch, int32_t num_layers, const std::string& heads_dir)
      : inner_(o.make_backend()) {
    LoadOptions load = o.load;
    load.heads_dir = heads_dir;
    load.max_num_drafts = 64;
    load.drafting_layers = num_layers;
    load.num_blocks_override = o.scheduler.num_blocks + num_scratch;
    load.max_num_seqs = o.scheduler.max_num_seqs;
    load.max_num_batched_tokens = o.scheduler.max_num_batched_tokens;
    load.max_model_len = o.scheduler.max_model_len;
    const Status status = inner_->load(o.config, load);
    REQUIRE_MESSAGE(status.ok(), status.message());
  }
  Status load(const ModelConfig&, const LoadOptions&) override { return {}; }
  const BackendInfo& info() const override { return inner_->info(); }
  Status submit(const StepPlan& plan) override { return inner_->submit(plan); }
  Status wait(StepOutput* output) override { return inner_->wait(output); }
  Backend& inner() { return *inner_; }

 private:
  const std::unique_ptr<Backend> inner_;
};

// The job gets it, once.
void give_target(std::unique_ptr<LoadedBackend> target, EngineJobOptions* o) {
  const auto shared = std::make_shared<std::unique_ptr<Backend>>(std::move(target));
  o->make_backend = [shared] { return std::move(*shared); };
}

}  // namespace

std::unique_ptr<Speculator> make_speculator(const DraftSetup& setup, EngineJobOptions* o, const StepCost& cost,
                                            const Clock& clock) {
  std::vector<std::unique_ptr<Drafter>> drafters;
  if (setup.looks_up) drafters.push_back(std::make_unique<LookupDrafter>(clock, 1 << 19, setup.is_tree));
  const bool needs_target = setup.share_queue != nullptr || setup.lend_blocks != nullptr;
  if (setup.by == DraftBy::kModel && !needs_target) drafters.push_back(make_model_drafter(setup, *o, nullptr, clock));
  if (setup.by == DraftBy::kModel && needs_target) {
    auto target = std::make_unique<LoadedBackend>(*o, 0, 0, "");
    drafters.push_back(make_model_drafter(setup, *o, &target->inner(), clock));
    give_target(std::move(target), o);
  }
  if (setup.by == DraftBy::kLookahead) drafters.push_back(std::make_unique<LookaheadDrafter>());
  if (setup.by == DraftBy::kLayers || setup.by == DraftBy::kMedusa) {
    const bool is_medusa = setup.by == DraftBy::kMedusa;
    const std::string heads_dir = !is_medusa ? "" : setup.heads.empty() ? bundled_medusa_heads() : setup.heads;
    auto target = std::make_unique<LoadedBackend>(*o, is_medusa ? 0 : setup.num_blocks,
                                                  is_medusa ? 0 : setup.num_layers, heads_dir);
    const LayersDrafterOptions layers = {setup.num_layers, setup.max_model_len, o->scheduler.num_blocks,
                                         setup.num_blocks, setup.is_tree, setup.num_layers > 0 ? "layers" : "mtp"};
    LoadOptions limits;  // as it was loaded
    limits.max_num_seqs = o->scheduler.max_num_seqs;
    limits.max_num_batched_tokens = o->scheduler.max_num_batched_tokens;
    limits.max_num_drafts = 64;
    const MedusaDrafterOptions medusa = {limits.max_num_seqs, limits.max_num_batched_tokens, limits.max_num_samples()};
    OwnDrafts own = setup.own_drafts_of != nullptr ? setup.own_drafts_of(target->inner()) : OwnDrafts();
    if (is_medusa) drafters.push_back(std::make_unique<MedusaDrafter>(*target, medusa, clock, std::move(own)));
    else drafters.push_back(std::make_unique<LayersDrafter>(*target, layers, clock, std::move(own)));
    give_target(std::move(target), o);
  }
  SpeculatorOptions options;
  options.max_tokens = setup.max_tokens;
  options.drafts_always = setup.drafts_always;
  return std::make_unique<Speculator>(options, std::move(drafters), cost, clock);
}

}  // namespace llmb::test
