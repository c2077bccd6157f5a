// The groups of an int4 KV cache that are open (kernels/cpu/kv_cache.h), in bfloat16: those of the newest tokens of each
// sequence, by state slot (StepEntry::state_slot), and those of prompts that a step computes: while a layer runs, or where
// later layers read its keys and values, until the step ends.
//
// A group is closed, that is stored in its block of the pool, by the step that writes its last position. Its numbers stay
// where they are until the sequence is a group further, so drafts in it may turn out wrong: whoever writes the position
// anew closes the group anew. A sequence without a slot begins at a group's begin, so blocks in the pool need nothing that
// is open: they are shared, kept, swapped and sent as they are, and copies of slots go with copies of sequences.
//
// Not thread-safe.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "backend/backend.h"
#include "backend/cpu/mapped_floats.h"
#include "base/thread_pool.h"
#include "core/kv_layout.h"
#include "core/resolve_step.h"
#include "core/step_plan.h"
#include "kernels/cpu/kv_cache.h"
#include "kernels/cpu/kv_groups.h"

namespace llmb {

// Drafts of a sequence in a step, at most: they cross one border of groups.
inline constexpr int32_t kMaxOpenDrafts = kKvGroup - 1;

// Ok, or why this model with these options cannot have an int4 cache.
Status check_int4_kv(const ModelConfig& config, const LoadOptions& options);

class OpenGroups {
 public:
  static int32_t num_slots(const LoadOptions& options);  // as many as the scheduler may need (StateLayout)
  static int64_t slot_bytes(const KvLayout& kv, const LoadOptions& options);

  OpenGroups(const ModelConfig& config, const KvLayout& kv, const LoadOptions& options);  // throws std::bad_alloc

  // Copies slots as the plan says. Plan and step stay unchanged until the next call.
  void begin_step(const StepPlan& plan, const ResolvedStep& step, ThreadPool& pool);

  // Before keys and values of a layer are written to view() at slots(). REQUIRES: it has its own
  void begin_layer(int32_t layer, ThreadPool& pool);
  // Behind that: stores groups that are complete, of which a block has its slots together.
  void close(int32_t layer,
             const int32_t* slots,  // [num_tokens]  of `kv`, the layer's; -1: another rank has the position
             const cpu::KvCacheView& kv, ThreadPool& pool);

  // REQUIRES: begin_layer() was called for the layer in this step
  cpu::KvCacheView view(int32_t layer) const;
  std::span<const int32_t> slots() const { return slots_; }    // [num_tokens]  of the newest such layer
  const int32_t* blocks(int32_t layer);                        // [num_tokens]  that hold the rows' own groups

 private:
  static int32_t groups_per_slot(const LoadOptions& options) { return options.max_num_drafts > 0 ? 2 : 1; }
  // Where a group is: in the slots of every layer, or behind those of all layers, in a place that layers share but for
  // those that later layers read, which have their own.
  struct Place {
    int32_t index = 0;
    bool is_shared = false;
  };
  int64_t block(int32_t layer, Place place) const {
    if (!place.is_shared) return place.index;
    return (num_layers_ - layer) * int64_t{num_own_} + set_of_[static_cast<size_t>(layer)] * num_shared_ + place.index;
  }

  const KvLayout layout_;
  const int32_t num_layers_, groups_per_slot_, num_own_;
  const int64_t num_shared_;
  std::vector<int32_t> set_of_;  // [num_layers]  of shared places
  int64_t group_bytes_ = 0;      // in one layer, at most
  MappedFloats memory_;          // [num_layers, num_own_] of groups, then sets of num_shared_
  const StepPlan* plan_ = nullptr;
  const ResolvedStep* step_ = nullptr;
  std::vector<Place> places_;  // [num_tokens]  of each row's own group
  struct Move {
    Place from, to;
  };
  std::vector<Move> moves_;  // groups that go on in a shared place
  struct Closing {
    Place place;
    int32_t last_row = 0;
  };
  std::vector<Closing> closings_;
  std::vector<cpu::ClosingGroup> closing_;  // scratch
  std::vector<int32_t> slots_, blocks_;
};

}  // namespace llmb
