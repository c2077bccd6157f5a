// The rules of who may join the running sequences and when: pure functions over small values.
//
// A sequence that was preempted k times is let in again only where every running sequence and itself could still grow
// by 2^k blocks, and after kMaxPreemptions only where all of them could grow to their ends. From then on it cannot be
// preempted any more: whoever is older fits beside it for good, and whoever is younger is preempted before it. So no
// request is preempted more than kMaxPreemptions times, however small the pool is.
#pragma once

#include <cstdint>
#include <optional>

#include "core/completion.h"
#include "scheduler/scheduler_config.h"
#include "scheduler/sequence.h"

namespace llmb {

inline constexpr int32_t kMaxPreemptions = 8;

// The waiting line as the batching modes see it. Members of the batch that may run now stand at its head.
struct WaitingLine {
  int64_t num_running = 0;
  int64_t num_members = 0;       // waiting, but belong to the running batch: not started yet, or preempted
  int64_t num_waiting = 0;       // members included
  double oldest_arrival_ms = 0;  // of the first in the line; means nothing in an empty line
};

// How many sequences at the head of the line may run now: num_members of the next step.
int64_t num_batch_members(const SchedulerConfig& config, const WaitingLine& line, double now_ms, bool more_may_arrive);

// When a dynamic batch that is still being filled starts at the latest; nullopt where nothing waits for time.
std::optional<double> batch_deadline_ms(const SchedulerConfig& config, const WaitingLine& line);

// By how many blocks everybody must be able to grow when a sequence with so many preemptions joins.
int64_t growth_blocks(int32_t num_preemptions);

// Blocks that the sequence lacks for its known tokens and `growth` blocks more, as far as it can ever need them.
int64_t num_blocks_wanted(const Sequence& sequence, int32_t block_size, int64_t growth);

// Output tokens that max_tokens and the context's end allow; <= 0 where the prompt leaves no room.
int64_t max_new_tokens(const SchedulerConfig& config, const Request& request);

// Why the request can never run on an empty pool ("prompt_too_long", "kv_too_small"); nullopt: it can.
std::optional<RequestError> never_fits(const SchedulerConfig& config, const Request& request);

}  // namespace llmb
