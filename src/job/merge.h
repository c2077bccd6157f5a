// Makes one output of the outputs of all shards of a job, as one run would have written it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/file_ops.h"
#include "base/status.h"
#include "job/job_options.h"
#include "job/result_stream.h"

namespace llmb {

struct MergeOptions {
  std::string build;
  std::string output;
  std::vector<std::string> shards;               // outputs, finished or partial; files beside them are passed over
  OutputOrder order = OutputOrder::kCompletion;  // kCompletion: the shards' records one shard after the other
  bool restart = false;                          // replaces what stands under the output's name
};

struct MergeResult {
  int64_t num_records = 0, num_failed = 0;
  std::vector<std::string> shards;  // that were merged
  bool was_complete = false;        // the output was there already: nothing was done
};

// The output, durable, and its manifest, which a later run continues. `created` of the records is that of the shard
// that began first. Memory: some 5 bytes a record and RecordRuns'.
//
// kConflict, kDataLoss, kUnsupported: a shard is missing, unfinished, damaged, of another job or input, or two hold one
// row (exit 7) · kInvalidArgument (2) · kBusy: a run writes a shard or the output (8) · kIoError (6) · kCancelled.
Result<MergeResult> merge_outputs(const MergeOptions& options, const KeepGoing& keep_going,
                                  FileOps& ops = real_file_ops());

}  // namespace llmb
