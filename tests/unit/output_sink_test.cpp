// The output file under faults: FAULTS rows 4, 5, 6, 13 and 40.
#include "job/output_sink.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>

#include "tests/unit/open_sink.h"

namespace llmb {

namespace fs = std::filesystem;
using test::FaultyFileOps;
using test::FileCall;
using test::read_file;
using test::TempDir;
using test::write_file;

TEST_CASE("records are in PATH.partial until finish, then under PATH, and the partial file is gone") {
  TempDir dir;
  auto sink = open_sink(dir / "out.jsonl");
  REQUIRE(sink.ok());
  CHECK((*sink)->append("{\"a\":1}\n").ok());
  CHECK((*sink)->append("{\"b\":1}\n{\"c\":1}\n").ok());
  CHECK(read_file(dir / "out.jsonl.partial") == "{\"a\":1}\n{\"b\":1}\n{\"c\":1}\n");
  CHECK(!fs::exists(dir / "out.jsonl"));
  CHECK((*sink)->finish().ok());
  CHECK(read_file(dir / "out.jsonl") == "{\"a\":1}\n{\"b\":1}\n{\"c\":1}\n");
  CHECK(!fs::exists(dir / "out.jsonl.partial"));
}

TEST_CASE("a job without records leaves an empty output; an empty file is replaced, another is left alone") {
  TempDir dir;
  write_file(dir / "out.jsonl", "");
  auto sink = open_sink(dir / "out.jsonl");
  REQUIRE(sink.ok());
  CHECK((*sink)->append("new\n").ok());
  CHECK((*sink)->finish().ok());
  CHECK(read_file(dir / "out.jsonl") == "new\n");
  auto another = open_sink(dir / "out.jsonl");
  REQUIRE(!another.ok());
  CHECK(another.status().code() == StatusCode::kIoError);
  CHECK(read_file(dir / "out.jsonl") == "new\n");
  fs::remove(dir / "out.jsonl");
  auto none = open_sink(dir / "out.jsonl");
  REQUIRE(none.ok());
  CHECK((*none)->finish().ok());
  CHECK(fs::exists(dir / "out.jsonl"));
  CHECK(read_file(dir / "out.jsonl").empty());
}

// Something else lays hands on the files of a sink that has written two records.
struct Change {
  const char* name;
  std::function<void(const std::string& path, const std::string& partial)> make;
  std::string kept;        // then in the partial file
  bool is_content = true;  // it shows before the next record is written
};

std::vector<Change> changes() {
  const std::string both = "{\"index\":0}\n{\"index\":1}\n";
  return {
      {"cut to nothing", [](auto&, auto& partial) { fs::resize_file(partial, 0); }, ""},
      {"cut in a record", [](auto&, auto& partial) { fs::resize_file(partial, 15); }, "{\"index\":0}\n{\"i"},
      {"appended to", [](auto&, auto& partial) { std::ofstream(partial, std::ios::app) << "x\n"; }, both + "x\n"},
      {"removed", [](auto&, auto& partial) { fs::remove(partial); }, ""},
      {"replaced",
       [](auto& path, auto& partial) {
         fs::copy_file(partial, path + ".copy");
         fs::rename(path + ".copy", partial);
       },
       both},
      {"moved", [](auto& path, auto& partial) { fs::rename(partial, path + ".moved"); }, "", false},
      {"moved, and another in its place",
       [](auto& path, auto& partial) {
         fs::rename(partial, path + ".moved");
         fs::copy_file(path + ".moved", partial);
       },
       both, false},
  };
}

TEST_CASE("FAULTS 40: a partial file that something else cuts, removes, replaces or writes to never ends in success") {
  for (const Change& change : changes())
    for (const bool goes_on : {true, false}) {
      CAPTURE(change.name);
      CAPTURE(goes_on);
      TempDir dir;
      const std::string path = dir / "out.jsonl", partial = path + ".partial";
      auto sink = open_sink(path);
      REQUIRE(sink.ok());
      CHECK((*sink)->append("{\"index\":0}\n").ok());
      CHECK((*sink)->append("{\"index\":1}\n").ok());
      change.make(path, partial);
      if (goes_on) CHECK((*sink)->append("{\"index\":2}\n").ok() == !change.is_content);
      else CHECK(!(*sink)->sync_all().ok());
      CHECK((*sink)->finish().code() == StatusCode::kIoError);
      CHECK((*sink)->was_changed());
      CHECK(!fs::exists(path));
      CHECK(read_file(partial) == change.kept);  // nothing was written behind a torn record
    }
}

TEST_CASE("FAULTS 40: an output that was not there at the start is never replaced; what is done stays") {
  for (const bool was_empty : {false, true})
    for (const std::string foreign : {"", "foreign\n"}) {
      if (was_empty && foreign.empty()) continue;  // nobody has changed it
      CAPTURE(was_empty);
      CAPTURE(foreign);
      TempDir dir;
      if (was_empty) write_file(dir / "out.jsonl", "");
      auto sink = open_sink(dir / "out.jsonl");
      REQUIRE(sink.ok());
      CHECK((*sink)->append("record\n").ok());
      write_file(dir / "out.jsonl", foreign);
      const Status status = (*sink)->finish();
      CHECK(status.code() == StatusCode::kIoError);
      CHECK(contains(status.message(), "out.jsonl"));
      CHECK(!(*sink)->was_changed());
      CHECK(read_file(dir / "out.jsonl") == foreign);
      CHECK(read_file(dir / "out.jsonl.partial") == "record\n");
    }
  TempDir dir;  // a link that leads nowhere is something, too
  auto sink = open_sink(dir / "out.jsonl");
  REQUIRE(sink.ok());
  fs::create_symlink("nowhere", dir / "out.jsonl");
  CHECK((*sink)->finish().code() == StatusCode::kIoError);
  CHECK(fs::is_symlink(dir / "out.jsonl"));
}

TEST_CASE("FAULTS 40: an output that is changed in the moment of its rename is not claimed") {
  TempDir dir;
  FaultyFileOps ops;
  auto sink = open_sink(dir / "out.jsonl", ops);
  REQUIRE(sink.ok());
  CHECK((*sink)->append("record\n").ok());
  ops.before_call = [&](FileCall call) {  // the directory's sync comes right after the rename
    if (call == FileCall::kOpen) fs::resize_file(dir / "out.jsonl", 3);
  };
  CHECK((*sink)->finish().code() == StatusCode::kIoError);
}

TEST_CASE("a sink that never wrote leaves the directory as it was") {
  TempDir dir;
  { REQUIRE(open_sink(dir / "out.jsonl").ok()); }
  CHECK(fs::is_empty(dir.path()));
  write_file(dir / "out.jsonl.partial", "left by a killed run\n");
  { REQUIRE(open_sink(dir / "out.jsonl").ok()); }
  CHECK(read_file(dir / "out.jsonl.partial") == "left by a killed run\n");
}

TEST_CASE("what an earlier run left in the partial file is not mixed with new records") {
  TempDir dir;
  write_file(dir / "out.jsonl.partial", "a longer record of a killed run\ntorn");
  auto sink = open_sink(dir / "out.jsonl");
  REQUIRE(sink.ok());
  CHECK((*sink)->append("new\n").ok());
  CHECK((*sink)->finish().ok());
  CHECK(read_file(dir / "out.jsonl") == "new\n");
}

TEST_CASE("a sink destroyed without finish keeps its records in the partial file") {
  TempDir dir;
  {
    auto sink = open_sink(dir / "out.jsonl");
    REQUIRE(sink.ok());
    CHECK((*sink)->append("kept\n").ok());
  }
  CHECK(read_file(dir / "out.jsonl.partial") == "kept\n");
  CHECK(!fs::exists(dir / "out.jsonl"));
}

TEST_CASE("short writes and a storm of interrupts are invisible") {
  TempDir dir;
  FaultyFileOps ops;
  ops.max_io_bytes = 1;
  ops.num_interrupts = 3;
  auto sink = open_sink(dir / "out.jsonl", ops);
  REQUIRE(sink.ok());
  CHECK((*sink)->append("{\"index\":0}\n").ok());
  CHECK((*sink)->append("{\"index\":1}\n").ok());
  CHECK((*sink)->finish().ok());
  CHECK(read_file(dir / "out.jsonl") == "{\"index\":0}\n{\"index\":1}\n");
  CHECK(ops.count(FileCall::kWrite) == 24);
}

TEST_CASE("a full disk at any byte: kIoError, whole records only, and the error stays") {
  const std::string records[] = {"{\"index\":0}\n", "{\"index\":1}\n{\"index\":22}\n"};
  const std::string whole[] = {"", "{\"index\":0}\n", "{\"index\":0}\n{\"index\":1}\n"};
  for (int64_t free_bytes = 0; free_bytes < 37; ++free_bytes) {
    CAPTURE(free_bytes);
    TempDir dir;
    FaultyFileOps ops;
    ops.disk_bytes = free_bytes;
    auto sink = open_sink(dir / "out.jsonl", ops);
    REQUIRE(sink.ok());
    Status status = (*sink)->append(records[0]);
    if (status.ok()) status = (*sink)->append(records[1]);
    CHECK(status.code() == StatusCode::kIoError);
    CHECK(contains(status.message(), "No space left"));
    CHECK(contains(status.message(), "out.jsonl.partial"));
    const std::string& expected = whole[free_bytes < 12 ? 0 : free_bytes < 24 ? 1 : 2];
    CHECK(read_file(dir / "out.jsonl.partial") == expected);
    CHECK((*sink)->bytes_written() == static_cast<int64_t>(expected.size()));
    ops.disk_bytes = INT64_MAX;  // room again: too late
    CHECK((*sink)->append("{\"index\":3}\n").message() == status.message());
    CHECK((*sink)->finish().message() == status.message());
    CHECK(read_file(dir / "out.jsonl.partial") == expected);
    CHECK(!fs::exists(dir / "out.jsonl"));
  }
}

TEST_CASE("each errno of write and each failing write ends the job with whole records") {
  for (const int error : {ENOSPC, EDQUOT, EFBIG, EIO, EPIPE}) {
    for (int64_t at = 1; at <= 3; ++at) {
      CAPTURE(error);
      CAPTURE(at);
      TempDir dir;
      FaultyFileOps ops;
      ops.max_io_bytes = 4;
      ops.faults = {{FileCall::kWrite, at, error}};
      auto sink = open_sink(dir / "out.jsonl", ops);
      REQUIRE(sink.ok());
      const Status status = (*sink)->append("0123456\nabc\n");
      CHECK(status.code() == StatusCode::kIoError);
      CHECK(read_file(dir / "out.jsonl.partial") == (at <= 2 ? "" : "0123456\n"));
      CHECK((*sink)->finish().code() == StatusCode::kIoError);
    }
  }
}

TEST_CASE("a torn record that cannot be cut off is told") {
  TempDir dir;
  FaultyFileOps ops;
  ops.disk_bytes = 5;
  ops.faults = {{FileCall::kFtruncate, 2, EIO, true}};  // the first empties the file
  auto sink = open_sink(dir / "out.jsonl", ops);
  REQUIRE(sink.ok());
  CHECK(contains((*sink)->append("{\"index\":0}\n").message(), "could not be removed"));
}

TEST_CASE("a failed sync is final, even where the next one would succeed") {
  for (const FileCall call : {FileCall::kFdatasync, FileCall::kFsync}) {
    CAPTURE(static_cast<int>(call));
    TempDir dir;
    FaultyFileOps ops;
    ops.faults = {{call, 1, EIO}};
    VirtualClock clock;
    auto sink = OutputSink::open({dir / "out.jsonl", {}}, clock, ops);
    REQUIRE(sink.ok());
    CHECK((*sink)->append("a\n").ok());
    clock.advance_ms(1000);
    const Status first = (*sink)->append("b\n");
    CHECK(first.ok() == (call == FileCall::kFsync));
    CHECK((*sink)->finish().code() == StatusCode::kIoError);
    CHECK((*sink)->finish().code() == StatusCode::kIoError);
    CHECK(!fs::exists(dir / "out.jsonl"));
    CHECK(read_file(dir / "out.jsonl.partial") == "a\nb\n");
  }
}

TEST_CASE("an error of rename, of the directory's sync, of its opening or of close never ends in success") {
  struct Case {
    FileCall call;
    int64_t at;
  };
  for (const auto& [call, at] : {Case{FileCall::kRename, 1}, Case{FileCall::kFsync, 2}, Case{FileCall::kOpen, 2},
                                 Case{FileCall::kClose, 2}, Case{FileCall::kFtruncate, 1}}) {
    CAPTURE(static_cast<int>(call));
    TempDir dir;
    FaultyFileOps ops;
    ops.faults = {{call, at, EIO}};
    auto sink = open_sink(dir / "out.jsonl", ops);
    REQUIRE(sink.ok());
    Status status = (*sink)->append("a\n");
    if (status.ok()) status = (*sink)->finish();
    CHECK(status.code() == StatusCode::kIoError);
    CHECK(contains(status.message(), "Input/output error"));
  }
}

TEST_CASE("data is synced about once a second, and only where something is new") {
  TempDir dir;
  FaultyFileOps ops;
  VirtualClock clock;
  auto sink = OutputSink::open({dir / "out.jsonl", {}}, clock, ops);
  REQUIRE(sink.ok());
  for (int i = 0; i < 100; ++i) {
    CHECK((*sink)->append("a\n").ok());
    clock.advance_ms(100);
  }
  CHECK(ops.count(FileCall::kFdatasync) == 9);
  clock.advance_ms(5000);
  CHECK((*sink)->sync_if_due().ok());
  CHECK(ops.count(FileCall::kFdatasync) == 10);
  clock.advance_ms(5000);
  CHECK((*sink)->sync_if_due().ok());
  CHECK(ops.count(FileCall::kFdatasync) == 10);
}

}  // namespace llmb
