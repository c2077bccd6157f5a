// Which adapters run with weights that are merged for them (Job::merge_large_adapters). Merged weights give other bytes than
// matrices beside the base's, so the choice is made once for all rows of an adapter, before the first one: by the whole
// input, and by nothing that differs between shards and workers. It is part of the fingerprint.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "job/job_model.h"
#include "job/job_options.h"
#include "job/run_manifest.h"
#include "model/lora_adapter.h"

namespace llmb {

inline constexpr const char* kMergedAdaptersName = "merged_adapters";

// The cost of an adapter's rows either way, in multiply-adds of the base's products.
struct MergeCost {
  double beside = 0;  // by its matrices, beside the products
  double merging = 0;
};

// The cost of an adapter whose rows have so many tokens; zeros where nothing of it can be merged.
MergeCost merge_cost(const LoraAdapter& adapter, int32_t num_layers, int64_t num_tokens);

struct MergeChoice {
  std::vector<std::string> merged;     // by name, in order
  std::vector<std::string> decisions;  // for people, a line each
};

// recorded: of the output that is continued, whose choice stays (null: a new one). An input that can be read only once
// merges nothing. REQUIRES: the model's context is loaded. kCancelled; an error of the input.
Result<MergeChoice> choose_merged(const JobOptions& options, const JobModel& model, const Fingerprint* recorded,
                                  const KeepGoing& keep_going);

}  // namespace llmb
