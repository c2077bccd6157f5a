#include "backend/ranks/packed_plan.h"

#include <cstdint>

#include "base/check.h"
#include "base/packed_bytes.h"

namespace llmb {

// Bindings name every member, so that one more does not compile until it is here.
template <typename F>
void each_member(StepEntry& entry, F f) {
  auto& [seq, base, follows, max_ahead, adapter, state_slot, is_indivisible, second_text] = entry;
  f(seq), f(base), f(follows), f(max_ahead), f(adapter), f(state_slot), f(is_indivisible), f(second_text);
}

template <typename F>
void each_member(BlockCopy& copy, F f) {
  auto& [layer_group, from, to] = copy;
  f(layer_group), f(from), f(to);
}

template <typename F>
void each_member(StateCopy& copy, F f) {
  auto& [from, to] = copy;
  f(from), f(to);
}

template <typename F>
void each_member(SharedPrefix& prefix, F f) {
  auto& [layer_group, num_blocks, begin, end] = prefix;
  f(layer_group), f(num_blocks), f(begin), f(end);
}

template <typename F>
void each_member(SampleGroup& group, F f) {
  auto& [seq, entry, row_begin, row_end, mode] = group;
  f(seq), f(entry), f(row_begin), f(row_end), f(mode);
}

template <typename F>
void each_member(PhiloxKey& key, F f) {
  auto& [seed, request] = key;
  f(seed), f(request);
}

template <typename F>
void each_member(SampleRow& row, F f) {
  auto& [group, token_row, position, choice, rng, temperature, top_p, top_k, min_p, repetition, presence, frequency,
         num_logprobs, mask, bias_begin, bias_end, penalty_begin, penalty_end] = row;
  f(group), f(token_row), f(position), f(choice), f(rng), f(temperature), f(top_p), f(top_k), f(min_p), f(repetition);
  f(presence), f(frequency), f(num_logprobs), f(mask), f(bias_begin), f(bias_end), f(penalty_begin), f(penalty_end);
}

template <typename F>
void each_member(TokenBias& bias, F f) {
  auto& [token, value] = bias;
  f(token), f(value);
}

template <typename F>
void each_member(TokenPenalty& penalty, F f) {
  auto& [token, output_count] = penalty;
  f(token), f(output_count);
}

template <typename F>
void each_member(StepPlan& plan, F f) {
  auto& [step, block_size, num_layer_groups, num_layers, is_mtp, tokens, parent_rows, hidden_rows, entries, query_start,
         block_start, block_ids, block_copies, state_copies, swaps_out, swaps_in, shared_prefixes, shared_entries,
         groups, sample_rows, bias, penalty, masks, mask_words] = plan;
  f(step), f(block_size), f(num_layer_groups), f(num_layers), f(is_mtp), f(tokens), f(parent_rows), f(hidden_rows);
  f(entries);
  f(query_start), f(block_start), f(block_ids), f(block_copies), f(state_copies), f(swaps_out), f(swaps_in);
  f(shared_prefixes), f(shared_entries), f(groups), f(sample_rows), f(bias), f(penalty), f(masks), f(mask_words);
}

std::string pack_plan(const StepPlan& plan) {
  PackedBytes bytes;
  bytes.add(plan);
  return bytes.bytes();
}

void unpack_plan(std::string_view bytes, StepPlan* plan) {
  PackedReader reader(bytes);
  reader.read(*plan);
  LLMB_CHECK(reader.at_end());
}

}  // namespace llmb
