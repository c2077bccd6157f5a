// Decides what every step computes: one loop for all batching modes, with no prefill phase and no decode phase, only
// sequences whose num_computed_tokens catches up with their known tokens under a token budget.
//
// No clock, no device, no I/O; time is an argument. Not thread-safe.
//
// Order: sequences that run and sequences that wait are each in order of rank (rank.h); ids only name them. First come,
// first served is the policy that ranks by id.
//
// A step serves the running sequences first, the best rank first, then lets waiting ones join in order. A prompt that
// is computed in chunks leaves a token to each running sequence behind it, so decodes do not wait for it, and nobody
// joins before it is done. Where blocks run out, the running sequence of the worst rank is preempted: its blocks are
// freed and it waits again, to be computed again, output included, or to go on behind what the prefix cache or the
// host's pool keep of it. A sequence never preempts itself: it pauses with its
// blocks. Where the head of the line outranks running sequences and lacks their room, these give way, the worst rank
// first, as far as the policy's levels allow and only if that makes the room (preemption.cpp). An indivisible sequence
// that exceeds the budget joins an empty step and has it to itself.
//
// Drafts: a Proposer may add tokens behind a sequence's last one; the backend gives those that are right. Drafts take
// rows, blocks and budget that no running sequence needs in this step, and blocks that turn out to be spare are given
// back by apply(). Rows of a tree that were accepted out of place are computed again, several in a step.
//
// Choices: each of a request's answers is a sequence. The first to run computes the prompt; one that joins in the step
// that computes the prompt's end samples the same row, one that joins later computes the prompt's last token. Both
// share the blocks of the prompt, and who first writes to a shared block copies it. While the prompt is being computed
// the other choices wait, and so does who stands behind them.
//
// Beams: the choices of a request with beams go on together. A step gives the best tokens after each of them, and the
// sequence awaits its fork: fork() says whose tokens each one takes over, blocks included, and which comes next.
// Until then it computes nothing, and where no other running sequence could it is parked: it gives its blocks up for
// those that wait, which is no preemption, as there is one at most for each token. Whoever goes on as its copy finds
// them as a preempted sequence does. All but the first choice begin parked. A beam is never planned ahead.
//
// Prefixes: a position that several sequences have in common is computed once and stored once (prefix_sharing.cpp).
// Computed blocks stay in the prefix cache, also after their sequence has ended or was preempted, until they are
// needed. A joining sequence takes the blocks that begin as its tokens do, whole ones by reference, a part of one by a
// copy before the step, and computes the rest, its last known token at least. It may read whole blocks that the same
// plan writes. Where half a block or more is written by this plan and would have to be copied, it waits, and so does
// who stands behind it: the next plan finds it there. So nobody waits for a sequence that waits.
//
// States: where layers have a recurrent state, a prefix is found as far as a snapshot stands behind it (states.cpp).
// An entry ends where others go on from its sequence's state, and nobody joins behind it in that plan.
//
// Planning ahead: schedule() may be called while a plan is in flight, so that a device finds its next step waiting.
// That plan's tokens are not seen yet, so every sequence counts as going on unless max_new_tokens ends it, its entry
// follows its group in flight, the backend adds the unseen token to penalties (StepPlan, invariant 8), and nothing that
// takes something away is decided:
//  - Nobody is preempted: where blocks run out or somebody must give way there is no plan ahead.
//  - A sequence that ends with the plan in flight no longer counts as running, so others may join, by the same rules as
//    ever, and the next batch of the modes none, static and dynamic may start. Its blocks stay its own until then.
//  - A sequence whose next row depends on what is not seen sits out, alone (Sequence::must_be_seen,
//    Proposer::must_see). So does one that is to be demoted, which must not be in flight by then.
//  - Where plans alternate (num_alternating, for stages of a pipeline), so many are in flight, none of which follows
//    another: whoever is in flight sits out, and a plan holds its part of the sequences at most, those that join
//    included, so that the next ones have the others. Everybody in it is seen. While the proposer needs an idle backend
//    (Proposer::forms_one_plan) all are in one plan, the only one in flight.
//  - Else where the proposer must see all, there is no plan ahead. Nor is there where too many of the running sequences have
//    constraints: one that sits out gets every second step only (set_constrained_wait_alone).
// A sequence that turns out to have ended is ignored in the plan in flight. Its blocks are free at once, as backends
// run plans in order (backend.h).
//
// Invariants (check_integrity; those of sequences are in sequence.h):
//  1. running_ and waiting_ are in order. The rank of a running sequence only gets worse, at apply(), and never with a
//     plan of it in flight; that of a settled one (admission.h) stays while it runs.
//  2. A block that holds only what no row of its sequence will see is not in its table any more: its layer group's
//     windows are past it. A block has as many references as running sequences that hold it; those of none are free, or idle in the prefix
//     cache, which counts as free. Sequences share blocks of common tokens only, and none writes to a shared block.
//  3. num_running() <= max_num_seqs, and <= max_num_batched_tokens; none and static: members of one batch only.
//  4. A plan never holds more than max_num_batched_tokens tokens, but for one indivisible entry, nor more than
//     max_num_drafts drafts. With none in flight it is never empty while a member of the batch is there: of the running
//     sequences that do not give way, the best is never preempted and always gets tokens and blocks.
//  5. A request is preempted at most kMaxPreemptions times for memory and num_levels times for a better rank
//     (admission.h says why).
//  6. Every output token is given once: a preempted sequence samples again only after its last known token.
//  7. At most one running sequence lags, that is, has more than one token to compute beyond those out of place.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <variant>
#include <vector>

