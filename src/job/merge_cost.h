// Whether weights that are merged for an adapter are predicted to cost less than its matrices beside the base's. Pure,
// and the same on every machine: shards of a job decide alike.
#pragma once

#include <cstdint>

#include "core/model_config.h"
#include "model/lora_adapter.h"

namespace llmb {

// Rows of an input that name one adapter; tokens as far as they are known before the rows run.
struct AdapterRowTotals {
  int64_t num_rows = 0, num_choices = 0, num_prompt_tokens = 0, num_output_tokens = 0;

  int64_t num_tokens() const { return num_prompt_tokens + num_output_tokens; }
};

// Beyond the products of the base, in multiply-adds of these.
struct MergeCost {
  double beside = 0;  // its matrices, at every token
  double merged = 0;  // making the weights, and steps in which other rows run beside

  bool merges() const { return merged < beside; }
};

// has_others: the input has rows without this adapter. Zeros where the adapter has nothing that can be merged.
MergeCost merge_cost(const LoraAdapter& adapter, const ModelConfig& model, const AdapterRowTotals& rows,
                     bool has_others);

// The memory that weights take which are merged for the adapter, and the rest of its matrices; without padding.
int64_t merged_bytes(const LoraAdapter& adapter, const ModelConfig& model);

}  // namespace llmb
