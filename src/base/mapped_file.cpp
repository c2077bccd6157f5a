#include "base/mapped_file.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/whole_file.h"

namespace llmb {

Result<MappedFile> MappedFile::open(const std::string& path) {
  struct stat st {};
  LLMB_ASSIGN_OR_RETURN(const Descriptor file, open_regular_file(path, &st));
  return map(file.get(), st, path);
}

Result<MappedFile> MappedFile::map(int fd, const struct stat& st, const std::string& path) {
  MappedFile file;
  file.path_ = path;
  file.size_ = static_cast<size_t>(st.st_size);
  file.identity_ = identity_of(st);
  file.change_times_ = change_times_of(fd);
  void* data = file.size_ > 0 ? mmap(nullptr, file.size_, PROT_READ, MAP_PRIVATE, fd, 0) : nullptr;
  if (data == MAP_FAILED)
    return Status(errno == ENOMEM ? StatusCode::kResourceExhausted : StatusCode::kIoError,
                  path + ": cannot map: " + std::strerror(errno));
  file.data_ = static_cast<const uint8_t*>(data);
  if (file.size_ == 0) return file;
  file.guard_ = MappingGuard(data, file.size_);
  if (!file.guard_.is_guarding()) return io_error(path + ": cannot map: too many mapped files");
  return file;
}

void MappedFile::swap(MappedFile& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(identity_, other.identity_);
  std::swap(change_times_, other.change_times_);
  std::swap(guard_, other.guard_);
}

Status MappedFile::still_readable() const {
  if (!guard_.is_lost()) return {};
  return data_loss(path_ + ": was cut short, or its disk failed, while it was in use");
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
  guard_ = MappingGuard();
  if (data_ != nullptr) munmap(const_cast<uint8_t*>(data_), size_);
}

}  // namespace llmb