#include "base/status.h"
#include "cache/block_allocator.h"
#include "cache/block_table.h"
#include "cache/prefix_cache.h"
#include "cache/state_snapshots.h"
#include "core/completion.h"
#include "core/layer_groups.h"
#include "core/prompt_blocks.h"
#include "core/request.h"
#include "core/step_plan.h"
#include "core/types.h"
#include "scheduler/admission.h"
#include "scheduler/answer_lengths.h"
#include "scheduler/constrained_drafts.h"
#include "scheduler/proposer.h"
#include "scheduler/scheduler_config.h"
#include "scheduler/sequence.h"
#include "scheduler/waiting_queue.h"

namespace llmb {

// The meaning of one token of a StepOutput. With `finish` the sequence has left the scheduler and its blocks are free.
struct SequenceUpdate {
  SeqId seq = 0;
  int32_t choice = 0;
  TokenId token = 0;
  int32_t given = 0;     // of the StepOutput's tokens; of a beam the first of its best ones
  int32_t num_best = 0;  // of a beam: so many, the sequence has got none of them
  bool is_prompt = false;  // a token of the prompt, in order, whose log-probability was asked for
  std::optional<FinishReason> finish;
  std::optional<TokenId> stop_token;  // == token where that one ended it
  bool numeric_error = false;         // no token: a logit was not finite, or none could be chosen; finish == kError
  bool has_no_choice = false;         // the latter: the request's constraint and bias leave no token
  int32_t num_preemptions = 0;        // of the sequence until now
  int32_t num_cached_tokens = 0;      // of its prompt, that others had computed
  CountsByDrafter drafted = {};       // of the sequence until now, this step's included
};

// A choice of a request goes on as another one of them, with a token more.
struct BeamFork {
  int32_t choice = 0, parent = 0;
  TokenId token = 0;
};

// Slots of the KV pool: allocated - used is what paging wastes.
struct KvUsage {
  int64_t used_slots = 0;       // hold a computed token, or will when the plans in flight have run
  int64_t allocated_slots = 0;  // in blocks of running sequences
  int64_t total_slots = 0;
};

// Counted since the start.
struct PromptTokens {
  int64_t num_asked = 0;     // of sequences that have joined
  int64_t num_saved = 0;     // of these, that were there when the sequence first joined
  int64_t num_computed = 0;  // what preempted sequences compute again included
};

class Scheduler {
 public:
  // The proposer outlives the scheduler; null: no drafts.
  explicit Scheduler(const SchedulerConfig& config, Proposer* proposer = nullptr);

  // Takes the request, or says at once why it can never run. Ids count from 0 in order of add(), the choices of a
  // request follow each other and the first one's id is returned; `now_ms` (the arrival) must not decrease. REQUIRES: a
  // prompt of at least one token, max_tokens >= 1, num_choices >= 1.
  std::variant<SeqId, RequestError> add(std::shared_ptr<const Request> request, double now_ms);

  // The first `num_tokens` of the prompt of a sequence that has just been added, whole blocks, were computed elsewhere.
  // `to_fill` gets the blocks of the host's pool, and the state slot, that the caller fills with what the sequence has
  // there, before the next plan runs (Backend::write_host_blocks): the sequence then goes on behind them as one that was
  // swapped out, from a snapshot of its state. None where room is lacking, or the sequence shares nothing: it computes its
  // prompt.
  void receive(SeqId seq, int32_t num_tokens, PlacesToFill* to_fill);

