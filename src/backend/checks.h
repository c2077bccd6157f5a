// Every backend checks the options of load() and the plans of submit() before it works. A kernel trusts a plan.
#pragma once

#include <cstdint>
#include <exception>
#include <new>
#include <string>
#include <system_error>

#include "backend/backend.h"
#include "base/status.h"
#include "core/draft_counts.h"
#include "core/drafted_tokens.h"
#include "core/model_config.h"
#include "core/step_plan.h"
#include "model/adapter_library.h"

namespace llmb {

// Runs `body`, turning what it throws into a Status; status_of(const std::exception&) says what an error means that is
// neither of memory nor of threads.
template <typename StatusOf, typename Body>
Status guarded(const StatusOf& status_of, const Body& body) {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    return resource_exhausted("out of memory");
  } catch (const std::system_error& e) {
    return resource_exhausted(std::string("no thread could be started: ") + e.what());
  } catch (const std::exception& e) {
    return status_of(e);
  }
}

inline Status check_range(const char* name, int64_t value, int64_t min, int64_t max) {
  if (value >= min && value <= max) return {};
  return invalid_argument(std::string(name) + " is " + std::to_string(value) + ", expected " + std::to_string(min) +
                          " to " + std::to_string(max));
}

inline Status check_load_options(const ModelConfig& config, const LoadOptions& o) {
  LLMB_RETURN_IF_ERROR(check_range("block_size", o.block_size, 1, 4096));
  LLMB_RETURN_IF_ERROR(check_range("max_num_seqs", o.max_num_seqs, 1, 1 << 20));
  LLMB_RETURN_IF_ERROR(check_range("max_num_batched_tokens", o.max_num_batched_tokens, 1, 1 << 20));
  LLMB_RETURN_IF_ERROR(check_range("max_num_drafts", o.max_num_drafts, 0, 1 << 20));
  LLMB_RETURN_IF_ERROR(check_range("max_model_len", o.max_model_len, 1, config.max_position_embeddings));
  LLMB_RETURN_IF_ERROR(check_range("num_blocks", o.num_blocks_override, 0, INT32_MAX));
  LLMB_RETURN_IF_ERROR(check_range("kv_cache_bytes", o.kv_cache_bytes, 0, INT64_MAX));
  return check_range("num_threads", o.num_threads, 0, 1024);
}

// A plan against the pool and the limits that memory was laid out for. `in_flight` is the plan before it while that is
// in flight, else null.
inline Status check_plan(const StepPlan& plan, const ModelConfig& config, const LoadOptions& options,
                         const BackendInfo& info, const StepPlan* in_flight, const DraftRules& drafts = {}) {
  LLMB_RETURN_IF_ERROR(validate_step_plan(plan, info.kv.num_blocks, in_flight, info.num_host_blocks, drafts));
  if (plan.block_size != info.kv.block_size) return internal_error("plan has another block_size");
  if (plan.num_layer_groups != info.kv.groups.num_groups()) return internal_error("plan has other layer groups");
  if (!info.verifies_trees && !plan.parent_rows.empty()) return internal_error("plan has trees");
  const bool has_layers = plan.num_layers >= 0 && plan.num_layers <= config.num_hidden_layers;
  if (!has_layers || (plan.num_layers > 0 && !info.runs_first_layers))
    return internal_error("plan has " + std::to_string(plan.num_layers) + " layers");
  if (plan.is_mtp && !info.has_mtp) return internal_error("plan runs a layer behind the last one");
  if (static_cast<int64_t>(plan.hidden_rows.size()) * info.num_heads < plan.num_samples() && !plan.hidden_rows.empty())
    return internal_error("plan has too many heads");
  for (const int32_t row : plan.hidden_rows)
    if (row >= options.max_num_samples()) return internal_error("plan has a hidden row that no step has");
  if (!info.copies_blocks && !plan.block_copies.empty()) return internal_error("plan copies blocks");
  for (const SampleGroup& group : plan.groups)
    if (group.mode == SampleMode::kScore && !info.scores_prompts) return internal_error("plan scores a prompt");
  for (const SampleGroup& group : plan.groups)
    if (group.mode == SampleMode::kVerify && num_guesses(plan, group) > info.max_drafts_per_group)
      return internal_error("plan has too many drafts in a group");
  for (const StepEntry& entry : plan.entries) {
    const bool has_slot = entry.state_slot >= 0 && entry.state_slot < info.num_state_slots;
    const bool runs_layers = plan.hidden_rows.empty() && !plan.is_mtp;
    if (has_slot != (info.num_state_slots > 0 && runs_layers)) return internal_error("plan has other state slots");
    if (entry.adapter >= (options.adapters ? options.adapters->size() : 0))
      return internal_error("plan has an adapter that is not known");
  }
  for (const StateCopy& copy : plan.state_copies)
    if (std::max(copy.from, copy.to) >= info.num_state_slots) return internal_error("plan copies state slots that are not there");
  if (plan.num_tokens() > options.max_num_batched_tokens) return internal_error("plan has too many tokens");
  if (plan.num_samples() > options.max_num_samples()) return internal_error("plan has too many sample rows");
  if (plan.mask_words != 0 && plan.mask_words != (config.vocab_size + 31) / 32)
    return internal_error("plan has masks of another vocabulary");
  for (const TokenId token : plan.tokens)
    if (token >= config.vocab_size)
      return internal_error("token " + std::to_string(token) + " is not in the vocabulary");
  for (int32_t e = 0; e < plan.num_entries(); ++e)
    if (plan.max_context_len(e) > options.max_model_len) return internal_error("plan goes past max_model_len");
  return {};
}

}  // namespace llmb
