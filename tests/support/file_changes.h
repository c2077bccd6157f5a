// Changes that others make to files while a run has them open, and how long a file must rest to be known by its
// times.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cstddef>
#include <string>
#include <thread>

#include "base/check.h"
#include "base/file_identity.h"

namespace llmb::test {

// Until the file is not young any more: 20 ms on most file systems, else 2 s.
inline void let_rest(const std::string& path) {
  const ChangeTimes times = change_times_at(path);
  struct stat st {};
  while (stat(path.c_str(), &st) == 0 && is_young(identity_of(st), times))
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
}

// Flips bits of a byte in place.
inline void flip_byte(const std::string& path, size_t at, int mask = 0x40) {
  ::chmod(path.c_str(), 0644);
  const int fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  char byte = 0;
  LLMB_CHECK(fd >= 0 && ::pread(fd, &byte, 1, static_cast<off_t>(at)) == 1);
  byte = static_cast<char>(byte ^ mask);
  LLMB_CHECK(::pwrite(fd, &byte, 1, static_cast<off_t>(at)) == 1);
  ::close(fd);
}

// The same, and the file has the time that it had, as after `touch -r`.
inline void flip_byte_unseen(const std::string& path, size_t at, int mask = 0x40) {
  struct stat before {};
  LLMB_CHECK(stat(path.c_str(), &before) == 0);
  flip_byte(path, at, mask);
  const timespec times[2] = {before.st_atim, before.st_mtim};
  LLMB_CHECK(utimensat(AT_FDCWD, path.c_str(), times, 0) == 0);
}

// Flips bits of a byte through a mapping.
inline void flip_byte_mapped(const std::string& path, size_t at) {
  ::chmod(path.c_str(), 0644);
  const int fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  void* const data = ::mmap(nullptr, at + 1, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  LLMB_CHECK(fd >= 0 && data != MAP_FAILED);
  static_cast<volatile char*>(data)[at] = static_cast<char>(static_cast<volatile char*>(data)[at] ^ 0x40);
  ::munmap(data, at + 1);
  ::close(fd);
}

inline void cut_file(const std::string& path, off_t size) {
  ::chmod(path.c_str(), 0644);
  LLMB_CHECK(::truncate(path.c_str(), size) == 0);
}

}  // namespace llmb::test
