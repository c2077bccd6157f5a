// The lines of the inputs that a run is about.
#pragma once

#include "base/status.h"
#include "core/request.h"

namespace llmb {

class LineFilter {
 public:
  virtual ~LineFilter() = default;
  // Lines come in increasing order of index; blank ones never do. An error ends reading. From the thread that reads.
  virtual Result<bool> takes(const LineRef& line) const = 0;
};

}  // namespace llmb
