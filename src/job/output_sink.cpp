#include "job/output_sink.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/durable_file.h"
#include "base/open_file.h"
#include "base/process_start.h"
#include "job/output_target.h"

namespace llmb {

OutputSink::OutputSink(OutputSinkOptions options, const Clock& clock, FileOps& ops)
    : options_(std::move(options)), clock_(clock), ops_(ops), path_(options_.path) {}

Result<std::unique_ptr<OutputSink>> OutputSink::open(OutputSinkOptions options, const Clock& clock, FileOps& ops) {
  std::unique_ptr<OutputSink> sink(new OutputSink(std::move(options), clock, ops));
  LLMB_RETURN_IF_ERROR(sink->open_output());
  sink->last_sync_ms_ = clock.now_ms();
  return sink;
}

OutputSink::~OutputSink() {
  if (fd_ < 0 || !owns_fd_) return;
  if (!is_stream_ && created_ && !began_) ops_.unlink(partial_.c_str());
  ops_.close(fd_);
}

Status OutputSink::open_output() {
  LLMB_ASSIGN_OR_RETURN(OutputTarget target, resolve_output(path_, options_.inputs, ops_));
  if (target.is_stream) return open_stream();
  path_ = target.path;
  size_ = synced_size_ = options_.keep_bytes;
  partial_ = target.partial();
  return open_partial();
}

Status OutputSink::open_stream() {
  is_stream_ = true;
  if (path_ == "-") {
    LLMB_RETURN_IF_ERROR(check_standard_descriptor(STDOUT_FILENO, /*for_writing=*/true));
    fd_ = STDOUT_FILENO;
    path_ = "standard output";
  } else {
    LLMB_ASSIGN_OR_RETURN(fd_, open_for_writing(ops_, path_, 0, options_.keep_waiting));
    owns_fd_ = true;
  }
  struct stat st {};
  if (ops_.fstat(fd_, &st) != 0) return error_at("cannot write", path_, errno);
  is_regular_stream_ = S_ISREG(st.st_mode);
  if (is_regular_stream_)
    stream_begin_ = (::fcntl(fd_, F_GETFL) & O_APPEND) != 0 ? int64_t{st.st_size} : ::lseek(fd_, 0, SEEK_CUR);
  return check_not_an_input(ops_, options_.inputs, st, path_);
}

Status OutputSink::open_partial() {
  const auto output = identify_file(ops_, path_), partial = identify_file(ops_, partial_);
  for (const auto* found : {&output, &partial})
    if (!found->ok()) return found->status();
  replaces_ = *output;
  if (replaces_ && replaces_->size > 0) return io_error(path_ + ": exists; move it away, or choose another output");
  created_ = !partial->has_value();
  // Without waiting: it may have become a pipe.
  fd_ = open_retrying(ops_, partial_, O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0666);
  if (fd_ < 0) return error_at("cannot create", partial_, errno);
  owns_fd_ = true;
  struct stat st {};
  if (ops_.fstat(fd_, &st) != 0) return error_at("cannot stat it", partial_, errno);
  if (!S_ISREG(st.st_mode)) return io_error(partial_ + ": this name is needed for results, but is not a regular file; move it away");
  identity_ = identity_of(st);
  return check_not_an_input(ops_, options_.inputs, st, partial_);
}

Status OutputSink::begin() {
  LLMB_RETURN_IF_ERROR(status_);
  if (began_ || is_stream_) return {};
  struct stat st {};
  if (options_.keep_bytes > 0 && (ops_.fstat(fd_, &st) != 0 || st.st_size < options_.keep_bytes))
    return status_ =
               io_error(partial_ + ": cannot be continued: it became shorter than the records that were found in it");
  if (uninterrupted([&] { return ops_.ftruncate(fd_, options_.keep_bytes); }) != 0)
    return status_ = error_at("cannot truncate to its complete records", partial_, errno);
  began_ = true;
  return {};
}

Status OutputSink::append(std::string_view records) {
  LLMB_CHECK(!finished_);
  LLMB_CHECK(records.empty() || records.back() == '\n');
  LLMB_RETURN_IF_ERROR(status_);
  LLMB_RETURN_IF_ERROR(begin());
  LLMB_RETURN_IF_ERROR(status_ = check_content());
  size_t written = 0;
  const Status status = write_all(records, &written);
  if (!status.ok()) return status_ = give_up(status, records, written);
  size_ += static_cast<int64_t>(records.size());
  return sync_if_due();
}

// The file holds just what was written, and has a name. Without a look at that before each record a file that was cut
// short would end with a torn record and go on behind it.
Status OutputSink::check_content() {
  if (is_stream_ && !is_regular_stream_) return {};
  struct stat st {};
  if (ops_.fstat(fd_, &st) != 0) return error_at("cannot stat it", is_stream_ ? path_ : partial_, errno);
  const int64_t expected = stream_begin_ + size_, found = st.st_size;
  // A redirected stream may have other writers, and no name.
  if (is_stream_ ? found >= expected : found == expected && st.st_nlink > 0) return {};
  was_changed_ = true;
  if (!is_stream_ && st.st_nlink == 0) return io_error(partial_ + ": was removed or replaced while it was written");
  return io_error((is_stream_ ? path_ : partial_) + ": was changed by something else while it was written: it has " +
                  std::to_string(found) + " bytes, not " + std::to_string(expected));
}

// The name leads to the file identity_, of that size.
Status OutputSink::check_place(const std::string& name) {
  LLMB_ASSIGN_OR_RETURN(const auto found, identify_file(ops_, name));
  if (found && found->inode == identity_.inode && found->size == identity_.size) {
    identity_ = *found;
    return {};
  }
  was_changed_ = true;
  return io_error(name + ": was " + (found ? "replaced or changed" : "moved or removed") +
                  " by something else during the run");
}

Status OutputSink::write_all(std::string_view records, size_t* written) {
  while (*written < records.size()) {
    const auto count =
        uninterrupted([&] { return ops_.write(fd_, records.data() + *written, records.size() - *written); });
    if (count > 0) {
      *written += static_cast<size_t>(count);
    } else if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      // Someone who shares the pipe made it non-blocking.
      if (uninterrupted([&] { return ops_.poll(fd_, POLLOUT, -1); }) < 0) return error_at("cannot write", path_, errno);
    } else if (count < 0 && errno == EPIPE && is_stream_) {
      return cancelled(path_ + ": its reader has closed it");
    } else {
      return error_at("cannot write", is_stream_ ? path_ : partial_, count < 0 ? errno : EIO);
    }
  }
  return {};
}

