// Drafters over a model, mostly the bundled one on the CPU, and jobs for them.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "backend/draft_feed.h"
#include "base/clock.h"
#include "speculation/speculator.h"
#include "tests/support/engine_job.h"

namespace llmb::test {

enum class DraftBy { kModel, kLayers, kLookahead, kMedusa };

struct DraftSetup {
  DraftBy by = DraftBy::kModel;
  int32_t num_layers = 2;
  std::string model = "/data/draft-model";  // under the source directory
  std::unique_ptr<Backend> (*make_backend)() = nullptr;  // the draft model's; null: a CPU's
  // Drafts go to the target by what it gives, or by way of the host where that is null. null: by way of the host, to a
  // target that the job loads.
  std::unique_ptr<DraftFeed> (*share_queue)(Backend& target, Backend& draft) = nullptr;
  // Drafts of kLayers and kMedusa stay on the device where that gives a queue for them. null: by way of the host
  OwnDrafts (*own_drafts_of)(Backend& target) = nullptr;
  std::string heads;  // a folder; "": bundled_medusa_heads()
  int32_t max_tokens = 4, max_model_len = 96, num_blocks = 400, max_num_batched_tokens = 64;
  bool looks_up = false, is_tree = false, drafts_always = true;
  // kModel: its blocks lie in the target's, as a backend finds and lends them; num_blocks says nothing then. null: they are
  // its own
  LentBlocks (*find_lent_blocks)(const ModelConfig&, const LoadOptions&, const ModelConfig&, LoadOptions) = nullptr;
  bool (*lend_blocks)(Backend& target, Backend& draft, LentBlocks* lent) = nullptr;
  std::optional<DType> dtype;  // of the draft model; none: as its backend thinks best
};

// A context of 96 tokens, and as many blocks as any job here needs.
EngineJobOptions bundled_model();

// Whether its guesses are trees.
inline bool has_trees(const DraftSetup& setup) {
  return setup.is_tree || setup.by == DraftBy::kLookahead || setup.by == DraftBy::kMedusa;
}

// For jobs as `o` says; o->make_backend becomes the target where that drafts itself.
std::unique_ptr<Speculator> make_speculator(const DraftSetup& setup, EngineJobOptions* o, const StepCost& cost,
                                            const Clock& clock);

}  // namespace llmb::test
