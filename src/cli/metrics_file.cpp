#include "cli/metrics_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <ctime>
#include <nlohmann/json.hpp>

#include "cli/version.h"

namespace llmb {

std::string metrics_identity(const Options& o, int exit_code) {
  char date[32];
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&now, &utc);
  std::strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%SZ", &utc);
  nlohmann::ordered_json j;
  j["date"] = date;
  j["version"] = kVersion;
  j["model_id"] = o.model_name;
  j["inputs"] = o.inputs;
  j["output"] = o.output;
  j["exit_code"] = exit_code;
  j["max_num_seqs"] = o.max_num_seqs;
  j["max_num_batched_tokens"] = o.max_num_batched_tokens;
  const std::string object = j.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
  return object.substr(1, object.size() - 2);
}

Status append_metrics(const std::string& path, const std::string& line) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  if (fd < 0) return io_error("--metrics: cannot open " + path + ": " + std::strerror(errno));
  const ssize_t written = ::write(fd, line.data(), line.size());
  const int error = errno;
  ::close(fd);
  if (written != static_cast<ssize_t>(line.size()))
    return io_error("--metrics: cannot write " + path + ": " + std::strerror(error));
  return {};
}

}  // namespace llmb
