#include "io/output_sink.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <utility>

#include "base/check.h"

namespace llmb {

namespace {

// Repeats a call that a signal interrupted.
template <typename Call>
auto uninterrupted(Call call) {
  auto result = call();
  while (result < 0 && errno == EINTR) result = call();
  return result;
}

Status error_at(const std::string& what, const std::string& path, int code) {
  return io_error(path + ": " + what + ": " + std::strerror(code));
}

bool same_file(const struct stat& a, const struct stat& b) { return a.st_dev == b.st_dev && a.st_ino == b.st_ino; }

std::string directory_of(const std::string& path) {
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? "." : slash == 0 ? "/" : path.substr(0, slash);
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
    fd_ = uninterrupted([&] { return ops_.open(path_.c_str(), O_WRONLY | O_CLOEXEC, 0); });
    if (fd_ < 0) return error_at("cannot open for writing", path_, errno);
    owns_fd_ = true;
  }
  struct stat st {};
  if (ops_.fstat(fd_, &st) != 0) return error_at("cannot write", path_, errno);
  is_regular_stream_ = S_ISREG(st.st_mode);
  return check_not_an_input(ops_, options_.inputs, st, path_);
}

Status OutputSink::open_partial() {
  constexpr int kMaxTries = 100;
  for (int i = 0; i < kMaxTries; ++i) {
    Result<bool> opened = try_open_partial();
    if (!opened.ok()) return opened.status();
    if (*opened) return {};
  }
  return io_error(partial_ + ": other processes keep replacing this file");
}

Result<bool> OutputSink::try_open_partial() {
  struct stat st {
  }, locked{};
  const bool exists = ops_.stat(partial_.c_str(), &st) == 0;
  if (!exists && errno != ENOENT) return error_at("cannot look at it", partial_, errno);
  created_ = !exists;
  if (!created_) LLMB_RETURN_IF_ERROR(check_not_an_input(ops_, options_.inputs, st, partial_));
  const int flags = O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW | O_CLOEXEC;
  fd_ = uninterrupted([&] { return ops_.open(partial_.c_str(), flags, 0666); });
  if (fd_ < 0) return error_at("cannot create", partial_, errno);
  owns_fd_ = true;
  if (ops_.fstat(fd_, &locked) != 0) return error_at("cannot stat", partial_, errno);
  if (uninterrupted([&] { return ops_.flock(fd_, LOCK_EX | LOCK_NB); }) != 0) {
    created_ = false;  // it is the other's
    if (errno != EWOULDBLOCK) return error_at("cannot lock", partial_, errno);
    const int pid = lock_holder(locked);
    return busy(path_ + ": " + (pid > 0 ? "process " + std::to_string(pid) : "another process") +
                " is writing this output (it holds " + partial_ + "); wait for it or choose another output");
  }
  // The lock is on a file, not on a name: a run that has just finished may have renamed it.
  if (ops_.stat(partial_.c_str(), &st) == 0 && same_file(st, locked)) return true;
  ops_.close(std::exchange(fd_, -1));
  return false;
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
    const ssize_t count =
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
  if (!is_stream_) LLMB_RETURN_IF_ERROR(publish());
  finished_ = true;
  if (owns_fd_ && ops_.close(std::exchange(fd_, -1)) != 0 && errno != EINTR)
    return status_ = error_at("error on close", path_, errno);
  return {};
}

Status OutputSink::publish() {
  if (ops_.rename(partial_.c_str(), path_.c_str()) != 0)
    return status_ = error_at("cannot rename " + partial_ + " to it", path_, errno);
  const std::string directory = directory_of(path_);
  const int fd = uninterrupted([&] { return ops_.open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0); });
  if (fd < 0) return status_ = error_at("cannot open", directory, errno);
  const int result = uninterrupted([&] { return ops_.fsync(fd); });
  const int code = errno;
  ops_.close(fd);
  // EINVAL: a file system that knows no sync of directories.
  if (result != 0 && code != EINVAL) return status_ = error_at("cannot make the new name durable", directory, code);
  return {};
}

}  // namespace llmb
