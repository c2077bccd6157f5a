// The real file calls, some of which fail on purpose: call k of a kind, once or for ever, short reads and writes, and
// signals that interrupt everything.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <vector>

#include "base/file_ops.h"

namespace llmb::test {

enum class FileCall {
  kOpen,
  kRead,  // and pread
  kWrite,
  kFsync,
  kFdatasync,
  kFtruncate,
  kRename,
  kUnlink,
  kFlock,
  kFstat,
  kStat,
  kPoll,
  kClose,
};
inline constexpr int kNumFileCalls = static_cast<int>(FileCall::kClose) + 1;

struct FileFault {
  FileCall call = FileCall::kWrite;
  int64_t at = 1;        // the at-th call of that kind fails, counted from 1
  int error = 0;         // with this errno
  bool forever = false;  // and all later ones
};

// Fails call `at` of all kinds together. kDies: from there on nothing reaches the disk, as if the process had been
// killed; of a write, the first torn_bytes still do. Locks end with the process, so close() closes.
struct AnyCallFault {
  static constexpr int kDies = -1;
  int64_t at = 1;  // counted from 1
  int error = kDies;
  bool forever = false;
  size_t torn_bytes = 0;
};

// Calls are thread-safe; which of two threads' calls is the first is not known. A failing close() closes nevertheless, as
// on Linux; other failing calls do nothing.
class FaultyFileOps final : public FileOps {
 public:
  std::vector<FileFault> faults;
  std::optional<AnyCallFault> any_fault;
  size_t max_io_bytes = SIZE_MAX;             // of one read or write
  int num_interrupts = 0;                     // EINTR so many times before each call that may be interrupted
  std::function<void(FileCall)> before_call;  // e.g. what another process does just then
  int64_t disk_bytes = INT64_MAX;             // free space: writes get short, then fail with ENOSPC

  int64_t count(FileCall call) const { return counts_[static_cast<int>(call)]; }
  int64_t num_calls() const { return num_calls_; }
  std::optional<FileCall> failed_call() const { return failed_call_; }  // the first that any_fault made fail

  int open(const char* path, int flags, mode_t mode) override;
  ssize_t read(int fd, void* buffer, size_t size) override;
  ssize_t pread(int fd, void* buffer, size_t size, off_t offset) override;
  ssize_t write(int fd, const void* data, size_t size) override;
  int fsync(int fd) override;
  int fdatasync(int fd) override;
  int ftruncate(int fd, off_t size) override;
  int rename(const char* from, const char* to) override;
  int rename_new(const char* from, const char* to) override;  // counts as kRename
  int unlink(const char* path) override;
  int flock(int fd, int operation) override;
  int fstat(int fd, struct stat* st) override;
  int stat(const char* path, struct stat* st) override;
  int poll(int fd, short events, int timeout_ms) override;
  int close(int fd) override;

 private:
  bool fails(FileCall call);
  bool fails_any(FileCall call);
  bool interrupted();

  std::array<int64_t, kNumFileCalls> counts_{};
  int64_t num_calls_ = 0;
  std::optional<FileCall> failed_call_;
  int interrupts_given_ = 0;
  std::recursive_mutex mutex_;  // of all that calls change
};

}  // namespace llmb::test
