#include "base/file_ops.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>

namespace llmb {

namespace {

class RealFileOps final : public FileOps {
 public:
  int open(const char* path, int flags, mode_t mode) override { return ::open(path, flags, mode); }
  ssize_t read(int fd, void* buffer, size_t size) override { return ::read(fd, buffer, size); }
  ssize_t pread(int fd, void* buffer, size_t size, off_t offset) override { return ::pread(fd, buffer, size, offset); }
  ssize_t write(int fd, const void* data, size_t size) override { return ::write(fd, data, size); }
  int fsync(int fd) override { return ::fsync(fd); }
  int fdatasync(int fd) override { return ::fdatasync(fd); }
  int ftruncate(int fd, off_t size) override { return ::ftruncate(fd, size); }
  int rename(const char* from, const char* to) override { return ::rename(from, to); }
  int rename_new(const char* from, const char* to) override {
    if (::renameat2(AT_FDCWD, from, AT_FDCWD, to, RENAME_NOREPLACE) == 0) return 0;
    if (errno != EINVAL && errno != ENOSYS) return -1;
    // A file system that has no such call: looked at just before.
    struct stat st {};
    if (::lstat(to, &st) == 0) {
      errno = EEXIST;
      return -1;
    }
    return errno == ENOENT ? ::rename(from, to) : -1;
  }
  int unlink(const char* path) override { return ::unlink(path); }
  int flock(int fd, int operation) override { return ::flock(fd, operation); }
  int fstat(int fd, struct stat* st) override { return ::fstat(fd, st); }
  int stat(const char* path, struct stat* st) override { return ::stat(path, st); }
  int poll(int fd, short events, int timeout_ms) override {
    pollfd entry{fd, events, 0};
    return ::poll(&entry, 1, timeout_ms);
  }
  int close(int fd) override { return ::close(fd); }
};

}  // namespace

FileOps& real_file_ops() {
  static RealFileOps ops;  // without state
  return ops;
}

}  // namespace llmb
