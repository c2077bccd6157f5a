// Drafts that go from a draft model's steps to the step that verifies them on the device: that step is planned and
// submitted before the host has seen them.
#pragma once

#include <cstdint>
#include <memory>

#include "backend/backend.h"
#include "base/status.h"

namespace llmb {

// Driven by the thread that drives both backends, after both have loaded.
class DraftFeed {
 public:
  virtual ~DraftFeed() = default;

  // Tokens that it holds. drafted_token() (core/drafted_tokens.h) stands for them in the target's plans.
  virtual int32_t num_slots() const = 0;
  // Once the draft model's newest plan has run, the slots from `first` on hold the last tokens of its first `count`
  // groups, until others get there: plans that the target got before see what was there then, later ones these.
  // REQUIRES: that plan is in flight; each of these groups samples one row
  virtual Status keep(int32_t first, int32_t count) = 0;
};

// Lets the draft model's steps run in order with the target's, in one queue of the GPU that both compute on. null: they
// have none in common, and each stays as it is. Both outlive what it returns. REQUIRES: the target has loaded, the other
// has not; of two models with one vocabulary
std::unique_ptr<DraftFeed> share_queue(Backend& target, Backend& draft);

}  // namespace llmb
