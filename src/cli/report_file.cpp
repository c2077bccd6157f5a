#include "cli/report_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/durable_file.h"
#include "report/read_metrics.h"

namespace llmb {

namespace {

bool is_plain_or_new(const std::string& path) {
  struct stat st {};
  return ::stat(path.c_str(), &st) != 0 || S_ISREG(st.st_mode);
}

}  // namespace

Status write_page(const std::vector<RunData>& runs, std::optional<double> price_per_hour, const std::string& path) {
  const std::string page = draw_report(runs, {price_per_hour});
  FileOps& ops = real_file_ops();
  if (path == "-") return write_fully(ops, STDOUT_FILENO, page, "standard output");
  if (!is_plain_or_new(path)) {  // a device or a pipe
    const int fd = open_retrying(ops, path, O_WRONLY | O_CLOEXEC, 0);
    if (fd < 0) return io_error(path + ": cannot open: " + std::strerror(errno));
    Status status = write_fully(ops, fd, page, path);
    ops.close(fd);
    return status;
  }
  AtomicFileWriter file(path, path + ".new", ops);
  LLMB_RETURN_IF_ERROR(file.open());
  LLMB_RETURN_IF_ERROR(file.append(page));
  return file.commit();
}

Status write_report(const std::vector<RunLine>& lines, std::optional<double> price_per_hour, const std::string& path) {
  std::vector<RunData> runs;
  for (const RunLine& line : lines) {
    LLMB_ASSIGN_OR_RETURN(RunData run, read_metrics_line(line.line));
    run.name = line.name;
    runs.push_back(std::move(run));
  }
  return write_page(runs, price_per_hour, path);
}

}  // namespace llmb
