#include "base/directory.h"

#include <dirent.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <new>
#include <system_error>

namespace llmb {

Result<std::vector<std::string>> directory_names(const std::string& dir) {
  const auto close = [](DIR* d) { closedir(d); };
  DIR* opened = opendir(dir.c_str());
  while (opened == nullptr && errno == EINTR) opened = opendir(dir.c_str());
  const std::unique_ptr<DIR, decltype(close)> stream(opened, close);
  if (!stream && errno == ENOMEM) throw std::bad_alloc();
  if (!stream && (errno == EMFILE || errno == ENFILE))
    throw std::system_error(errno, std::generic_category(), dir + ": cannot list it");
  if (!stream) return io_error(dir + ": cannot list: " + std::strerror(errno));
  std::vector<std::string> names;
  errno = 0;
  while (const dirent* entry = readdir(stream.get())) {
    const std::string name = entry->d_name;
    if (name != "." && name != "..") names.push_back(name);
    errno = 0;
  }
  if (errno != 0) return io_error(dir + ": cannot list: " + std::strerror(errno));
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace llmb
