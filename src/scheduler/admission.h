// The rules of who may join the running sequences and when: pure functions over small values.
//
// Preemptions. Whoever was preempted k times for memory is let in again only where every running sequence and itself
// could still grow by 2^k blocks, and after kMaxPreemptions only where all of them could grow to their ends: from then
// on it is settled. Whoever would join before a settled sequence that runs is let in under the settled one's condition.
// A settled sequence is not preempted for memory while it runs:
//  - Of those that run before it and itself, all fit to their ends at once. So it was when it joined. Nobody gets
//    before it but by joining, since ranks of running sequences get no better and its own does not change; and then all
//    that run fit to their ends.
//  - Whoever runs behind it is preempted before it. Once it is the last, nobody lacks blocks.
// In a layer group with a window a sequence never needs more than the blocks of a step's rows and of the window before
// them (most_rows()), and the more of these is computed, the less it lacks: so the condition holds for what it lacks.
// Sharing does not change this. A shared block counts once, for all who hold it. Free blocks become fewer only by what
// running sequences grow by and by copies of shared blocks, which the condition counts, and by what joining takes, idle
// blocks of the prefix cache included. An idle block that is copied from is held for the time of one plan, when all
// running sequences have had theirs.
// Where blocks of preempted sequences move to the host, whoever was preempted less often than kMaxPreemptions is also let
// in by prediction: where the pool is not expected to be in use beyond a share of it while 2^k blocks are filled by those
// that do not end (Scheduler::expected_peak). What is said of settled ones does not go by smaller k, so the bounds stay.
// Further ahead, a pool whose sequences have begun together would stay half empty for what they grow to, which costs more
// than moving some of them.
// So no request is preempted more than kMaxPreemptions times for memory, however small the pool is. For a better rank a
// running sequence gives way at most num_levels <= kMaxLevels times, and never once it was promoted: 16 in all.
#pragma once

#include <cstdint>
#include <optional>

#include "core/completion.h"
#include "scheduler/scheduler_config.h"
#include "scheduler/sequence.h"

namespace llmb {

inline constexpr int32_t kMaxPreemptions = 8;  // for memory

// The waiting line as the batching modes see it. Members of the batch that may run now stand at its head.
struct WaitingLine {
  int64_t num_running = 0;
  int64_t num_members = 0;       // waiting, but belong to the running batch: not started yet, or preempted
  int64_t num_waiting = 0;       // members included
  double oldest_arrival_ms = 0;  // of all in the line; kDynamic only, where no batch runs and somebody waits
};

// How many sequences at the head of the line may run now: num_members of the next step.
int64_t num_batch_members(const SchedulerConfig& config, const WaitingLine& line, double now_ms, bool more_may_arrive);

// When a dynamic batch that is still being filled starts at the latest; nullopt where nothing waits for time.
std::optional<double> batch_deadline_ms(const SchedulerConfig& config, const WaitingLine& line);

// By how many blocks everybody must be able to grow when a sequence with so many preemptions for memory joins.
int64_t growth_blocks(int32_t num_preemptions);

inline bool is_settled(const Sequence& sequence) { return sequence.num_memory_preemptions >= kMaxPreemptions; }

// Rows that a step computes of the sequence from now on, at most; tokens that nobody has seen count as rows.
int64_t most_rows(const SchedulerConfig& config, const Sequence& sequence);

// Blocks that the sequence lacks for its known tokens and for `growth` blocks more in each layer group, as far as it can
// ever need them.
int64_t num_blocks_wanted(const SchedulerConfig& config, const Sequence& sequence, int64_t growth);

// Output tokens that max_tokens and the context's end allow; <= 0 where the prompt leaves no room.
int64_t max_new_tokens(const SchedulerConfig& config, const Request& request);

// Why the request can never run on an empty pool ("prompt_too_long", "kv_too_small"); nullopt: it can.
std::optional<RequestError> never_fits(const SchedulerConfig& config, const Request& request);

}  // namespace llmb
