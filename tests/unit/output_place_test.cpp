// Where an output may be: FAULTS rows 13, 44 and 46.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>

#include "job/output_sink.h"
#include "tests/unit/open_sink.h"

namespace llmb {

namespace fs = std::filesystem;
using test::FaultyFileOps;
using test::FileCall;
using test::read_file;
using test::TempDir;
using test::write_file;

TEST_CASE("the output may not be an input: by path, hard link or symbolic link, as output or as partial file") {
  TempDir dir;
  write_file(dir / "in.jsonl", "{\"prompt\":\"x\"}\n");
  fs::create_hard_link(dir / "in.jsonl", dir / "hard.jsonl");
  fs::create_symlink(dir / "in.jsonl", dir / "soft.jsonl");
  fs::create_hard_link(dir / "in.jsonl", dir / "p.jsonl.partial");
  for (const std::string& output :
       {dir / "in.jsonl", dir / "hard.jsonl", dir / "soft.jsonl", dir / "./in.jsonl", dir / "p.jsonl"}) {
    CAPTURE(output);
    auto sink = open_sink(output, real_file_ops(), {dir / "other.jsonl", dir / "in.jsonl"});
    REQUIRE(!sink.ok());
    CHECK(sink.status().code() == StatusCode::kInvalidArgument);
    CHECK(contains(sink.status().message(), dir / "in.jsonl"));
    CHECK(read_file(dir / "in.jsonl") == "{\"prompt\":\"x\"}\n");
  }
  CHECK(open_sink(dir / "out.jsonl", real_file_ops(), {dir / "in.jsonl"}).ok());
}

TEST_CASE(
    "FAULTS 46: a name that leaves no room for the names beside it is refused, with the limit; a shorter one works") {
  TempDir dir;
  for (const size_t size : {237, 238, 255, 256, 5000}) {
    CAPTURE(size);
    const std::string path = dir / std::string(size, 'n');
    auto sink = open_sink(path);
    CHECK(sink.ok() == (size == 237));
    if (sink.ok()) continue;
    CHECK(sink.status().code() == StatusCode::kInvalidArgument);
    CHECK(
        contains(sink.status().message(), path + ": this name has " + std::to_string(size) + " bytes; the limit is "));
  }
  std::string deep = dir.path();
  while (deep.size() < 4070) deep += "/" + std::string(std::min<size_t>(200, 4090 - deep.size()), 'd');
  CHECK(contains(open_sink(deep).status().message(), "this path has"));
}

TEST_CASE("FAULTS 44: a pipe in place of the partial file is refused, not waited for") {
  TempDir dir;
  REQUIRE(mkfifo((dir / "out.jsonl.partial").c_str(), 0600) == 0);
  const Status status = open_sink(dir / "out.jsonl").status();
  CHECK(status.code() == StatusCode::kIoError);
  CHECK(contains(status.message(), "out.jsonl.partial: this name is needed"));
}

TEST_CASE("an output through a symbolic link writes the file behind it") {
  TempDir dir;
  fs::create_directory(dir / "real");
  write_file(dir / "real/out.jsonl", "");
  fs::create_symlink(dir / "real/out.jsonl", dir / "link.jsonl");
  auto sink = open_sink(dir / "link.jsonl");
  REQUIRE(sink.ok());
  CHECK((*sink)->append("new\n").ok());
  CHECK((*sink)->finish().ok());
  CHECK(fs::is_symlink(dir / "link.jsonl"));
  CHECK(read_file(dir / "real/out.jsonl") == "new\n");
}

TEST_CASE("a symbolic link to a file that is not there yet: the file is made where the link points") {
  TempDir dir;
  fs::create_directory(dir / "real");
  fs::create_symlink("real/second.jsonl", dir / "first.jsonl");
  fs::create_symlink("out.jsonl", dir / "real/second.jsonl");
  auto sink = open_sink(dir / "first.jsonl");
  REQUIRE(sink.ok());
  CHECK((*sink)->append("new\n").ok());
  CHECK(fs::exists(dir / "real/out.jsonl.partial"));
  CHECK((*sink)->finish().ok());
  CHECK(fs::is_symlink(dir / "first.jsonl"));
  CHECK(read_file(dir / "first.jsonl") == "new\n");
  fs::create_symlink("circle", dir / "circle");
  CHECK(open_sink(dir / "circle").status().code() == StatusCode::kIoError);
}

TEST_CASE("a partial file that is a symbolic link is not written through") {
  TempDir dir;
  write_file(dir / "victim", "precious\n");
  fs::create_symlink(dir / "victim", dir / "out.jsonl.partial");
  auto sink = open_sink(dir / "out.jsonl");
  REQUIRE(!sink.ok());
  CHECK(sink.status().code() == StatusCode::kIoError);
  CHECK(read_file(dir / "victim") == "precious\n");
}

TEST_CASE("a missing directory, one that may not be written, and a directory as output are named at open") {
  TempDir dir;
  auto missing = open_sink(dir / "no/out.jsonl");
  REQUIRE(!missing.ok());
  CHECK(missing.status().code() == StatusCode::kIoError);
  CHECK(contains(missing.status().message(), "no/out.jsonl"));
  auto directory = open_sink(dir.path());
  REQUIRE(!directory.ok());
  CHECK(directory.status().code() == StatusCode::kInvalidArgument);
  FaultyFileOps ops;  // as root, permissions stop nobody
  ops.faults = {{FileCall::kOpen, 1, EACCES}};
  auto denied = open_sink(dir / "out.jsonl", ops);
  REQUIRE(!denied.ok());
  CHECK(denied.status().code() == StatusCode::kIoError);
  CHECK(contains(denied.status().message(), "Permission denied"));
}

TEST_CASE("a pipe whose reader has gone is kCancelled; a pipe that is full for a while only waits") {
  std::signal(SIGPIPE, SIG_IGN);
  TempDir dir;
  REQUIRE(mkfifo((dir / "pipe").c_str(), 0600) == 0);
  const int reader = open((dir / "pipe").c_str(), O_RDONLY | O_NONBLOCK);
  REQUIRE(reader >= 0);
  auto sink = open_sink(dir / "pipe");
  REQUIRE(sink.ok());
  CHECK((*sink)->is_stream());
  CHECK((*sink)->append("a\n").ok());
  char buffer[8];
  CHECK(read(reader, buffer, sizeof buffer) == 2);
  close(reader);
  CHECK((*sink)->append("b\n").code() == StatusCode::kCancelled);
  CHECK((*sink)->finish().code() == StatusCode::kCancelled);
  CHECK(!fs::exists(dir / "pipe.partial"));

  FaultyFileOps ops;
  ops.faults = {{FileCall::kWrite, 1, EAGAIN}};
  auto device = open_sink("/dev/null", ops);
  REQUIRE(device.ok());
  CHECK((*device)->append("a\n").ok());
  CHECK(ops.count(FileCall::kPoll) == 1);
  CHECK((*device)->finish().ok());
  CHECK(fs::is_character_file("/dev/null"));
}

}  // namespace llmb
