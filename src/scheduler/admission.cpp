#include "scheduler/admission.h"

#include <algorithm>
#include <limits>
#include <string>

#include "core/layer_groups.h"

namespace llmb {

int64_t num_batch_members(const SchedulerConfig& config, const WaitingLine& line, double now_ms, bool more_may_arrive) {
  if (config.batching == BatchingMode::kContinuous) return line.num_waiting;
  if (line.num_running + line.num_members > 0) return line.num_members;  // the batch has not ended
  const int64_t num_fitting = std::min<int64_t>(line.num_waiting, config.max_num_seqs);
  if (config.batching == BatchingMode::kNone) return std::min<int64_t>(num_fitting, 1);
  if (num_fitting == config.max_num_seqs || !more_may_arrive) return num_fitting;
  const std::optional<double> deadline = batch_deadline_ms(config, line);
  return deadline && now_ms >= *deadline ? num_fitting : 0;
}

std::optional<double> batch_deadline_ms(const SchedulerConfig& config, const WaitingLine& line) {
  if (config.batching != BatchingMode::kDynamic || line.num_waiting == 0) return std::nullopt;
  if (line.num_running + line.num_members > 0) return std::nullopt;
  return line.oldest_arrival_ms + config.batch_window_ms;
}

int64_t growth_blocks(int32_t num_preemptions) {
  return num_preemptions < kMaxPreemptions ? int64_t{1} << num_preemptions : std::numeric_limits<int32_t>::max();
}

namespace {

// Rows of a step that computes up to `num_pending` tokens, or goes on behind tokens that are not seen or out of place.
int64_t rows_of_step(const SchedulerConfig& config, const Request& request, int64_t num_pending) {
  const int64_t chunk =
      request.is_indivisible ? num_pending : std::min<int64_t>(num_pending, config.max_num_batched_tokens);
  const int64_t misplaced = config.allows_trees ? std::min(config.max_num_drafts, config.max_drafts_per_group) : 0;
  return std::max(chunk, 1 + kMaxPlansInFlight + misplaced);
}

}  // namespace

int64_t most_rows(const SchedulerConfig& config, const Sequence& sequence) {
  return rows_of_step(config, *sequence.request, sequence.num_pending_tokens()) + sequence.max_unseen_tokens();
}

int64_t num_blocks_wanted(const SchedulerConfig& config, const Sequence& sequence, int64_t growth) {
  const int32_t block_size = config.block_size;
  const int64_t soon = ceil_div(sequence.num_known_tokens() + sequence.max_unseen_tokens(), block_size) + growth;
  const int64_t ever = ceil_div(sequence.max_cached_tokens(), block_size);
  int64_t num_wanted = 0;
  for (int32_t g = 0; g < sequence.blocks.num_groups(); ++g) {
    const int64_t num_live = max_live_blocks({&config.windows[g], 1}, std::min(soon, ever),
                                             most_rows(config, sequence), block_size);
    num_wanted += std::max<int64_t>(0, num_live - sequence.blocks.num_live(g));  // drafts may have more
  }
  return num_wanted;
}

int64_t max_new_tokens(const SchedulerConfig& config, const Request& request) {
  const int64_t room = config.max_model_len - static_cast<int64_t>(request.prompt_tokens.size());
  if (request.is_indivisible && room == 0) return 1;  // that is not computed: a vector stands for it
  return std::min<int64_t>(room, request.params.stop.max_tokens.value_or(config.max_model_len));
}

std::optional<RequestError> never_fits(const SchedulerConfig& config, const Request& request) {
  for (const auto& part : request.parts)
    if (std::optional<RequestError> error = never_fits(config, *part)) return error;
  const int64_t num_prompt = static_cast<int64_t>(request.prompt_tokens.size());
  if (num_prompt + (request.is_indivisible ? 0 : 1) > config.max_model_len)
    return RequestError{"prompt_too_long", "the prompt has " + std::to_string(num_prompt) + " tokens, the limit is " +
                                               std::to_string(config.max_model_len - 1) + " (a context of " +
                                               std::to_string(config.max_model_len) +
                                               " tokens with room for one new token)"};
  if (request.params.sampling.beams && num_best_tokens(request) > config.max_best_tokens)
    return RequestError{"invalid_value",
                        "beam_width and the tokens that may end an answer are " +
                            std::to_string(num_best_tokens(request)) + ", this device supports " +
                            std::to_string(config.max_best_tokens) + "; lower beam_width",
                        "beam_width"};
  if (request.params.score.prompt_logprobs && !(config.scores_prompts && config.max_num_drafts > 0))
    return RequestError{"unsupported_field", "this device computes no prompt_logprobs", "prompt_logprobs"};
  const int64_t num_new = max_new_tokens(config, request);
  const int64_t num_cached = num_prompt + num_new - 1;
  const int64_t num_needed = max_live_blocks(config.windows, ceil_div(num_cached, config.block_size),
                                             rows_of_step(config, request, num_cached), config.block_size);
  if (num_needed > config.num_blocks)
    return RequestError{"kv_too_small", "needs " + std::to_string(num_needed) + " blocks, pool has " +
                                            std::to_string(config.num_blocks) + " (" + std::to_string(num_prompt) +
                                            " prompt tokens and up to " + std::to_string(num_new) + " new ones, " +
                                            std::to_string(config.block_size) +
                                            " tokens a block); lower max_tokens or enlarge the KV cache"};
  return std::nullopt;
}

}  // namespace llmb
