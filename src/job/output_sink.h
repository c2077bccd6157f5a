// Where result lines go: a file that appears whole under its name when the job is done, or stdout (or a pipe or device)
// at once.
//
// File: records are appended to PATH.partial; finish() makes them durable and renames it to PATH. Who opens a sink
// holds the output's lock (manifest_file.h). Invariants:
//  1. PATH.partial ends with a whole record after every call, also after one that failed, if the file can be cut.
//  2. An error is final: every later call returns the first one and nothing is retried, least of all a failed fsync.
//  3. Ok from finish() means: on stable storage, under its name, just what was appended. Something else may cut,
//  remove,
//     replace or write to PATH.partial at any time: then the next call fails, and nothing more is written.
//  4. A PATH that was not there at open() is never replaced.
// A sink that is destroyed before its first record leaves the directory as it found it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/durable_file.h"
#include "base/file_ops.h"
#include "base/status.h"
#include "job/output_target.h"

namespace llmb {

struct OutputSinkOptions {
  std::string path = "-";           // "-": stdout
  std::vector<std::string> inputs;  // none of them may be the output, under whatever name; "-": stdin
  double sync_interval_ms = 1000;   // between two fdatasync
  int64_t keep_bytes = 0;           // of PATH.partial: whole records of an earlier run, to be continued
  // Asked while nobody reads a pipe that is the output; false: open() gives kCancelled.
  std::function<bool()> keep_waiting = [] { return true; };
};

// Not thread-safe: one writer thread. `ops` and `clock` outlive it. SIGPIPE must be ignored by the process.
//
// Status codes: kInvalidArgument the output is one of the inputs or a directory (exit 2) · kCancelled the reader of
// stdout has gone (exit 141) · kIoError all else (exit 6).
class OutputSink {
 public:
  static Result<std::unique_ptr<OutputSink>> open(OutputSinkOptions options, const Clock& clock,
                                                  FileOps& ops = real_file_ops());
  ~OutputSink();
  OutputSink(const OutputSink&) = delete;
  OutputSink& operator=(const OutputSink&) = delete;

  // Makes PATH.partial hold keep_bytes and nothing else. Optional: the first append does it too.
  Status begin();

  // One or more whole records, each ending with "\n". Written before it returns; synced about once a second.
  Status append(std::string_view records);

  // Syncs where something is unsynced for longer than the interval. For writers that wait for records.
  Status sync_if_due();

  // Syncs what is unsynced, now, and checks what is there. For runs that end early.
  Status sync_all();

  // No more records. Nothing may be appended after it. `rewritten`: what replaced PATH.partial since sync_all(), with
  // the same records, durable.
  Status finish(const std::optional<FileIdentity>& rewritten = {});

  int64_t bytes_written() const { return size_; }  // keep_bytes included
  // It failed because something else changed the file: records that were written may be gone.
  bool was_changed() const { return was_changed_; }
  const FileIdentity& identity() const { return identity_; }  // of the file PATH, after finish()
  bool is_stream() const { return is_stream_; }               // stdout, a pipe or a device: no partial file, no rename

 private:
  OutputSink(OutputSinkOptions options, const Clock& clock, FileOps& ops);
  Status open_output();
  Status open_stream();
  Status open_partial();
  Status check_content();
  Status check_place(const std::string& name);
  Status write_all(std::string_view records, size_t* written);
  Status give_up(const Status& cause, std::string_view records, size_t written);
  Status sync(int (FileOps::*call)(int));

  OutputSinkOptions options_;
  const Clock& clock_;
  FileOps& ops_;
  std::string path_;     // where the records end up, symbolic links followed
  std::string partial_;  // path_ + ".partial"
  int fd_ = -1;
  bool owns_fd_ = false;
  bool is_stream_ = false;
  bool is_regular_stream_ = false;  // stdout redirected to a file
  bool began_ = false;              // what an earlier run left is gone
  bool created_ = false;            // there was no partial file before
  bool finished_ = false;
  bool was_changed_ = false;
  std::optional<FileIdentity> replaces_;  // an empty file that stood under path_ at open()
  FileIdentity identity_;                 // of the file that the records are in
  int64_t stream_begin_ = 0;              // of a redirected file: where the first record begins
  int64_t size_ = 0;                      // bytes of whole records
  int64_t synced_size_ = 0;
  double last_sync_ms_ = 0;
  Status status_;  // the first error
};

}  // namespace llmb
