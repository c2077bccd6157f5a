#include "cli/metrics_file.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <ctime>
#include <nlohmann/json.hpp>

#include "base/durable_file.h"
#include "cli/report_members.h"

namespace llmb {

std::string metrics_beside_path(const std::string& output) {
  if (output == "-" || output.starts_with("/dev/")) return "";
  const std::string suffix = ".jsonl";
  const bool has_suffix = output.size() > suffix.size() && output.ends_with(suffix);
  return output.substr(0, output.size() - (has_suffix ? suffix.size() : 0)) + ".metrics.jsonl";
}

std::string metrics_identity(const JobOptions& o, const BackendInfo& backend, int exit_code) {
  char date[32];
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&now, &utc);
  std::strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%SZ", &utc);
  nlohmann::ordered_json j;
  j["date"] = date;
  j["version"] = o.build;
  j["model_id"] = o.model.name;
  j["inputs"] = o.inputs;
  j["output"] = o.output.path;
  j["exit_code"] = exit_code;
  j["max_num_seqs"] = o.scheduler.max_num_seqs;
  j["max_num_batched_tokens"] = o.scheduler.max_num_batched_tokens;
  add_run_members(o, backend, &j);
  const std::string object = j.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
  return object.substr(1, object.size() - 2);
}

namespace {

// Also where that cannot be read.
bool ends_with_newline(FileOps& ops, int fd, int64_t size) {
  char last = '\n';
  if (size > 0) uninterrupted([&] { return ops.pread(fd, &last, 1, size - 1); });
  return last == '\n';
}

}  // namespace

Status append_metrics(const std::string& path, const std::string& line, FileOps& ops) {
  int fd = open_retrying(ops, path, O_RDWR | O_CREAT | O_APPEND | O_NONBLOCK | O_CLOEXEC, 0666);
  struct stat st {};
  const bool is_file = fd >= 0 && ops.fstat(fd, &st) == 0 && S_ISREG(st.st_mode);
  if (!is_file) {  // a pipe or a device, or a file that may only be written
    if (fd >= 0) ops.close(fd);
    fd = open_retrying(ops, path, O_WRONLY | O_APPEND | O_NONBLOCK | O_CLOEXEC, 0);
    if (fd < 0) return io_error("--metrics: " + path + ": cannot open: " + std::strerror(errno));
  }
  const int64_t size = st.st_size;
  const std::string own_line = (is_file && !ends_with_newline(ops, fd, size) ? "\n" : "") + line;
  Status status = write_fully(ops, fd, own_line, path).with_context("--metrics");
  // Where it cannot be cut, the next line starts anew behind it.
  if (!status.ok() && is_file && ops.fstat(fd, &st) == 0 && st.st_size > size)
    uninterrupted([&] { return ops.ftruncate(fd, size); });
  if (ops.close(fd) != 0 && errno != EINTR && status.ok())
    status = io_error("--metrics: " + path + ": error on close: " + std::strerror(errno));
  return status;
}

}  // namespace llmb
