// Drafts that go from steps that draft to the step that verifies them on the device: that step is planned and submitted
// before the host has seen them.
#pragma once

#include <cstdint>
#include <memory>

#include "backend/backend.h"
#include "base/status.h"
#include "core/lent_blocks.h"

namespace llmb {

// Driven by the thread that drives both backends, after both have loaded.
class DraftFeed {
 public:
  virtual ~DraftFeed() = default;

  // Tokens that it holds, of two plans. drafted_token() (core/drafted_tokens.h) stands for them in the target's plans.
  virtual int32_t num_slots() const = 0;
  // Once the newest plan that drafts has run, the slots from `first` on hold the last tokens of its first `count`
  // groups, until others get there: plans that the target got before see what was there then, later ones these.
  // REQUIRES: that plan is in flight; each of these groups samples one row
  virtual Status keep(int32_t first, int32_t count) = 0;
  // The same for the `num_best` best tokens of each of them, a group's one behind the other. One whose logits are not
  // finite leaves some tokens of the vocabulary. REQUIRES: these are kBest, of so many tokens
  virtual Status keep_best(int32_t first, int32_t count, int32_t num_best) = 0;
};

// Lets the draft model's steps run in order with the target's, in one queue of the GPU that both compute on. null: they
// have none in common, and each stays as it is. Both outlive what it returns. REQUIRES: the target has loaded, the other
// has not; of two models with one vocabulary
std::unique_ptr<DraftFeed> share_queue(Backend& target, Backend& draft);

// How blocks of a draft model's may lie in blocks of the target's pool, but for num_blocks; nothing: it has a pool of its
// own. Both as they will be loaded, the draft model but for block_size. REQUIRES: neither is one of several ranks
LentBlocks find_lent_blocks(DeviceKind device, const ModelConfig& target, const LoadOptions& target_options,
                            const ModelConfig& draft, const LoadOptions& draft_options);
// Lets the draft model's pool lie in the target's as find_lent_blocks() says, when it loads with that block_size; sets
// lent->num_blocks. The target outlives its use. REQUIRES: as share_queue()
void lend_blocks(Backend& target, Backend& draft, LentBlocks* lent);

// share_queue() for a model that drafts for itself, by its first layers or one behind its last. What the queue gets runs in
// order with the model's other plans, and waits in it do not wait for those: it is a backend that is loaded, with the
// model's pool. Its plans follow the newest plan of either, if that is in flight; the model's other plans follow their own,
// whatever drafts lie between.
struct OwnDrafts {
  std::unique_ptr<Backend> queue;
  std::unique_ptr<DraftFeed> feed;
};

// Both null: the model has none, and takes plans that draft as all others. It outlives them; of several that it gives,
// the newest is used. REQUIRES: it has loaded
OwnDrafts own_drafts_of(Backend& model);

}  // namespace llmb
