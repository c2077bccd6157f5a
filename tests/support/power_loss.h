// A disk after the power went: it holds what was synced, and of the rest whatever the worst of file systems kept.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "base/file_ops.h"

namespace llmb::test {

enum class PowerLoss {
  kNothingUnsynced,  // names and bytes are as they were last synced
  kNamesOnly,        // all names, also new ones, but only synced bytes: a renamed file may be empty
  kSizesOnly,        // all names and sizes; bytes that were not synced are NUL
};

// Follows the calls that succeed on files of one directory. Not thread-safe.
class PowerLossFileOps final : public FileOps {
 public:
  // The present contents of the directory are durable. `inner` does the work; it may fail or die (faulty_file_ops.h).
  PowerLossFileOps(std::string directory, FileOps& inner);

  using Files = std::map<std::string, std::string>;  // name → bytes
  Files after(PowerLoss kind) const;

  int open(const char* path, int flags, mode_t mode) override { return inner_.open(path, flags, mode); }
  ssize_t read(int fd, void* buffer, size_t size) override { return inner_.read(fd, buffer, size); }
  ssize_t pread(int fd, void* buffer, size_t size, off_t at) override { return inner_.pread(fd, buffer, size, at); }
  ssize_t write(int fd, const void* data, size_t size) override { return inner_.write(fd, data, size); }
  int fsync(int fd) override;
  int fdatasync(int fd) override;
  int ftruncate(int fd, off_t size) override { return inner_.ftruncate(fd, size); }
  int rename(const char* from, const char* to) override { return inner_.rename(from, to); }
  int rename_new(const char* from, const char* to) override { return inner_.rename_new(from, to); }
  int unlink(const char* path) override { return inner_.unlink(path); }
  int flock(int fd, int operation) override { return inner_.flock(fd, operation); }
  int fstat(int fd, struct stat* st) override { return inner_.fstat(fd, st); }
  int stat(const char* path, struct stat* st) override { return inner_.stat(path, st); }
  int poll(int fd, short events, int timeout_ms) override { return inner_.poll(fd, events, timeout_ms); }
  int close(int fd) override { return inner_.close(fd); }

 private:
  using Names = std::map<std::string, uint64_t>;  // → inode
  Names names_now() const;
  void sync(int fd);

  const std::string directory_;
  FileOps& inner_;
  Names durable_names_;
  std::map<uint64_t, std::string> durable_bytes_;  // by inode
};

}  // namespace llmb::test
