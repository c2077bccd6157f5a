// Something that guesses how sequences go on. A guess changes no byte of an answer (scheduler/proposer.h).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "cache/block_allocator.h"
#include "core/step_plan.h"
#include "scheduler/sequence.h"
#include "speculation/guess.h"

namespace llmb {

struct DraftLimits {
  int32_t max_tokens = 0;      // on a path
  double min_probability = 0;  // what is less likely to be accepted, all before it included, does not pay
  bool is_trial = false;       // to see whether drafts pay: what later guesses build on is to be read sparingly
  int64_t plan = 0;            // that they are for (StepPlan::step)
  int32_t num_in_flight = 0;   // plans of the target's
  BlockAllocator* lender = nullptr;  // of blocks of the target's pool
};

// Blocks of the target's pool that drafts have had.
struct DraftBlocks {
  int32_t most = 0;           // at one time
  int64_t num_taken_back = 0; // although they were in use, for answers
};

// Driven by the scheduler's thread.
class Drafter {
 public:
  virtual ~Drafter() = default;
  virtual std::string name() const = 0;

  // Adds a guess to each of `guesses`, which are empty. Nothing of the sequences is in flight, but for guesses_behind().
  virtual void draft(std::span<const Sequence* const> sequences, const DraftLimits& limits,
                     std::span<Guess> guesses) = 0;  // [sequences]

  // Before it is asked: the probability that a token of the sequence's is right where those before it are; and the time
  // that one token for each of so many sequences takes, at least kUnknownMs where it takes any and nobody knows yet how
  // much. A drafter that costs nothing tells by its guesses.
  static constexpr double kUnknownMs = 1e-6;
  virtual double acceptance(const Sequence& /*sequence*/) const { return 1; }
  virtual double ms_per_token(int32_t /*num_sequences*/) const { return 0; }

  // A call for several sequences takes as long as a call for each of them.
  virtual bool guesses_one_by_one() const { return false; }
  // It may guess while a plan is in flight in which the sequence gets tokens, behind those that nobody has seen.
  virtual bool guesses_behind(const Sequence& /*sequence*/) const { return false; }
  // While a step runs on the device it may guess for sequences that have nothing in flight: it needs no device itself.
  virtual bool guesses_while_steps_run() const { return false; }
  // It computes on the target's backend, which must have nothing in flight then.
  virtual bool needs_idle_target() const { return false; }
  // Time spent in draft() since the last call on reading prompts, on which later guesses build, too.
  virtual double take_invested_ms() { return 0; }

  // Puts the tokens that stand in slots of the device in their places, where it guessed such ones (core/drafted_tokens.h)
  // and knows them by now: they have been verified.
  virtual void see_drafts(std::span<TokenId> /*tokens*/) {}
  // Its newest guess for the sequence, or the part of it that was verified, or compared with what the sequence got.
  virtual void learn(const Sequence& sequence, const Guess& guess,
                     std::span<const Verdict> verdicts) = 0;  // [guess.size()]
  // A step has run, with drafts of whoever guessed them or without. Sequences in it may have ended.
  virtual void see(const StepPlan& /*plan*/, const StepOutput& /*output*/) {}
  virtual DraftBlocks blocks() const { return {}; }
  // The sequence has ended.
  virtual void forget(const Sequence& sequence) = 0;
};

}  // namespace llmb
