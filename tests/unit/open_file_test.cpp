// Files that cannot be opened, and named pipes at whose other end nobody is.
#include "base/open_file.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "tests/support/faulty_file_ops.h"
#include "tests/support/process.h"
#include "tests/support/temp_dir.h"

namespace llmb {

using test::FaultyFileOps;
using test::FileCall;
using test::TempDir;

namespace {
const auto kNever = [] { return false; };
const auto kAlways = [] { return true; };
}  // namespace

TEST_CASE("a failed open is the file's fault, or this process's that has too many files or no memory") {
  CHECK(open_error("f", ENOENT).code() == StatusCode::kNotFound);
  for (const int error : {EMFILE, ENFILE, ENOMEM})
    CHECK(open_error("f", error).code() == StatusCode::kResourceExhausted);
  for (const int error : {EACCES, EIO, ENOTDIR}) CHECK(open_error("f", error).code() == StatusCode::kIoError);
  CHECK(open_error("f", EMFILE).message().find("ulimit -n") != std::string::npos);
}

TEST_CASE("FAULTS 44: a named pipe that nobody reads is waited for as long as is allowed") {
  const TempDir dir;
  REQUIRE(mkfifo((dir / "pipe").c_str(), 0600) == 0);
  CHECK(open_for_writing(real_file_ops(), dir / "pipe", 0, kNever).status().code() == StatusCode::kCancelled);
  int num_asked = 0, reader = -1;
  const Result<int> fd = open_for_writing(real_file_ops(), dir / "pipe", 0, [&] {
    if (++num_asked == 3) reader = open((dir / "pipe").c_str(), O_RDONLY | O_NONBLOCK);
    return num_asked < 10;
  });
  REQUIRE(fd.ok());
  CHECK(num_asked == 3);
  CHECK((fcntl(*fd, F_GETFL) & O_NONBLOCK) == 0);
  CHECK(write(*fd, "x", 1) == 1);
  close(*fd);
  close(reader);
}

TEST_CASE("a file is opened with its flags; EINTR is tried again, other errors name the file") {
  const TempDir dir;
  FaultyFileOps ops;
  ops.num_interrupts = 3;
  const Result<int> fd = open_for_writing(ops, dir / "f", O_CREAT | O_APPEND, kNever);
  REQUIRE(fd.ok());
  CHECK((fcntl(*fd, F_GETFL) & O_APPEND) != 0);
  close(*fd);
  CHECK(test::read_file(dir / "f").empty());
  const Status missing = open_for_writing(real_file_ops(), dir / "no/f", O_CREAT, kAlways).status();
  CHECK(missing.code() == StatusCode::kIoError);
  CHECK(missing.message().find("no/f") != std::string::npos);
  FaultyFileOps denied;
  denied.faults = {{FileCall::kOpen, 1, ENXIO}};  // of something that is no pipe
  CHECK(open_for_writing(denied, dir / "f", 0, kAlways).status().code() == StatusCode::kIoError);
}

}  // namespace llmb
