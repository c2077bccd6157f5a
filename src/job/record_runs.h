// Puts the result records of any number of files into the order of their input lines, in bounded memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/file_identity.h"
#include "base/file_ops.h"
#include "base/status.h"

namespace llmb {

// It knows files by chunks, and of each chunk the lowest index. A chunk is read when its lowest index is the next one of
// all, so memory holds the chunks that overlap: few where records were finished nearly in order. Where these take too
// much, they are written, in order, to a temporary file, whose chunks overlap no longer.
//
// Not thread-safe; other threads read the next chunks and put those in order into one piece. Memory: max_in_memory and
// kMostAhead chunks, or the kLeastLoaded largest chunks, where a chunk is at least as large as its largest record;
// kPieces pieces of records; and 32 bytes a chunk.
class RecordRuns {
 public:
  static constexpr size_t kMaxInMemory = size_t{512} << 20;

  // `temporary`: a name that is free to be used for a moment. num_files: how many come. `ops` outlives it, and is
  // called by several threads.
  RecordRuns(std::string temporary, size_t num_files, FileOps& ops, size_t max_in_memory = kMaxInMemory);

  // Appends the record, with its index, that takes the place of this one. Thread-safe.
  using Change = std::function<void(std::string_view record, std::string* out)>;
  // The records that follow are those of this file, from its beginning. Null: they stay as they are.
  Status begin_file(const std::string& path, Change change);
  void add(int64_t index, size_t size);  // with its "\n"

  using OnRecords = std::function<Status(std::string_view records)>;
  // All records by increasing index, many at a time. Call once, after the last add(). An error of on_records ends it.
  // kIoError also where a file is no longer what it was at begin_file().
  Status for_each(const OnRecords& on_records);

 private:
  class Merging;
  static constexpr size_t kLeastLoaded = 4, kMostAhead = 3, kMostTaken = 4, kPieces = 2;

  struct File {
    std::string path;
    FileIdentity identity;
    Change change;
  };
  struct Chunk {
    const File* file;  // null: the temporary one
    int64_t begin;
    size_t size;
    int64_t lowest;  // index of its records
  };

  const std::string temporary_;
  FileOps& ops_;
  const size_t max_in_memory_, chunk_bytes_;
  std::vector<std::unique_ptr<File>> files_;
  std::vector<Chunk> chunks_;
  int64_t end_ = 0;  // of the records of the last file, so far
};

}  // namespace llmb
