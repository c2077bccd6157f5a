#include "base/durable_file.h"

#include <fcntl.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace llmb {

namespace {

constexpr size_t kBufferBytes = 256 << 10;

Status error_at(const std::string& path, const std::string& what) {
  return io_error(path + ": " + what + ": " + std::strerror(errno));
}

int fsync_retrying(FileOps& ops, int fd) {
  return uninterrupted([&] { return ops.fsync(fd); });
}

}  // namespace

Result<std::optional<FileIdentity>> identify_file(FileOps& ops, const std::string& path) {
  struct stat st {};
  if (ops.stat(path.c_str(), &st) != 0) {
    if (errno == ENOENT) return std::optional<FileIdentity>();
    return error_at(path, "cannot stat it");
  }
  if (!S_ISREG(st.st_mode)) return io_error(path + ": this name is needed for results, but is not a regular file; move it away");
  return std::optional(identity_of(st));
}

int open_retrying(FileOps& ops, const std::string& path, int flags, mode_t mode) {
  return uninterrupted([&] { return ops.open(path.c_str(), flags, mode); });
}

Status write_fully(FileOps& ops, int fd, std::string_view bytes, const std::string& name) {
  while (!bytes.empty()) {
    const auto count = uninterrupted([&] { return ops.write(fd, bytes.data(), bytes.size()); });
    if (count <= 0) return error_at(name, "cannot write");
    bytes.remove_prefix(static_cast<size_t>(count));
  }
  return {};
}

std::string directory_of(const std::string& path) {
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? "." : slash == 0 ? "/" : path.substr(0, slash);
}

Status sync_directory_of(FileOps& ops, const std::string& path) {
  const std::string directory = directory_of(path);
  const int fd = open_retrying(ops, directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0);
  if (fd < 0) return error_at(directory, "cannot open");
  const int result = fsync_retrying(ops, fd);
  const int code = errno;
  ops.close(fd);
  // EINVAL: a file system that knows no sync of directories.
  if (result == 0 || code == EINVAL) return {};
  return io_error(directory + ": cannot make the new name durable: " + std::strerror(code));
}

Status rename_durably(FileOps& ops, const std::string& from, const std::string& to) {
  if (ops.rename(from.c_str(), to.c_str()) != 0) return error_at(to, "cannot rename " + from + " to it");
  return sync_directory_of(ops, to);
}

Status move_durably(FileOps& ops, const std::string& from, const std::string& to,
                    const std::optional<FileIdentity>& replaces) {
  const std::string left = "; it is left as it is: move it away";
  LLMB_ASSIGN_OR_RETURN(const auto found, replaces ? identify_file(ops, to) : std::optional<FileIdentity>());
  if (found && found != *replaces) return io_error(to + ": was written to by something else meanwhile" + left);
  const int result = found ? ops.rename(from.c_str(), to.c_str()) : ops.rename_new(from.c_str(), to.c_str());
  if (result != 0 && errno == EEXIST) return io_error(to + ": something else has made this file meanwhile" + left);
  if (result != 0) return error_at(to, "cannot rename " + from + " to it");
  return sync_directory_of(ops, to);
}

AtomicFileWriter::AtomicFileWriter(std::string path, std::string temporary, FileOps& ops)
    : path_(std::move(path)), temporary_(std::move(temporary)), ops_(ops) {}

AtomicFileWriter::~AtomicFileWriter() {
  if (fd_ < 0) return;
  if (!renamed_) ops_.unlink(temporary_.c_str());
  ops_.close(fd_);
}

Status AtomicFileWriter::open() {
  ops_.unlink(temporary_.c_str());  // of a run that was killed, or no file: anything but what is made here
  fd_ = open_retrying(ops_, temporary_, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  return fd_ < 0 ? error_at(temporary_, "cannot create") : Status();
}

Status AtomicFileWriter::append(std::string_view bytes) {
  if (bytes.size() >= kBufferBytes) {
    LLMB_RETURN_IF_ERROR(flush());
    return write_fully(ops_, fd_, bytes, temporary_);
  }
  buffer_ += bytes;
  return buffer_.size() < kBufferBytes ? Status() : flush();
}

Status AtomicFileWriter::flush() {
  LLMB_RETURN_IF_ERROR(write_fully(ops_, fd_, buffer_, temporary_));
  buffer_.clear();
  return {};
}

Status AtomicFileWriter::replace_beginning(std::string_view bytes) {
  LLMB_RETURN_IF_ERROR(flush());
  const int fd = open_retrying(ops_, temporary_, O_WRONLY | O_NOFOLLOW | O_CLOEXEC, 0);
  if (fd < 0) return error_at(temporary_, "cannot open");
  Status status = write_fully(ops_, fd, bytes, temporary_);
  ops_.close(fd);
  return status;
}

Status AtomicFileWriter::commit() {
  LLMB_RETURN_IF_ERROR(flush());
  if (fsync_retrying(ops_, fd_) != 0) return error_at(temporary_, "cannot make it durable");
  struct stat st {};
  if (ops_.fstat(fd_, &st) != 0) return error_at(temporary_, "cannot stat it");
  identity_ = identity_of(st);
  if (ops_.rename(temporary_.c_str(), path_.c_str()) != 0)
    return error_at(path_, "cannot rename " + temporary_ + " to it");
  renamed_ = true;
  return sync_directory_of(ops_, path_);
}

int AtomicFileWriter::release_fd() { return std::exchange(fd_, -1); }

}  // namespace llmb