// Cuts a torn record off, so that the file ends with a whole one.
Status OutputSink::give_up(const Status& cause, std::string_view records, size_t written) {
  const size_t newline = records.substr(0, written).rfind('\n');
  const size_t whole = newline == std::string_view::npos ? 0 : newline + 1;
  size_ += static_cast<int64_t>(whole);
  if (is_stream_ || whole == written) return cause;
  struct stat st {};
  if (ops_.fstat(fd_, &st) == 0 && st.st_size < size_) return cause;  // cut by something else: not to be made longer
  if (uninterrupted([&] { return ops_.ftruncate(fd_, size_); }) == 0) return cause;
  return {cause.code(),
          cause.message() + "; the record that was cut short could not be removed either: " + std::strerror(errno)};
}

Status OutputSink::sync_if_due() {
  if (!status_.ok() || is_stream_ || synced_size_ == size_) return status_;
  if (clock_.now_ms() - last_sync_ms_ < options_.sync_interval_ms) return {};
  return sync(&FileOps::fdatasync);
}

Status OutputSink::sync_all() {
  if (!status_.ok() || is_stream_) return status_;
  return sync(&FileOps::fdatasync);
}

Status OutputSink::sync(int (FileOps::*call)(int)) {
  if (!is_stream_ && !began_) return {};
  LLMB_RETURN_IF_ERROR(status_ = check_content());
  identity_.size = size_;
  if (!is_stream_) LLMB_RETURN_IF_ERROR(status_ = check_place(partial_));
  if (call == &FileOps::fdatasync && synced_size_ == size_) return {};
  if (uninterrupted([&] { return (ops_.*call)(fd_); }) != 0)
    return status_ = error_at("cannot make the results durable", is_stream_ ? path_ : partial_, errno);
  synced_size_ = size_;
  last_sync_ms_ = clock_.now_ms();
  return {};
}

Status OutputSink::finish(const std::optional<FileIdentity>& rewritten) {
  LLMB_CHECK(!finished_);
  LLMB_RETURN_IF_ERROR(status_);
  LLMB_RETURN_IF_ERROR(begin());
  if (rewritten) identity_ = *rewritten;
  if (rewritten) LLMB_RETURN_IF_ERROR(status_ = check_place(partial_));
  else if (!is_stream_ || is_regular_stream_) LLMB_RETURN_IF_ERROR(sync(&FileOps::fsync));
  if (!is_stream_) {
    LLMB_RETURN_IF_ERROR(status_ = move_durably(ops_, partial_, path_, replaces_));
    LLMB_RETURN_IF_ERROR(status_ = check_place(path_));
  }
  finished_ = true;
  if (owns_fd_ && ops_.close(std::exchange(fd_, -1)) != 0 && errno != EINTR)
    return status_ = error_at("error on close", path_, errno);
  return {};
}

}  // namespace llmb
