// Prefill and decode apart: one engine computes the whole blocks of a prompt, another goes on behind them. Blocks, and the
// recurrent state behind them, are the same whoever computes them, so no byte of an answer depends on it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "backend/backend.h"
#include "core/prompt_blocks.h"
#include "core/request.h"
#include "core/step_plan.h"
#include "scheduler/scheduler.h"

namespace llmb {

// Tokens of the prompt that may be computed elsewhere, in whole blocks: the last one is not, what is sampled stands
// behind it. 0: it is to be computed where the answer is.
int32_t num_movable_tokens(const Request& request, int32_t block_size);

// That computes these tokens, by way of one that it samples behind them. REQUIRES: num_movable_tokens() > 0
std::shared_ptr<Request> prompt_request(const Request& request, int32_t block_size);

// Copies the blocks of `seq`, which the plan has computed to their ends, and its state; nullopt where a rank has failed.
// REQUIRES: the plan has run and has an entry of it, and none of its blocks has been given to another since, nor its state
// slot
std::optional<PromptBlocks> read_prompt(const StepPlan& plan, SeqId seq, Backend& backend);

// The sequence, which was just added, goes on behind the blocks where there is room for them.
void write_prompt(const PromptBlocks& blocks, SeqId seq, Scheduler& scheduler, Backend& backend);

}  // namespace llmb
