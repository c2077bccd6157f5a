// One metrics line of those of several runs.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"

namespace llmb {

struct MergedOutput {
  std::string output;
  std::vector<std::string> shards;
  int64_t num_records = 0, num_failed = 0;
  int exit_code = 0;
};

// Sums counts, tokens and times of all runs in the files; files that are not there count
// nothing. Percentiles of several runs are not those of all rows: they are left out. `duration` is the longest that one
// file's runs took together, as shards run beside each other; `shard_duration` is the sum of all.
Result<std::string> merged_metrics(const std::vector<std::string>& files, const MergedOutput& merged);

}  // namespace llmb
