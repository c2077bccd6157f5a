#include "base/open_file.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>

#include "base/durable_file.h"

namespace llmb {

namespace {

bool is_pipe(FileOps& ops, const std::string& path) {
  struct stat st {};
  return ops.stat(path.c_str(), &st) == 0 && S_ISFIFO(st.st_mode);
}

}  // namespace

Status open_error(const std::string& path, int error) {
  const bool is_short = error == ENOMEM || error == EMFILE || error == ENFILE;
  const std::string advice = error == EMFILE || error == ENFILE ? "; raise the limit of open files (ulimit -n)" : "";
  return {is_short          ? StatusCode::kResourceExhausted
          : error == ENOENT ? StatusCode::kNotFound
                            : StatusCode::kIoError,
          path + ": cannot open: " + std::strerror(error) + advice};
}

Result<int> open_for_writing(FileOps& ops, const std::string& path, int flags,
                             const std::function<bool()>& keep_waiting) {
  constexpr int kAskAgainMs = 100;
  while (true) {
    const int fd = open_retrying(ops, path, flags | O_WRONLY | O_CLOEXEC | O_NONBLOCK, 0666);
    const int error = errno;
    if (fd >= 0) {
      ::fcntl(fd, F_SETFL, flags & O_APPEND);  // what was waited for is there: writing may wait
      return fd;
    }
    if (error != ENXIO || !is_pipe(ops, path))
      return io_error(path + ": cannot open for writing: " + std::strerror(error));
    if (!keep_waiting()) return cancelled(path + ": nobody reads this pipe");
    ops.poll(-1, 0, kAskAgainMs);  // no descriptor: sleeps
  }
}

}  // namespace llmb
