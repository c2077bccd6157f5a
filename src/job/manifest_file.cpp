#include "job/manifest_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/sysmacros.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <utility>

#include "base/durable_file.h"

namespace llmb {

namespace {

constexpr size_t kMaxBytes = 16 << 20;
constexpr const char* kTemporary = ".tmp";

int flock_retrying(FileOps& ops, int fd) {
  return uninterrupted([&] { return ops.flock(fd, LOCK_EX | LOCK_NB); });
}

// Which process holds the flock on a file, as the kernel lists it; 0 where it does not say (another pid namespace).
int lock_holder(const struct stat& st) {
  std::ifstream locks("/proc/locks");
  for (std::string line; std::getline(locks, line);) {
    int pid = 0;
    unsigned device_major = 0, device_minor = 0;
    unsigned long long inode = 0;
    if (std::sscanf(line.c_str(), "%*s FLOCK %*s %*s %d %x:%x:%llu", &pid, &device_major, &device_minor, &inode) == 4 &&
        inode == st.st_ino && makedev(device_major, device_minor) == st.st_dev)
      return pid;
  }
  return 0;
}

}  // namespace

Result<std::unique_ptr<ManifestFile>> ManifestFile::lock(const std::string& path, const std::string& output,
                                                         FileOps& ops) {
  std::unique_ptr<ManifestFile> file(new ManifestFile(path, ops));
  constexpr int kMaxTries = 1000;
  for (int i = 0; i < kMaxTries; ++i) {
    LLMB_ASSIGN_OR_RETURN(bool locked, file->try_lock(output));
    if (!locked) continue;
    LLMB_RETURN_IF_ERROR(file->read());
    ops.unlink((path + kTemporary).c_str());  // of a run that was killed in replace()
    return file;
  }
  return io_error(path + ": other processes keep replacing this file");
}

ManifestFile::~ManifestFile() {
  if (fd_ < 0) return;
  if (was_empty_) ops_.unlink(path_.c_str());
  ops_.close(fd_);
}

Result<bool> ManifestFile::try_lock(const std::string& output) {
  const int fd = open_retrying(ops_, path_, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0666);
  if (fd < 0) return io_error(path_ + ": cannot create: " + std::strerror(errno));
  struct stat locked {
  }, named{};
  Status status;
  if (ops_.fstat(fd, &locked) != 0) {
    status = io_error(path_ + ": cannot stat: " + std::strerror(errno));
  } else if (!S_ISREG(locked.st_mode)) {
    status = io_error(path_ + ": this name is needed for the output's manifest, but is not a regular file; move it away");
  } else if (flock_retrying(ops_, fd) != 0) {
    const int code = errno;
    const int pid = code == EWOULDBLOCK ? lock_holder(locked) : 0;
    if (code != EWOULDBLOCK) status = io_error(path_ + ": cannot lock: " + std::strerror(code));
    else
      status = busy(output + ": " + (pid > 0 ? "process " + std::to_string(pid) : "another process") +
                    " is writing this output (it holds " + path_ + "); wait for it or choose another output");
  } else if (ops_.stat(path_.c_str(), &named) == 0 && named.st_ino == locked.st_ino && named.st_dev == locked.st_dev) {
    fd_ = fd;
    return true;
  }
  // The lock is on a file, not on a name: a run that has just ended may have replaced or removed it.
  ops_.close(fd);
  LLMB_RETURN_IF_ERROR(status);
  return false;
}

Status ManifestFile::read() {
  char buffer[65536];
  while (true) {
    const auto count = uninterrupted([&] { return ops_.read(fd_, buffer, sizeof buffer); });
    if (count < 0) return io_error(path_ + ": cannot read: " + std::strerror(errno));
    if (count == 0) {
      was_empty_ = content_.empty();
      return {};
    }
    content_.append(buffer, static_cast<size_t>(count));
    if (content_.size() > kMaxBytes) return data_loss(path_ + ": not a run manifest (too large)");
  }
}

Status ManifestFile::replace(const std::string& content) {
  AtomicFileWriter writer(path_, path_ + kTemporary, ops_);
  LLMB_RETURN_IF_ERROR(writer.open());
  // Locked before it gets the name, so that there is no moment without a lock.
  if (flock_retrying(ops_, writer.fd()) != 0)
    return io_error(path_ + kTemporary + ": cannot lock: " + std::strerror(errno));
  LLMB_RETURN_IF_ERROR(writer.append(content));
  const Status status = writer.commit();
  if (writer.is_renamed()) {  // also where its directory could not be synced: the name now means the new file
    ops_.close(std::exchange(fd_, writer.release_fd()));
    content_ = content;
    was_empty_ = false;
  }
  return status;
}

}  // namespace llmb