  // Fills `plan` for one step. False: nothing to run now: no work, or a batch is still being filled, see
  // next_wakeup_ms(); or, with a plan in flight, nothing that can be planned ahead. `more_may_arrive` says whether
  // waiting to fill a static or dynamic batch can help: false when the input has ended or the caller holds as many
  // requests as it may. REQUIRES: fewer than max_plans_in_flight().
  bool schedule(double now_ms, bool more_may_arrive, StepPlan* plan);

  int32_t max_plans_in_flight() const { return std::max(kMaxPlansInFlight, config_.num_alternating); }

  // When schedule() would start a dynamic batch that is still being filled.
  std::optional<double> next_wakeup_ms() const;

  // Takes over the output of the oldest plan in flight; `updates` gets one entry for each token given, in order, but
  // none for sequences that ended in the meantime, nor for what comes behind a sequence's last token.
  void apply(const StepPlan& plan, const StepOutput& output, std::vector<SequenceUpdate>* updates);

  // The choices of the request whose first one is `first` go on; those that are not named stay as they are. Takes one
  // block copy at most for each choice that is not its own parent. REQUIRES: all that are named await it; each choice
  // once; who is a parent is its own, too; no sequence has max_tokens then
  void fork(SeqId first, std::span<const BeamFork> forks);

  // The caller ends a sequence (stop string, abort, drain): its blocks are free. REQUIRES: contains(seq)
  void finish(SeqId seq);

  const Sequence* find(SeqId seq) const;  // null: it has ended
  bool contains(SeqId seq) const { return find(seq) != nullptr; }
  int32_t num_preemptions(SeqId seq) const;  // REQUIRES: contains(seq)
  bool has_work() const { return !running_.empty() || !waiting_.empty(); }
  int64_t num_waiting() const { return waiting_.size(); }  // preempted ones included
  // Without those that end with the plan in flight.
  int32_t num_running() const { return static_cast<int32_t>(running_.size()) - num_ending_; }
  int32_t num_free_blocks() const { return allocator_.num_free(); }
  int64_t num_preemptions_total() const { return num_preemptions_total_; }
  KvUsage kv_usage() const;
  const PromptTokens& prompt_tokens() const { return prompt_tokens_; }
  int64_t num_evictions() const { return cache_.num_evictions(); }
  const SchedulerConfig& config() const { return config_; }

  // Whether moving a preempted sequence's blocks to the host and back takes less time than computing them again. From
  // the next plan on; at first it does not.
  void set_swap_pays(bool pays) {
    if (config_.preemption == PreemptionMode::kAuto && !needs_snapshots()) cache_.keep_evicted(pays);
  }
  int32_t num_free_host_blocks() const { return cache_.num_free_host_blocks(); }
  bool has_room_for_state() const { return !needs_snapshots() || snapshots_.has_room(); }  // that was computed elsewhere

  // While sequences with constraints run: whether they sit out plans ahead alone, or nothing is planned ahead. Nullopt,
  // as at first: alone where they are fewer than half.
  void set_constrained_wait_alone(std::optional<bool> alone) { constrained_wait_alone_ = alone; }
  int32_t num_constrained() const;  // that run

  // For tests: who runs, in order.
  std::vector<SeqId> running_ids() const;
  // Ok, or the invariant that does not hold. For tests, after any call.
  Status check_integrity() const;

 private:
  // The part of a step's budgets that running sequences leave for drafts.
  struct Spare {
    int64_t blocks = 0;  // negative: they do not even suffice for running sequences
    int32_t tokens = 0;
  };
  // The part of a waiting sequence's tokens that is computed already.
  struct Shared {
    int32_t num_tokens = 0;
    const Sequence* from = nullptr;  // another choice of its request, in whose blocks they are; null: in these
    std::vector<NodeId> nodes;       // full ones of the prefix cache
    NodeId copy_from = kNoNode;      // and one that begins with the rest
    int32_t num_idle = 0;            // of these nodes' blocks: nobody references them
    int32_t num_on_host = 0;         // and must be brought back
    int32_t group = kNoGroup;        // of the plan: samples the prompt's last row
    bool must_wait = false;          // more is being computed
    int32_t state_slot = -1;         // a snapshot behind these tokens
    int32_t num_in_blocks = 0;       // tokens in whole blocks of the cache, with or without a snapshot
  };

