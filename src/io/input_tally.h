// A sum over the lines of an input, so that outputs can be compared with the whole of it without reading it again.
#pragma once

#include <cstdint>

#include "base/mix.h"

namespace llmb {

// The same whatever the order in which lines are added, so that it can be taken of records too.
struct InputTally {
  int64_t num_lines = 0;
  uint64_t digest = 0;

  void add(int64_t index, uint64_t content_hash) {
    ++num_lines;
    digest += mix(content_hash + mix(static_cast<uint64_t>(index) + 1));
  }
  bool operator==(const InputTally&) const = default;
};

}  // namespace llmb
