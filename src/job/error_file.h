// A copy of the error records alone, written as they happen. The output holds them too: this file is for people and for
// scripts that repair lines, and is written anew by every run.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "base/file_ops.h"
#include "base/status.h"

namespace llmb {

// Not thread-safe.
class ErrorFile {
 public:
  // Empties the file. kCancelled: a pipe that nobody reads, and keep_waiting() says no (open_file.h).
  static Result<std::unique_ptr<ErrorFile>> open(const std::string& path, const std::function<bool()>& keep_waiting,
                                                 FileOps& ops = real_file_ops());
  ~ErrorFile();
  ErrorFile(const ErrorFile&) = delete;
  ErrorFile& operator=(const ErrorFile&) = delete;

  // Ok: written. After an error nothing more is written, and the file ends with a whole record where it can be cut.
  Status append(std::string_view record);

 private:
  ErrorFile(std::string path, int fd, FileOps& ops) : path_(std::move(path)), fd_(fd), ops_(ops) {}

  void cut_off_torn_record();

  const std::string path_;
  const int fd_;
  FileOps& ops_;
  int64_t size_ = 0;  // of whole records
  Status status_;     // the first error
};

}  // namespace llmb
