// The first lines of inputs, in files of their own.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "job/job_options.h"

namespace llmb {

// A folder in the system's place for such, removed with what is in it.
class ScratchFolder {
 public:
  ScratchFolder();  // throws std::system_error
  ~ScratchFolder();
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  std::string file(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

struct LineSample {
  std::vector<std::string> files;
  int64_t num_lines = 0;
  bool has_all = false;  // the inputs have no more
};

// Writes at most max_lines lines, and at most kMaxSampleBytes of them, to a file for each input that they come from.
inline constexpr int64_t kMaxSampleBytes = int64_t{256} << 20;
Result<LineSample> take_sample(const JobOptions& options, int64_t max_lines, const std::string& name,
                               const ScratchFolder& folder);

}  // namespace llmb
