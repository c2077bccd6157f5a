// The shard that a scheduler's environment variables name: `--shard auto`.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/status.h"
#include "job/shard.h"

namespace llmb {

// Where a scheduler says which of its tasks this is. The manual's table of variables is made of the same names; a test
// compares them.
struct ShardSource {
  const char* name;
  std::string index, count;  // variables
  std::string first = "";    // variable of the lowest index; "": it is 0
};
const std::vector<ShardSource>& shard_sources();

// Null where a variable is not set.
using Environment = std::function<const char*(const char* name)>;

// kInvalidArgument names the variables: none is set, a count is missing, a value is no number or does not fit, or two
// sources contradict each other. A source that names one task of one says nothing where another one names more.
Result<Shard> shard_of_environment(const Environment& environment);

}  // namespace llmb
