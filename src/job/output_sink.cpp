#include "job/output_sink.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <utility>

#include "base/check.h"
#include "base/durable_file.h"

namespace llmb {

namespace fs = std::filesystem;

namespace {

Status error_at(const std::string& what, const std::string& path, int code) {
  return io_error(path + ": " + what + ": " + std::strerror(code));
}

bool same_file(const struct stat& a, const struct stat& b) { return a.st_dev == b.st_dev && a.st_ino == b.st_ino; }

Status check_not_an_input(FileOps& ops, const std::vector<std::string>& inputs, const struct stat& output,
                          const std::string& name) {
  if (!S_ISREG(output.st_mode)) return {};
  for (const std::string& input : inputs) {
    struct stat st {};
    const int result = input == "-" ? ops.fstat(STDIN_FILENO, &st) : ops.stat(input.c_str(), &st);
    if (result == 0 && same_file(st, output))
      return invalid_argument(name + ": the output is the same file as the input " +
                              (input == "-" ? "on standard input" : input) + "; choose another output");
  }
  return {};
}

// Where a chain of symbolic links ends, also where no file is yet. What is no link stays as it is.
std::string follow_links(fs::path path) {
  constexpr int kMaxLinks = 40;
  std::error_code error;
  for (int i = 0; i < kMaxLinks && fs::is_symlink(fs::symlink_status(path, error)); ++i)
    path = path.parent_path() / fs::read_symlink(path, error);
  return path;
}

}  // namespace

Result<OutputTarget> resolve_output(const std::string& path, const std::vector<std::string>& inputs, FileOps& ops) {
  OutputTarget target;
  target.path = path;
  target.is_stream = path == "-";
  if (target.is_stream) return target;
  struct stat st {};
  if (ops.stat(path.c_str(), &st) == 0) {
    if (S_ISDIR(st.st_mode)) return invalid_argument(path + ": the output is a directory; name a file in it");
    target.is_stream = !S_ISREG(st.st_mode);
    if (target.is_stream) return target;
    LLMB_RETURN_IF_ERROR(check_not_an_input(ops, inputs, st, path));
    // rename() would replace a symbolic link, not the file that it stands for.
    char resolved[PATH_MAX];
    if (::realpath(path.c_str(), resolved) == nullptr) return error_at("cannot resolve", path, errno);
    target.path = resolved;
  } else if (errno != ENOENT) {
    return error_at("cannot write here", path, errno);
  } else {
    target.path = follow_links(path);
  }
  for (const std::string& name : {target.partial(), target.manifest()})
    if (ops.stat(name.c_str(), &st) == 0) LLMB_RETURN_IF_ERROR(check_not_an_input(ops, inputs, st, name));
  return target;
}

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
  Result<OutputTarget> target = resolve_output(path_, options_.inputs, ops_);
  if (!target.ok()) return target.status();
  if (target->is_stream) return open_stream();
  path_ = target->path;
  size_ = synced_size_ = options_.keep_bytes;
  partial_ = target->partial();
  return open_partial();
}

Status OutputSink::open_stream() {
  is_stream_ = true;
  if (path_ == "-") {
    fd_ = STDOUT_FILENO;
    path_ = "standard output";
  } else {
    fd_ = open_retrying(ops_, path_, O_WRONLY | O_CLOEXEC, 0);
    if (fd_ < 0) return error_at("cannot open for writing", path_, errno);
    owns_fd_ = true;
  }
  struct stat st {};
  if (ops_.fstat(fd_, &st) != 0) return error_at("cannot write", path_, errno);
  is_regular_stream_ = S_ISREG(st.st_mode);
  return check_not_an_input(ops_, options_.inputs, st, path_);
}

Status OutputSink::open_partial() {
  struct stat st {};
  created_ = ops_.stat(partial_.c_str(), &st) != 0;
  if (created_ && errno != ENOENT) return error_at("cannot look at it", partial_, errno);
  if (!created_) LLMB_RETURN_IF_ERROR(check_not_an_input(ops_, options_.inputs, st, partial_));
  fd_ = open_retrying(ops_, partial_, O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW | O_CLOEXEC, 0666);
  if (fd_ < 0) return error_at("cannot create", partial_, errno);
  owns_fd_ = true;
  return {};
}

Status OutputSink::begin() {
  if (!status_.ok()) return status_;
  if (began_ || is_stream_) return {};
  struct stat st {};
  if (options_.keep_bytes > 0 && (ops_.fstat(fd_, &st) != 0 || st.st_size < options_.keep_bytes))
    return status_ =
               io_error(partial_ + ": cannot be continued: it became shorter than the records that were found in it");
  if (uninterrupted([&] { return ops_.ftruncate(fd_, options_.keep_bytes); }) != 0)
    return status_ = error_at("cannot cut to its whole records", partial_, errno);
  began_ = true;
  return {};
}

Status OutputSink::append(std::string_view records) {
  LLMB_CHECK(!finished_);
  LLMB_CHECK(records.empty() || records.back() == '\n');
  if (!status_.ok()) return status_;
  LLMB_RETURN_IF_ERROR(begin());
  size_t written = 0;
  const Status status = write_all(records, &written);
  if (!status.ok()) return status_ = give_up(status, records, written);
  size_ += static_cast<int64_t>(records.size());
  return sync_if_due();
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
      return cancelled(path_ + ": the reader has gone");
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
  if (!status_.ok() || is_stream_ || synced_size_ == size_) return status_;
  return sync(&FileOps::fdatasync);
}

Status OutputSink::sync(int (FileOps::*call)(int)) {
  if (uninterrupted([&] { return (ops_.*call)(fd_); }) != 0)
    return status_ = error_at("cannot make the results durable", is_stream_ ? path_ : partial_, errno);
  synced_size_ = size_;
  last_sync_ms_ = clock_.now_ms();
  return {};
}

Status OutputSink::finish() {
  LLMB_CHECK(!finished_);
  if (!status_.ok()) return status_;
  LLMB_RETURN_IF_ERROR(begin());
  if (!is_stream_ || is_regular_stream_) LLMB_RETURN_IF_ERROR(sync(&FileOps::fsync));
  if (!is_stream_) LLMB_RETURN_IF_ERROR(status_ = rename_durably(ops_, partial_, path_));
  finished_ = true;
  if (owns_fd_ && ops_.close(std::exchange(fd_, -1)) != 0 && errno != EINTR)
    return status_ = error_at("error on close", path_, errno);
  return {};
}

}  // namespace llmb
