#include "base/file_identity.h"

#include <sys/vfs.h>

#include <algorithm>
#include <ctime>

namespace llmb {

namespace {

int64_t nanoseconds(const timespec& time) { return int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec; }

// The numbers of linux/magic.h and of the file systems' own headers.
ChangeTimes change_times_on(const struct statfs& fs) {
  switch (static_cast<uint32_t>(fs.f_type)) {
    case 0xEF53:      // ext2, ext3, ext4
    case 0x58465342:  // XFS
    case 0x9123683E:  // Btrfs
    case 0xF2F52010:  // F2FS
    case 0x794C7630:  // overlayfs, over one of these mostly
      return ChangeTimes::kAtOnce;
    case 0x01021994:  // tmpfs
    case 0x858458F6:  // ramfs
    case 0x2FC12FC1:  // ZFS
    case 0xCA451A4E:  // bcachefs
    case 0x6969:      // NFS
    case 0x0BD00BD0:  // Lustre
    case 0x47504653:  // GPFS
    case 0x00C36400:  // Ceph
      return ChangeTimes::kLate;
    default:
      return ChangeTimes::kUnknown;
  }
}

}  // namespace

FileIdentity identity_of(const struct stat& st) {
  return {st.st_size, nanoseconds(st.st_mtim), nanoseconds(st.st_ctim), st.st_ino};
}

bool is_young(const FileIdentity& file, ChangeTimes times) {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  const int64_t age_ns = nanoseconds(now) - std::max(file.mtime_ns, file.ctime_ns);
  return age_ns < (times == ChangeTimes::kAtOnce ? 20'000'000 : 2'000'000'000);
}

ChangeTimes change_times_of(int fd) {
  struct statfs fs {};
  return fstatfs(fd, &fs) == 0 ? change_times_on(fs) : ChangeTimes::kUnknown;
}

ChangeTimes change_times_at(const std::string& path) {
  struct statfs fs {};
  return statfs(path.c_str(), &fs) == 0 ? change_times_on(fs) : ChangeTimes::kUnknown;
}

}  // namespace llmb
