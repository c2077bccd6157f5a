#include "job/output_target.h"

#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "base/durable_file.h"

namespace llmb {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view kLongestSuffix = ".manifest.json.tmp";  // of all names beside an output

bool same_file(const struct stat& a, const struct stat& b) { return a.st_dev == b.st_dev && a.st_ino == b.st_ino; }

// Where a chain of symbolic links ends, also where no file is yet. What is no link stays as it is.
std::string follow_links(fs::path path) {
  constexpr int kMaxLinks = 40;
  std::error_code error;
  for (int i = 0; i < kMaxLinks && fs::is_symlink(fs::symlink_status(path, error)); ++i)
    path = path.parent_path() / fs::read_symlink(path, error);
  return path;
}

}  // namespace

Status error_at(const std::string& what, const std::string& path, int code) {
  return io_error(path + ": " + what + ": " + std::strerror(code));
}

Status check_name_length(const std::string& path, std::string_view suffix) {
  const long known = ::pathconf(directory_of(path).c_str(), _PC_NAME_MAX);
  const size_t limit = known > 0 ? static_cast<size_t>(known) : NAME_MAX;
  const size_t name_bytes = path.size() - (path.rfind('/') + 1);  // npos + 1 is 0
  const bool is_name = name_bytes + suffix.size() > limit;
  if (!is_name && path.size() + suffix.size() < PATH_MAX) return {};
  const size_t room = (is_name ? limit : size_t{PATH_MAX - 1}) - suffix.size();
  return invalid_argument(
      path + ": this " + (is_name ? "name" : "path") + " has " + std::to_string(is_name ? name_bytes : path.size()) +
      " bytes; the limit is " + std::to_string(room) +
      (suffix.empty() ? "" : ", as " + std::string(suffix) + " is appended") + "; choose a shorter one");
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

Result<OutputTarget> resolve_output(const std::string& path, const std::vector<std::string>& inputs, FileOps& ops) {
  OutputTarget target;
  target.path = path;
  target.is_stream = path == "-";
  if (target.is_stream) return target;
  LLMB_RETURN_IF_ERROR(check_name_length(path));
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
  LLMB_RETURN_IF_ERROR(check_name_length(target.path, kLongestSuffix));
  for (const std::string& name : {target.partial(), target.manifest(), target.index()})
    if (ops.stat(name.c_str(), &st) == 0) LLMB_RETURN_IF_ERROR(check_not_an_input(ops, inputs, st, name));
  return target;
}

}  // namespace llmb
