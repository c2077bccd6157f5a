// Sorts the places of any number of records in bounded memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/file_ops.h"
#include "base/status.h"

namespace llmb {

struct RecordPlace {
  int64_t index;   // of its input line
  int64_t offset;  // in the file, in bytes
  int64_t size;
};

// Not thread-safe. Holds max_in_memory places; beyond that, sorted runs of so many go to a temporary file without a
// name, which are merged at the end, each read through an equal share of that memory.
class PlaceSorter {
 public:
  static constexpr size_t kMaxInMemory = 256 << 10;  // 6 MiB

  // `temporary`: a name that is free to be used for a moment. `ops` outlives it.
  PlaceSorter(std::string temporary, FileOps& ops, size_t max_in_memory = kMaxInMemory);
  ~PlaceSorter();
  PlaceSorter(const PlaceSorter&) = delete;
  PlaceSorter& operator=(const PlaceSorter&) = delete;

  Status add(const RecordPlace& place);
  // By increasing index. Call once, after the last add(). An error of on_place ends it.
  Status for_each(const std::function<Status(const RecordPlace&)>& on_place);

 private:
  class Run;
  Status spill();
  Status merge(const std::function<Status(const RecordPlace&)>& on_place);

  const std::string temporary_;
  FileOps& ops_;
  const size_t max_in_memory_;
  std::vector<RecordPlace> places_;
  int fd_ = -1;
  std::vector<int64_t> run_sizes_;  // places in each run of the temporary file
};

}  // namespace llmb
