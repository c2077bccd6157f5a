#include "base/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/durable_file.h"

namespace llmb {

Result<MappedFile> MappedFile::open(const std::string& path) {
  // O_NONBLOCK: a pipe under this name is refused, not waited for.
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) {
    const int error = errno;  // before any allocation
    return Status(error == ENOENT ? StatusCode::kNotFound : StatusCode::kIoError,
                  path + ": cannot open: " + std::strerror(error));
  }
  struct stat st {};
  if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) {
    ::close(fd);
    return io_error(path + ": not a regular file");
  }
  const auto size = static_cast<size_t>(st.st_size);
  void* data = nullptr;
  if (size > 0) {
    data = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (data == MAP_FAILED) {
      const int error = errno;
      ::close(fd);
      return io_error(path + ": cannot map: " + std::strerror(error));
    }
  }
  ::close(fd);
  MappedFile file;
  file.data_ = static_cast<const uint8_t*>(data);
  file.size_ = size;
  file.mtime_ns_ = llmb::mtime_ns(st);
  file.inode_ = st.st_ino;
  return file;
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      mtime_ns_(other.mtime_ns_),
      inode_(other.inode_) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(mtime_ns_, other.mtime_ns_);
  std::swap(inode_, other.inode_);
  return *this;
}

void MappedFile::will_read_all() const {
  if (data_ != nullptr) madvise(const_cast<uint8_t*>(data_), size_, MADV_HUGEPAGE);  // a hint: without it only slower
}

void MappedFile::release_pages(const uint8_t* begin, size_t size) const {
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const uintptr_t first = (reinterpret_cast<uintptr_t>(begin) + page - 1) / page * page;
  const uintptr_t end = (reinterpret_cast<uintptr_t>(begin) + size) / page * page;
  // A hint: without it only more pages stay. Nothing is lost, as nothing is written to them.
  if (first < end) madvise(reinterpret_cast<void*>(first), end - first, MADV_DONTNEED);
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) munmap(const_cast<uint8_t*>(data_), size_);
}

}  // namespace llmb
