// Whether a file is still the one it was, with the bytes that it had.
#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <string>

namespace llmb {

// Times can be set back, except for the change time: the system sets it to the clock's whenever bytes, times, names or
// modes change, and no call sets it to anything else.
struct FileIdentity {
  int64_t size = 0;
  int64_t mtime_ns = 0;
  int64_t ctime_ns = 0;
  uint64_t inode = 0;

  bool operator==(const FileIdentity&) const = default;
};

FileIdentity identity_of(const struct stat& st);

// How reliably a file's change time shows that its bytes have changed.
enum class ChangeTimes {
  kUnknown,  // FAT, FUSE, images: it may stay as it is, or be set
  kLate,     // network file systems, tmpfs: writes of another machine, or through a mapping, may show later or not at all
  kAtOnce,   // ext4, XFS, Btrfs, F2FS: it changes before the bytes do, also where they are written through a mapping
};
ChangeTimes change_times_of(int fd);
ChangeTimes change_times_at(const std::string& path);

// Changed so recently that it may change again without a new time: within 20 ms where the kernel's clock gives the time,
// whose ticks are 10 ms at most; within 2 s where that is not known, as on FAT.
bool is_young(const FileIdentity& file, ChangeTimes times = ChangeTimes::kUnknown);

}  // namespace llmb
