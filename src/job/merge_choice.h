// Which adapters run with weights that are merged for them (`merge_adapters`). Merged weights give other bytes than
// matrices beside the base's, so the choice is made once for all rows of an adapter, before the first one: by the whole
// input, and by nothing that differs between schedules, shards and workers. It is part of the fingerprint, and an
// output that is continued keeps the choice that it was begun with.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "job/job_model.h"
#include "job/job_options.h"
#include "job/run_manifest.h"

namespace llmb {

struct MergeChoice {
  std::vector<std::string> merged;     // adapters by name, in order
  std::vector<std::string> decisions;  // for people, a line each
};

// kUnsupported, by name: another device than a CPU, or weights of the base in few bits.
Status check_can_merge(const JobOptions& options, DeviceKind device, const ModelConfig& model);

// As an output that is continued was begun.
MergeChoice recorded_choice(const Fingerprint& recorded);

// By rows and predicted cost (merge_cost.h). An input that can be read only once merges nothing, and an adapter that
// cannot be read is not merged. REQUIRES: load_model_context(). kCancelled; an error of the input.
Result<MergeChoice> choose_merged(const JobOptions& options, const ModelFiles& model, const KeepGoing& keep_going);

// kResourceExhausted, by name: `adapter_memory`, or a worker's part of it, has no room for the weights of one of them.
Status check_merged_room(const JobOptions& options, const ModelFiles& model, const std::vector<std::string>& merged);

// The library's adapters of these names are merged from now on.
void mark_merged(const std::vector<std::string>& merged, const ModelFiles& model);

// Where there are some: without any a job's settings are those of one that never merges.
void add_merged(const std::vector<std::string>& merged, Fingerprint* fingerprint);

}  // namespace llmb
