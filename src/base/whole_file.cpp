#include "base/whole_file.h"

#include <fcntl.h>

#include <cerrno>
#include <cstring>

#include "base/durable_file.h"
#include "base/file_ops.h"
#include "base/open_file.h"

namespace llmb {

Result<Descriptor> open_regular_file(const std::string& path, struct stat* st) {
  FileOps& ops = real_file_ops();
  Descriptor file(ops, open_retrying(ops, path, O_RDONLY | O_CLOEXEC | O_NONBLOCK, 0));
  if (file.get() < 0) return open_error(path, errno);
  if (ops.fstat(file.get(), st) == 0 && S_ISREG(st->st_mode)) return file;
  return io_error(path + ": not a regular file");
}

bool file_exists(const std::string& path) {
  struct stat st {};
  return real_file_ops().stat(path.c_str(), &st) == 0;
}

Result<std::string> read_whole_file(const std::string& path, size_t max_bytes) {
  struct stat st {};
  LLMB_ASSIGN_OR_RETURN(const Descriptor file, open_regular_file(path, &st));
  const auto size = static_cast<size_t>(st.st_size);
  if (size > max_bytes) return data_loss(path + ": larger than " + std::to_string(max_bytes) + " bytes");
  std::string bytes(size, '\0');
  for (size_t done = 0; done < size;) {
    const auto count =
        uninterrupted([&] { return real_file_ops().read(file.get(), bytes.data() + done, size - done); });
    if (count < 0) return io_error(path + ": cannot read: " + std::strerror(errno));
    if (count == 0) return data_loss(path + ": was cut short while it was read");
    done += static_cast<size_t>(count);
  }
  return bytes;
}

}  // namespace llmb
