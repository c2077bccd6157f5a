// A copy of the error records alone, written as they happen. The output holds them too: this file is for people and for
// scripts that repair lines, and is written anew by every run.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "base/file_ops.h"
#include "base/status.h"

namespace llmb {

// Not thread-safe.
class ErrorFile {
 public:
  // Empties the file.
  static Result<std::unique_ptr<ErrorFile>> open(const std::string& path, FileOps& ops = real_file_ops());
  ~ErrorFile();
  ErrorFile(const ErrorFile&) = delete;
  ErrorFile& operator=(const ErrorFile&) = delete;

  Status append(std::string_view record);

 private:
  ErrorFile(std::string path, int fd, FileOps& ops) : path_(std::move(path)), fd_(fd), ops_(ops) {}

  const std::string path_;
  const int fd_;
  FileOps& ops_;
};

}  // namespace llmb
