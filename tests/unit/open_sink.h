// An output sink on a clock that stands still.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "job/output_sink.h"
#include "tests/support/faulty_file_ops.h"
#include "tests/support/process.h"
#include "tests/support/temp_dir.h"

namespace llmb {

inline Result<std::unique_ptr<OutputSink>> open_sink(const std::string& path, FileOps& ops = real_file_ops(),
                                                     std::vector<std::string> inputs = {}) {
  static VirtualClock clock;
  return OutputSink::open({path, std::move(inputs)}, clock, ops);
}

inline bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace llmb
