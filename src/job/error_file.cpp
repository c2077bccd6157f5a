#include "job/error_file.h"

#include <fcntl.h>

#include <cerrno>
#include <cstring>

#include "base/durable_file.h"

namespace llmb {

Result<std::unique_ptr<ErrorFile>> ErrorFile::open(const std::string& path, FileOps& ops) {
  const int fd = open_retrying(ops, path, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0666);
  if (fd < 0) return io_error("--error-file " + path + ": cannot open for writing: " + std::strerror(errno));
  return std::unique_ptr<ErrorFile>(new ErrorFile(path, fd, ops));
}

ErrorFile::~ErrorFile() { ops_.close(fd_); }

Status ErrorFile::append(std::string_view record) { return write_fully(ops_, fd_, record, path_); }

}  // namespace llmb
