#include "job/side_files.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/durable_file.h"

namespace llmb {

namespace fs = std::filesystem;

namespace {

std::optional<struct stat> look_at(const std::string& path) {
  struct stat st {};
  if (path == "-" ? ::fstat(STDIN_FILENO, &st) != 0 : ::stat(path.c_str(), &st) != 0) return std::nullopt;
  return st;
}

// By name where a file is still to be made.
bool is_same_file(const std::string& a, const std::string& b) {
  const auto found_a = look_at(a), found_b = look_at(b);
  if (found_a && found_b)
    return S_ISREG(found_a->st_mode) && found_a->st_dev == found_b->st_dev && found_a->st_ino == found_b->st_ino;
  if (found_a || found_b) return false;
  std::error_code unknown;
  const fs::path full_a = fs::weakly_canonical(fs::absolute(a, unknown), unknown);
  const fs::path full_b = fs::weakly_canonical(fs::absolute(b, unknown), unknown);
  return unknown ? a == b : full_a == full_b;
}

Status check_writable(const std::string& path) {
  const bool exists = look_at(path).has_value();
  const std::string where = exists ? path : directory_of(path);
  if (::access(where.c_str(), exists ? W_OK : W_OK | X_OK) == 0) return {};
  return io_error(path + ": cannot open for writing: " + std::strerror(errno));
}

Status check_side_file(const std::string& path, const std::vector<std::pair<std::string, std::string>>& taken) {
  LLMB_RETURN_IF_ERROR(check_name_length(path));
  if (const auto found = look_at(path); found && S_ISDIR(found->st_mode))
    return invalid_argument(path + ": is a directory; name a file in it");
  for (const auto& [what, file] : taken)
    if (is_same_file(path, file)) return invalid_argument(path + ": is also " + what + "; choose another file");
  return {};
}

}  // namespace

Status check_side_files(const JobOptions& o, const OutputTarget& output) {
  std::vector<std::pair<std::string, std::string>> taken;
  for (const std::string& input : o.inputs)
    taken.emplace_back(input == "-" ? "the input on standard input" : "the input " + input, input);
  if (!output.is_stream) {
    taken.emplace_back("the output", output.path);
    for (const std::string& name : {output.partial(), output.manifest()})
      taken.emplace_back("part of the output", name);
    if (o.output.format == OutputFormat::kNpy) taken.emplace_back("part of the output", output.index());
  } else if (o.output.path == "-") {
    taken.emplace_back("the output", "/dev/stdout");
  }
  if (const std::string& path = o.output.error_file; !path.empty()) {
    Status status = check_side_file(path, taken);
    if (status.ok()) status = check_writable(path);
    if (!status.ok()) return status.with_context("`error_file`");
    taken.emplace_back("the file of `error_file`", path);
  }
  if (o.output.metrics.empty()) return {};
  return check_side_file(o.output.metrics, taken).with_context("`metrics`");
}

}  // namespace llmb
