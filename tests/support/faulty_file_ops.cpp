#include "tests/support/faulty_file_ops.h"

#include <algorithm>
#include <cerrno>

namespace llmb::test {

// Counts the call; true (and errno) where a fault is set for it.
bool FaultyFileOps::fails(FileCall call) {
  const std::lock_guard lock(mutex_);
  if (before_call) before_call(call);
  const int64_t number = ++counts_[static_cast<int>(call)];
  ++num_calls_;
  if (any_fault && fails_any(call)) return true;
  for (const FileFault& fault : faults) {
    if (fault.call != call || !(fault.forever ? number >= fault.at : number == fault.at)) continue;
    errno = fault.error;
    return true;
  }
  return false;
}

bool FaultyFileOps::fails_any(FileCall call) {
  const bool is_dead = any_fault->error == AnyCallFault::kDies;
  const bool fails = is_dead || any_fault->forever ? num_calls_ >= any_fault->at : num_calls_ == any_fault->at;
  if (!fails) return false;
  if (!failed_call_) failed_call_ = call;
  errno = is_dead ? EIO : any_fault->error;
  return true;
}

bool FaultyFileOps::interrupted() {
  const std::lock_guard lock(mutex_);
  if (interrupts_given_ == num_interrupts) {
    interrupts_given_ = 0;
    return false;
  }
  ++interrupts_given_;
  errno = EINTR;
  return true;
}

int FaultyFileOps::open(const char* path, int flags, mode_t mode) {
  if (interrupted() || fails(FileCall::kOpen)) return -1;
  return real_file_ops().open(path, flags, mode);
}

ssize_t FaultyFileOps::read(int fd, void* buffer, size_t size) {
  if (interrupted() || fails(FileCall::kRead)) return -1;
  return real_file_ops().read(fd, buffer, std::min(size, max_io_bytes));
}

ssize_t FaultyFileOps::pread(int fd, void* buffer, size_t size, off_t offset) {
  if (interrupted() || fails(FileCall::kRead)) return -1;
  return real_file_ops().pread(fd, buffer, std::min(size, max_io_bytes), offset);
}

ssize_t FaultyFileOps::write(int fd, const void* data, size_t size) {
  const std::lock_guard lock(mutex_);
  if (interrupted()) return -1;
  if (fails(FileCall::kWrite)) {
    const int error = errno;
    const bool is_torn = any_fault && any_fault->error == AnyCallFault::kDies && num_calls_ == any_fault->at;
    if (is_torn) real_file_ops().write(fd, data, std::min(size, any_fault->torn_bytes));
    errno = error;
    return -1;
  }
  if (disk_bytes == 0) {
    errno = ENOSPC;
    return -1;
  }
  const ssize_t count =
      real_file_ops().write(fd, data, std::min({size, max_io_bytes, static_cast<size_t>(disk_bytes)}));
  if (count > 0) disk_bytes -= count;
  return count;
}

int FaultyFileOps::fsync(int fd) { return interrupted() || fails(FileCall::kFsync) ? -1 : real_file_ops().fsync(fd); }

int FaultyFileOps::fdatasync(int fd) {
  return interrupted() || fails(FileCall::kFdatasync) ? -1 : real_file_ops().fdatasync(fd);
}

int FaultyFileOps::ftruncate(int fd, off_t size) {
  return interrupted() || fails(FileCall::kFtruncate) ? -1 : real_file_ops().ftruncate(fd, size);
}

int FaultyFileOps::rename(const char* from, const char* to) {
  return fails(FileCall::kRename) ? -1 : real_file_ops().rename(from, to);
}

int FaultyFileOps::rename_new(const char* from, const char* to) {
  return fails(FileCall::kRename) ? -1 : real_file_ops().rename_new(from, to);
}

int FaultyFileOps::unlink(const char* path) { return fails(FileCall::kUnlink) ? -1 : real_file_ops().unlink(path); }

int FaultyFileOps::flock(int fd, int operation) {
  return interrupted() || fails(FileCall::kFlock) ? -1 : real_file_ops().flock(fd, operation);
}

int FaultyFileOps::fstat(int fd, struct stat* st) {
  return fails(FileCall::kFstat) ? -1 : real_file_ops().fstat(fd, st);
}

int FaultyFileOps::stat(const char* path, struct stat* st) {
  return fails(FileCall::kStat) ? -1 : real_file_ops().stat(path, st);
}

int FaultyFileOps::poll(int fd, short events, int timeout_ms) {
  return interrupted() || fails(FileCall::kPoll) ? -1 : real_file_ops().poll(fd, events, timeout_ms);
}

int FaultyFileOps::close(int fd) {
  const bool failed = fails(FileCall::kClose);
  const int error = errno;
  const int result = real_file_ops().close(fd);
  if (!failed) return result;
  errno = error;
  return -1;
}

}  // namespace llmb::test
