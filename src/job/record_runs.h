// Puts any number of result records into the order of their input lines, in bounded memory: what comes in order from
// one file is read there again, the rest goes to a temporary file in sorted runs, and all runs are merged.
#pragma once

#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/descriptor.h"
#include "base/file_ops.h"
#include "base/status.h"

namespace llmb {

// Not thread-safe; a thread of its own sorts and writes a run while the next one is taken in. Memory: three times
// max_in_memory, or as much as the largest records of all runs take.
class RecordRuns {
 public:
  static constexpr size_t kMaxInMemory = size_t{128} << 20;  // bytes of records

  // `temporary`: a name that is free to be used for a moment. `ops` outlives it.
  RecordRuns(std::string temporary, FileOps& ops, size_t max_in_memory = kMaxInMemory);
  ~RecordRuns();
  RecordRuns(const RecordRuns&) = delete;
  RecordRuns& operator=(const RecordRuns&) = delete;

  // The records that follow are those of this file, whole and in its order; read again where they are in order.
  Status begin_file(const std::string& path);
  // The records that follow are in no file.
  void begin_no_file() { file_ = nullptr; }
  // `record` with its "\n".
  Status add(int64_t index, std::string_view record);

  using OnRecord = std::function<Status(int64_t index, std::string_view record)>;
  // By increasing index. Call once, after the last add(). An error of on_record ends it.
  Status for_each(const OnRecord& on_record);

 private:
  class Reader;
  struct File {
    std::string path;
    Descriptor descriptor;
  };
  struct Run {
    const File* file;
    int64_t begin, end;  // bytes
  };
  struct Held {
    int64_t index;
    size_t begin, size;  // in Records::bytes
  };
  struct Records {
    std::string bytes;
    std::vector<Held> held;
  };
  static constexpr size_t kMaxFiles = 128;  // that are kept open

  Status spill();
  Status write_run(Records records);

  const std::string temporary_;
  FileOps& ops_;
  const size_t max_in_memory_;
  std::vector<std::unique_ptr<File>> files_;
  std::unique_ptr<File> spilled_;  // null: nothing was
  int64_t spilled_bytes_ = 0;
  File* file_ = nullptr;     // whose records come, as long as they come in order
  int64_t file_offset_ = 0;  // of the next one
  int64_t last_index_ = -1;  // in the run of file_
  std::vector<Run> runs_;
  Records taken_;
  std::future<Status> writing_;  // of the run before
};

}  // namespace llmb
