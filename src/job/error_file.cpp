#include "job/error_file.h"

#include <fcntl.h>
#include <sys/stat.h>

#include "base/durable_file.h"
#include "base/open_file.h"

namespace llmb {

Result<std::unique_ptr<ErrorFile>> ErrorFile::open(const std::string& path, const std::function<bool()>& keep_waiting,
                                                   FileOps& ops) {
  const Result<int> fd = open_for_writing(ops, path, O_CREAT | O_TRUNC | O_APPEND, keep_waiting);
  if (!fd.ok()) return fd.status().with_context("`error_file`");
  return std::unique_ptr<ErrorFile>(new ErrorFile(path, *fd, ops));
}

ErrorFile::~ErrorFile() { ops_.close(fd_); }

Status ErrorFile::append(std::string_view record) {
  LLMB_RETURN_IF_ERROR(status_);
  status_ = write_fully(ops_, fd_, record, path_).with_context("`error_file`");
  if (status_.ok()) size_ += static_cast<int64_t>(record.size());
  else cut_off_torn_record();
  return status_;
}

void ErrorFile::cut_off_torn_record() {
  struct stat st {};
  if (ops_.fstat(fd_, &st) == 0 && S_ISREG(st.st_mode) && st.st_size > size_)
    uninterrupted([&] { return ops_.ftruncate(fd_, size_); });  // else the next run empties it
}

}  // namespace llmb
