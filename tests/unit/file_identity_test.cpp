// A file is known by what no call can put back: FAULTS row 42.
#include "base/file_identity.h"

#include <doctest/doctest.h>

#include <filesystem>

#include "base/whole_file.h"
#include "tests/support/file_changes.h"
#include "tests/support/process.h"
#include "tests/support/temp_dir.h"

namespace llmb::test {

namespace fs = std::filesystem;

namespace {

FileIdentity identity_at(const std::string& path) {
  struct stat st {};
  REQUIRE(stat(path.c_str(), &st) == 0);
  return identity_of(st);
}

}  // namespace

TEST_CASE("a byte changed with its time put back, and a file put in another's place, are other files") {
  const TempDir dir;
  const std::string path = dir / "f", other = dir / "g";
  write_file(path, "0123456789");
  let_rest(path);
  const FileIdentity before = identity_at(path);
  CHECK(before == identity_at(path));
  CHECK(read_file(path) == "0123456789");  // to read is no change
  CHECK(before == identity_at(path));
  flip_byte_unseen(path, 3);
  const FileIdentity after = identity_at(path);
  CHECK(after.size == before.size);
  CHECK(after.mtime_ns == before.mtime_ns);
  CHECK(after.inode == before.inode);
  CHECK(after != before);
  write_file(other, "0123456789");
  fs::last_write_time(other, fs::last_write_time(path));
  fs::rename(other, path);
  CHECK(identity_at(path).mtime_ns == after.mtime_ns);
  CHECK(identity_at(path) != after);
}

TEST_CASE("a file is young after any change, also where its time says that it is old") {
  const TempDir dir;
  const std::string path = dir / "f";
  write_file(path, "x");
  fs::last_write_time(path, fs::file_time_type::clock::now() - std::chrono::hours(1));
  CHECK(is_young(identity_at(path)));
  let_rest(path);
  CHECK_FALSE(is_young(identity_at(path), change_times_at(path)));
  CHECK(is_young({1, INT64_MAX / 2, 0, 1}, ChangeTimes::kAtOnce));  // from the future
}

TEST_CASE("times of what is no file on a disk are not trusted") {
  CHECK(change_times_at("/proc/self/status") == ChangeTimes::kUnknown);
  CHECK(change_times_of(-1) == ChangeTimes::kUnknown);
}

TEST_CASE("a file is read whole, or refused: too large, missing, a pipe, a directory") {
  const TempDir dir;
  const std::string path = dir / "f", text(100'000, 'x');
  write_file(path, text);
  CHECK(*read_whole_file(path, text.size()) == text);
  CHECK(read_whole_file(path, text.size() - 1).status().code() == StatusCode::kDataLoss);
  CHECK(read_whole_file(dir / "none", 1).status().code() == StatusCode::kNotFound);
  CHECK(read_whole_file(dir.path(), 1000).status().code() == StatusCode::kIoError);
  REQUIRE(mkfifo((dir / "pipe").c_str(), 0600) == 0);
  CHECK(read_whole_file(dir / "pipe", 1000).status().code() == StatusCode::kIoError);
  write_file(path, "");
  CHECK(read_whole_file(path, 0)->empty());
  fs::resize_file(path, uintmax_t{1} << 40);  // takes no space, and would take all memory
  CHECK(read_whole_file(path, kMaxTextFileBytes).status().code() == StatusCode::kDataLoss);
}

}  // namespace llmb::test
