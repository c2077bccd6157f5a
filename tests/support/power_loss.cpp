#include "tests/support/power_loss.h"

#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "base/check.h"
#include "tests/support/process.h"

namespace llmb::test {

namespace fs = std::filesystem;

namespace {

uint64_t inode_of(const std::string& path) {
  struct stat st {};
  LLMB_CHECK(::stat(path.c_str(), &st) == 0);
  return st.st_ino;
}

// Also where it was opened for writing only.
std::string bytes_of(int fd) { return read_file("/proc/self/fd/" + std::to_string(fd)); }

}  // namespace

PowerLossFileOps::PowerLossFileOps(std::string directory, FileOps& inner)
    : directory_(std::move(directory)), inner_(inner), durable_names_(names_now()) {
  for (const auto& [name, inode] : durable_names_) durable_bytes_[inode] = read_file(directory_ + "/" + name);
}

PowerLossFileOps::Names PowerLossFileOps::names_now() const {
  Names names;
  for (const auto& entry : fs::directory_iterator(directory_))
    names[entry.path().filename().string()] = inode_of(entry.path().string());
  return names;
}

int PowerLossFileOps::fsync(int fd) {
  const int result = inner_.fsync(fd);
  if (result == 0) sync(fd);
  return result;
}

int PowerLossFileOps::fdatasync(int fd) {
  const int result = inner_.fdatasync(fd);
  if (result == 0) sync(fd);
  return result;
}

// POSIX promises nothing of a new file's name where only the file is synced.
void PowerLossFileOps::sync(int fd) {
  struct stat st {};
  LLMB_CHECK(::fstat(fd, &st) == 0);
  if (S_ISDIR(st.st_mode)) durable_names_ = names_now();
  else durable_bytes_[st.st_ino] = bytes_of(fd);
}

PowerLossFileOps::Files PowerLossFileOps::after(PowerLoss kind) const {
  Files files;
  for (const auto& [name, inode] : kind == PowerLoss::kNothingUnsynced ? durable_names_ : names_now()) {
    const auto durable = durable_bytes_.find(inode);
    std::string& bytes = files[name] = durable == durable_bytes_.end() ? "" : durable->second;
    if (kind != PowerLoss::kSizesOnly) continue;
    std::string now = read_file(directory_ + "/" + name);
    const size_t same = std::mismatch(bytes.begin(), bytes.end(), now.begin(), now.end()).first - bytes.begin();
    std::fill(now.begin() + static_cast<int64_t>(same), now.end(), '\0');
    bytes = now;
  }
  return files;
}

}  // namespace llmb::test
