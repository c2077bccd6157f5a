// The one door to the operating system's file calls, so that a test can make call k fail with errno e.
// Each call behaves as the POSIX call of its name: a negative result means that errno says why.
#pragma once

#include <sys/stat.h>
#include <sys/types.h>

#include <cstddef>

namespace llmb {

// real_file_ops() is thread-safe.
class FileOps {
 public:
  virtual ~FileOps() = default;
  virtual int open(const char* path, int flags, mode_t mode) = 0;
  virtual ssize_t read(int fd, void* buffer, size_t size) = 0;
  virtual ssize_t pread(int fd, void* buffer, size_t size, off_t offset) = 0;
  virtual ssize_t write(int fd, const void* data, size_t size) = 0;
  virtual int fsync(int fd) = 0;
  virtual int fdatasync(int fd) = 0;
  virtual int ftruncate(int fd, off_t size) = 0;
  virtual int rename(const char* from, const char* to) = 0;
  virtual int rename_new(const char* from, const char* to) = 0;  // EEXIST where `to` is there, also as a dangling link
  virtual int unlink(const char* path) = 0;
  virtual int flock(int fd, int operation) = 0;
  virtual int fstat(int fd, struct stat* st) = 0;
  virtual int stat(const char* path, struct stat* st) = 0;
  virtual int poll(int fd, short events, int timeout_ms) = 0;
  virtual int close(int fd) = 0;
};

FileOps& real_file_ops();

}  // namespace llmb