  void plan_step(double now_ms, bool more_may_arrive, StepPlan* plan);
  WaitingLine waiting_line() const;
  bool schedule_running(int32_t* token_budget, StepPlan* plan);
  bool alternates() const { return config_.num_alternating > 1 && !forms_one_plan_; }
  // A plan's part of so many sequences.
  int64_t part_of_plan(int64_t num_sequences) const {
    return alternates() ? ceil_div(num_sequences, config_.num_alternating) : INT64_MAX;
  }
  bool must_see_all() const;
  bool is_planned(const Sequence& sequence) const;
  int32_t num_planned_behind(size_t running) const;
  int32_t tokens_for(size_t running, int32_t token_budget) const;
  int32_t num_scorable(const Sequence& sequence, int32_t base, int32_t num_tokens) const;
  void reserve_score_rows(const Sequence& sequence, int32_t num_tokens);
  void take_scores(const StepPlan& plan, const StepOutput& output, int32_t group, const Sequence& sequence,
                   std::vector<SequenceUpdate>* updates);
  Spare spare_after_running(int32_t token_budget) const;
  void begin_proposals(bool has_blocks, int32_t num_rows);
  int32_t num_lendable() const;
  void propose(Sequence* sequence, Spare* spare);
  void clear_drafts() { drafts_.clear(), draft_states_.clear(), num_forced_drafts_ = 0; }
  void admit(int32_t* token_budget, StepPlan* plan);
  Shared find_shared(const Sequence& candidate, const StepPlan& plan) const;
  Shared find_choice(const Sequence& candidate, const StepPlan& plan) const;
  Shared find_cached(const Sequence& candidate) const;
  int32_t num_groups() const { return static_cast<int32_t>(config_.windows.size()); }
  int32_t first_block_seen(int32_t layer_group, int32_t position) const {
    return first_seen(config_.windows[layer_group], position) / config_.block_size;
  }
  bool is_in_all_groups(NodeId node) const;
  void cut_to_usable(Shared* shared) const;
  void count_blocks(Shared* shared) const;
  void share_cached(const Shared& shared, Sequence* sequence, StepPlan* plan);
  void bring_back(const Shared& shared, StepPlan* plan);
  void copy_part(const Shared& shared, Sequence* sequence, StepPlan* plan);
  // Tokens that the cache knows, the last ones those that the node begins with.
  struct Cached {
    NodeId node = kNoNode;
    int32_t num_tokens = 0;
  };
  Cached wanted_by(const Sequence& sequence) const { return {sequence.wanted_node, sequence.num_wanted_tokens}; }
  void want(const Cached& computed, Sequence* sequence);
  void unwant(Sequence* sequence);
  bool has_seat() const;
  bool fits(const Sequence& candidate, Shared* shared) const;
  bool has_blocks_for(const Sequence& candidate, const Shared& shared) const;
  bool goes_by_prediction() const;
  double expected_growth(const Sequence& sequence, int32_t num_steps) const;
  double expected_peak(const Sequence& candidate, int64_t num_wanted, int64_t growth) const;
  void join(Sequence* sequence, const Shared& shared, StepPlan* plan);
  bool keeps_prefix_of(const Sequence& sequence) const {
    // Keys and values of a bidirectional prompt depend on tokens behind them.
    return config_.enable_prefix_caching && !sequence.request->is_indivisible;
  }
  bool has_uncached_block(const Sequence& sequence, int32_t num_tokens) const {
    return config_.enable_prefix_caching && (sequence.num_blocks_in_cache + 1) * config_.block_size <= num_tokens;
  }
  void cache_planned(Sequence* sequence, int32_t num_tokens);
  void cache_full_blocks(Sequence* sequence, int32_t num_tokens, int32_t num_ready);
  NodeId cache_last_block(Sequence* sequence, int32_t num_tokens, int32_t num_ready);
  bool takes_cached(Sequence* sequence, int32_t i, NodeId node, bool is_planned);
  void stand_at(NodeId node, int32_t num_blocks, Sequence* sequence);
  void stand_beside(const Sequence& other, int32_t num_full_blocks, Sequence* sequence);
  Cached cache_computed(Sequence* sequence);
  void let_go_of_blocks(Sequence* sequence);
  void give_back_unseen(Sequence* sequence);
  void plan_copy(BlockTable::Copy copy, StepPlan* plan);
  int64_t growth_asked_by(const Sequence& candidate) const;
  int64_t blocks_wanted_with(const Sequence& candidate, const Shared& shared, int64_t growth) const;
  bool needs_copy(const Sequence& sequence, int32_t layer_group) const;
  int32_t num_copies_needed(const Sequence& sequence) const;
  int64_t blocks_needed(const Sequence& sequence, int32_t num_tokens) const;
  int32_t take_blocks(Sequence* sequence, int32_t num_tokens, StepPlan* plan);
  void take_state(Sequence* sequence, StepPlan* plan);
  void share_state(const Sequence& other, Sequence* sequence);
  void let_go_of_state(Sequence* sequence);
  int32_t snapshot(NodeId node) const { return snapshots_.find(node, cache_.serial(node)); }
  bool needs_snapshots() const { return config_.num_state_slots > 0 && config_.state_period == 0; }
  bool keeps_snapshots_of(const Sequence& sequence) const {
    return needs_snapshots() && config_.num_snapshots > 0 && keeps_prefix_of(sequence);
  }
  void find_forks(const Shared& shared, Sequence* sequence) const;
  int32_t up_to_fork(const Sequence& sequence, int32_t num_tokens) const;
  bool ends_at_fork(const Sequence& sequence, int32_t num_tokens) const;
  NodeId node_behind(const Sequence& sequence, int32_t num_tokens) const;
  void keep_snapshot(Sequence* sequence);
  int32_t want_snapshot(NodeId node);
  void release_copied();
  Status check_states() const;
  void find_yielding(const StepPlan& plan);
  int32_t num_freed_by(const Sequence& sequence, const Shared& head) const;
  bool may_yield(const Sequence& sequence, const Sequence& to) const;
  void preempt(Sequence* sequence, int32_t Sequence::*counter);
  bool park_one();
  void enter_running(Sequence* sequence);
  void leave_running(Sequence* sequence);
  void consider_demotion(Sequence* sequence);
  void plan_entry(Sequence* sequence, int32_t num_tokens, StepPlan* plan);
  void commit(const StepPlan& plan);
  void take_tokens(const StepPlan& plan, const StepOutput& output, int32_t group, Sequence* sequence,
                   std::vector<SequenceUpdate>* updates);
  static SequenceUpdate update_of(const Sequence& sequence);
  void take_best(const StepOutput& output, int32_t group, Sequence* sequence, std::vector<SequenceUpdate>* updates);
  void share_blocks(const Sequence& parent, Sequence* sequence);
  void end(Sequence* sequence, bool keeps_prefix);
  Sequence* find_mutable(SeqId seq) { return const_cast<Sequence*>(find(seq)); }
  Status check_running() const;
  Status check_waiting() const;
  Status check_blocks() const;
  Status check_cached(const Sequence& sequence) const;
  Status check_wanted(const Sequence& sequence) const;

