// The rows of a shard where rows that share a prefix stay together (`shard_by` prefix).
#pragma once

#include <memory>
#include <vector>

#include "base/status.h"
#include "io/line_filter.h"
#include "job/done_rows.h"
#include "job/job_options.h"
#include "job/model_files.h"

namespace llmb {

// Reads and tokenises all inputs, which must be files. By line index whether the shard has the row. The same for all
// shards: it depends on the inputs' bytes, the tokenizer, the limits of the lines and the number of shards.
// kInvalidArgument: an input is no file; kCancelled: keep_going said no; errors of LineReader.
// REQUIRES: load_model_context()
Result<std::shared_ptr<const std::vector<bool>>> find_prefix_rows(const JobOptions& options, const ModelFiles& model,
                                                                  const KeepGoing& keep_going);

// The rows of a run, as its options say; null: all. `done` and `own` (may be null) outlive it. Errors as above, which
// only shards by prefix have. REQUIRES: load_model_context() for these.
Result<std::shared_ptr<const LineFilter>> choose_rows(const JobOptions& options, const ModelFiles& model,
                                                      const DoneRows& done, const CompletedLines* own,
                                                      const KeepGoing& keep_going);

}  // namespace llmb
