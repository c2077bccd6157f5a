// Where guessed tokens come from. A right guess is given sooner; a wrong one costs its row, never a byte: a token is
// given only if it is the one that is drawn without drafts (core/step_plan.h).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "cache/block_allocator.h"
#include "core/step_plan.h"
#include "scheduler/sequence.h"

namespace llmb {

// Tokens that may come behind a sequence's last token, as a chain or a tree.
struct Drafts {
  std::vector<TokenId> tokens;
  std::vector<int32_t> parents;  // [tokens]  a draft before it, or -1: the last token; or empty: a chain
  int32_t drafter = 0;           // who guessed them, below kMaxDrafters

  int32_t size() const { return static_cast<int32_t>(tokens.size()); }
  int32_t parent(int32_t draft) const { return parents.empty() ? draft - 1 : parents[draft]; }
  // Whether each draft's parent lies before it. The scheduler refuses others.
  bool is_valid() const;
  void clear() { tokens.clear(), parents.clear(), drafter = 0; }
  void keep_first(int32_t count);  // drafts
  void keep_chain();               // the first path, whose drafts each have the one before as parent
};

// A plan that is about to be made.
struct PlanOutlook {
  // Running sequences that compute nothing but their last token, which is seen, in the order of propose().
  std::span<const Sequence* const> decoding;
  int32_t num_rows = 0;       // of all running sequences, without drafts
  int32_t num_unseen = 0;     // of these, behind a token of the plan in flight
  int32_t num_in_flight = 0;  // plans
  bool alternates = false;    // those have none of these sequences, whether or not there are drafts
  int32_t num_alternating = 1;  // plans that do so, or would but for forms_one_plan()
  int32_t num_running = 0;      // sequences
  // Running sequences that compute nothing but the last token that the plan in flight gives them.
  std::span<const Sequence* const> behind = {};
  int64_t step = 0;  // its number
  // Lends blocks for keys and values of drafts while begin_plan() runs. Its borrower gives them back when they are needed.
  BlockAllocator* lender = nullptr;
};

// Driven by the scheduler's thread; on_step() by the engine, in the same.
class Proposer {
 public:
  virtual ~Proposer() = default;

  // Called again for the same plan where it was not submitted.
  virtual void begin_plan(const PlanOutlook& /*outlook*/) {}

  // Adds drafts to `drafts`, which is empty. The sequence is about to compute its last token. With a group in flight
  // between 1 and max_unseen_tokens() tokens that nobody has seen stand behind the known ones, before the drafts.
  virtual void propose(const Sequence& sequence, int32_t max_drafts, Drafts* drafts) = 0;

  // Whether the sequence's next token must be seen before anything is planned behind it. It stays so while a plan is made.
  virtual bool must_see(const Sequence& sequence) const = 0;
  // Whether everything must be seen: nothing is planned ahead, so that no sequence falls out of step with the others.
  virtual bool must_see_all() const { return false; }
  // Whether drafts need a backend with nothing in flight: then one plan has all sequences, where plans alternate, too.
  virtual bool forms_one_plan() const { return false; }

  // Puts the drafts that only the device knew (core/drafted_tokens.h) into a plan that has run, before it is looked at.
  // One whose token cannot be had stays as it is.
  virtual void see_drafts(StepPlan* /*plan*/) {}
  // The first `num_accepted` drafts of a path in a plan were right; the sequence has their tokens now.
  virtual void on_verified(const Sequence& /*sequence*/, int32_t /*num_drafts*/, int32_t /*num_accepted*/) {}
  // The sequence has ended, with the tokens that it has.
  virtual void on_end(const Sequence& /*sequence*/) {}
  virtual std::string drafter_name(int32_t /*drafter*/) const { return "drafts"; }
  // A plan has run, and its drafts are verified. gap_ms: that the device had nothing to do before it.
  virtual void on_step(const StepPlan& /*plan*/, const StepOutput& /*output*/, double /*step_ms*/, double /*gap_ms*/) {}
};

}  // namespace llmb