  const SchedulerConfig config_;
  const bool has_windows_;
  Proposer* const proposer_;
  PrefixCache cache_;
  BlockAllocator allocator_;
  BlockAllocator states_;  // its blocks are state slots
  StateSnapshots snapshots_;
  std::unordered_map<SeqId, std::unique_ptr<Sequence>> sequences_;
  std::vector<Sequence*> running_;
  WaitingQueue waiting_;
  AnswerLengths answer_lengths_;
  double now_ms_ = 0;  // of the newest call that named it
  SeqId next_id_ = 0;
  int64_t next_step_ = 0;
  int32_t num_in_flight_ = 0;    // plans scheduled and not yet applied
  bool forms_one_plan_ = false;  // as the proposer said when the newest plan was begun
  int32_t num_ending_ = 0;     // of running_: end with the plan in flight
  std::optional<bool> constrained_wait_alone_;  // as it was set
  int64_t num_preemptions_total_ = 0;
  PromptTokens prompt_tokens_;
  // While a plan is made:
  int64_t num_candidates_ = 0;                               // at the head of waiting_: may run now
  std::vector<Sequence*> yielding_;                          // of running_: give way to the first of them
  std::vector<Sequence*> planned_entries_, planned_groups_;  // whose they are
  std::vector<int32_t> states_copied_from_;                  // the same of state slots
  std::vector<BlockId> copied_from_;                         // still referenced, so that nobody gets them meanwhile
  Drafts drafts_;
  DraftStates draft_states_;
  int32_t num_spare_rows_ = 0;           // sample rows for drafts and for prompts that are scored
  int32_t num_forced_drafts_ = 0;        // of drafts_, the last ones
  struct PlannedDrafts {
    int32_t num_forced = 0, drafter = 0;
  };
  std::vector<PlannedDrafts> planned_drafts_;  // [entries]
  std::vector<const Sequence*> decoding_, behind_;
  std::vector<BlockId> blocks_at_;
  std::vector<BlockId> brought_back_;  // while a sequence joins: held until it holds them
};

}  // namespace llmb
