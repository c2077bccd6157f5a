// The manifest as data and as the file that locks an output: FAULTS rows 9, 10 and 12.
#include "job/run_manifest.h"

#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>

#include "job/manifest_file.h"
#include "tests/support/faulty_file_ops.h"
#include "tests/support/process.h"
#include "tests/support/temp_dir.h"

namespace llmb {

namespace fs = std::filesystem;
using test::FaultyFileOps;
using test::FileCall;
using test::read_file;
using test::TempDir;
using test::write_file;

namespace {

RunManifest example() {
  RunManifest manifest;
  manifest.build = "1.2.3";
  manifest.state = RunState::kRunning;
  manifest.fingerprint.settings = {{"temperature", "0.7"}, {"stop", "[\"\\n\"]"}};
  manifest.fingerprint.files = {
      {"model/config.json", {674, 1795169965246025950, 1795169965246025999, 5308880}, 0x4299fa0e042b89b7u},
      {"tokenizer/tokenizer.json", {INT64_MAX, 0, 1, UINT64_MAX}, 0}};
  return manifest;
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("a manifest reads back as it was written, in every state") {
  for (const RunState state : {RunState::kStarting, RunState::kRunning, RunState::kComplete}) {
    RunManifest manifest = example();
    manifest.state = state;
    const auto read = parse_manifest(format_manifest(manifest), "m");
    REQUIRE(read.ok());
    CHECK(read->state == state);
    CHECK(read->build == "1.2.3");
    CHECK(read->fingerprint.settings == manifest.fingerprint.settings);
    CHECK(fingerprint_differences(manifest.fingerprint, read->fingerprint).empty());
    CHECK(read->fingerprint.files[0].same_identity(manifest.fingerprint.files[0]));
    CHECK_FALSE(
        read->fingerprint.files[1].same_identity(manifest.fingerprint.files[1]));  // too young to be known by its time
    CHECK(read->fingerprint.files[1].identity.inode == UINT64_MAX);
  }
}

TEST_CASE("what a complete job was made of reads back, and its members are checked") {
  RunManifest manifest = example();
  manifest.state = RunState::kComplete;
  manifest.complete =
      CompleteJob{{{"in \"a\".jsonl", {5, 6, 6, 7}, 0}, {"b", {1, 0, 1, 2}, 0}}, {"output", {8, 9, 9, 10}, 0}, 11, 3};
  const std::string text = format_manifest(manifest);
  const auto read = parse_manifest(text, "m");
  REQUIRE(read.ok());
  REQUIRE(read->complete);
  CHECK(read->complete->inputs.size() == 2);
  CHECK(read->complete->inputs[0].same_identity(manifest.complete->inputs[0]));
  CHECK_FALSE(read->complete->inputs[1].same_identity(manifest.complete->inputs[1]));  // it was young
  CHECK(read->complete->output.same_identity(manifest.complete->output));
  CHECK(read->complete->num_records == 11);
  CHECK(read->complete->num_failed == 3);
  for (const char* word : {"\"num_records\"", "\"num_failed\"", "\"inputs\"", "\"output\"", "\"name\"", "11"}) {
    CAPTURE(word);
    std::string changed = text;
    changed.replace(changed.find(word), std::string(word).size(), "\"x\"");
    CHECK_FALSE(parse_manifest(changed, "m").ok());
  }
  for (const char* number : {"\"num_records\": 11", "\"num_failed\": 3", "\"size\": 8", "\"inode\": 10"})
    for (const char* instead : {"-1", "18446744073709551616", "1.5"}) {
      CAPTURE(number);
      std::string changed = text;
      const std::string name = std::string(number).substr(0, std::string(number).find(' ') + 1);
      REQUIRE(changed.find(number) != std::string::npos);
      changed.replace(changed.find(number), std::string(number).size(), name + instead);
      CHECK_FALSE(parse_manifest(changed, "m").ok());
    }
  std::string more_failed = text;
  more_failed.replace(more_failed.find("\"num_failed\": 3"), 15, "\"num_failed\": 12");
  CHECK_FALSE(parse_manifest(more_failed, "m").ok());
}

TEST_CASE("FAULTS 12: a manifest cut at any byte, or with any member missing or of another type, is refused") {
  const std::string text = format_manifest(example());
  const size_t closing = text.rfind('}');
  for (size_t size = 0; size <= closing; ++size)
    CHECK(parse_manifest(text.substr(0, size), "m").status().code() == StatusCode::kDataLoss);
  for (const char* word : {"\"format\"", "\"build\"", "\"state\"", "\"fingerprint\"", "\"settings\"", "\"files\"",
                           "\"size\"", "\"mtime_ns\"", "1795169965246025999", "\"inode\"", "\"xxh64\"", "\"running\"",
                           "\"0.7\"", "674", "\"4299fa0e042b89b7\""}) {
    CAPTURE(word);
    for (const char* instead : {"\"x\"", "-5.5", "{}"}) {
      if (std::string(word) == "\"0.7\"" && std::string(instead) == "\"x\"") continue;
      std::string changed = text;
      changed.replace(changed.find(word), std::string(word).size(), instead);
      CHECK_FALSE(parse_manifest(changed, "m").ok());
    }
  }
  for (const char* other : {"", "null", "[]", "5", "{}", "\x80"}) CHECK_FALSE(parse_manifest(other, "m").ok());
  CHECK_FALSE(parse_manifest(std::string(100000, '['), "m").ok());
  const std::pair<std::string, StatusCode> formats[] = {
      {"2", StatusCode::kUnsupported},                     // newer
      {"18446744073709551615", StatusCode::kUnsupported},  // by far
      {"18446744073709551616", StatusCode::kDataLoss},     // no 64 bits
      {"0", StatusCode::kDataLoss},
      {"-1", StatusCode::kDataLoss},
      {"1.0", StatusCode::kDataLoss},
  };
  for (const auto& f : formats) {
    const auto& format = f.first;
    CAPTURE(format);
    std::string changed = text;
    changed.replace(changed.find("\"format\": 1"), 11, "\"format\": " + format);
    CHECK(parse_manifest(changed, "m").status().code() == f.second);
  }
}

TEST_CASE("a manifest of a build that knew no change times is read, and its files are not known by their times") {
  std::string text = format_manifest(example());
  const size_t at = text.find("\"ctime_ns\": 1795169965246025999,");
  REQUIRE(at != std::string::npos);
  const auto read = parse_manifest(text.erase(at, 33), "m");
  REQUIRE(read.ok());
  CHECK(read->fingerprint.files[0].identity.ctime_ns == 0);
  CHECK_FALSE(read->fingerprint.files[0].same_identity(read->fingerprint.files[0]));
  CHECK(fingerprint_differences(read->fingerprint, example().fingerprint).empty());
}

TEST_CASE("a job's hash is that of settings and content, whoever records it and when") {
  const Fingerprint one = example().fingerprint;
  Fingerprint other = one;
  other.files[0].identity.mtime_ns = 5;
  other.settings.emplace_back("no_metrics", "true");
  CHECK(job_hash(other) == job_hash(one));
  other = one;
  other.settings[0] = {"temperature0", ".7"};
  CHECK(job_hash(other) != job_hash(one));
  other = one;
  other.files[1].content_hash ^= 1;
  CHECK(job_hash(other) != job_hash(one));
}

TEST_CASE("when a job began reads back, and is not known of older builds") {
  RunManifest manifest = example();
  CHECK(parse_manifest(format_manifest(manifest), "m")->created == 0);
  manifest.created = 1700000000;
  const std::string text = format_manifest(manifest);
  CHECK(parse_manifest(text, "m")->created == 1700000000);
  for (const char* instead : {"-1", "\"x\"", "1.5", "null"}) {
    std::string changed = text;
    changed.replace(changed.find("1700000000"), 10, instead);
    CHECK_FALSE(parse_manifest(changed, "m").ok());
  }
}

TEST_CASE("FAULTS 10: differences are named with old and new value") {
  Fingerprint now = example().fingerprint;
  now.settings[0].second = "0.9";
  now.files[0].content_hash ^= 1;
  now.files[0].identity.mtime_ns = 5;  // a new time alone is no difference
  now.files[1].identity.mtime_ns = 6;
  const auto differences = fingerprint_differences(example().fingerprint, now);
  REQUIRE(differences.size() == 2);
  CHECK(differences[0] == "temperature was 0.7 and is 0.9");
  CHECK(contains(differences[1], "file model/config.json was 4299fa0e042b89b7 and is 4299fa0e042b89b6"));
  now = example().fingerprint;
  now.settings.erase(now.settings.begin());
  now.settings.emplace_back("new", "1");
  now.files.erase(now.files.begin());
  now.files.push_back({"model/new", {1, 1, 1, 1}, 1});
  CHECK(fingerprint_differences(example().fingerprint, now).size() == 4);
}

TEST_CASE("the manifest file: locked while it lives and while it is replaced, gone where nothing was written") {
  TempDir dir;
  const std::string path = dir / "m";
  const auto is_busy = [&] {
    const auto other = ManifestFile::lock(path, "out");
    if (other.ok()) return false;
    CHECK(other.status().code() == StatusCode::kBusy);
    CHECK(contains(other.status().message(), "out: "));
    return true;
  };
  {
    auto file = ManifestFile::lock(path, "out");
    REQUIRE(file.ok());
    CHECK((*file)->content().empty());
    CHECK(is_busy());
  }
  CHECK(fs::is_empty(dir.path()));
  {
    auto file = ManifestFile::lock(path, "out");
    REQUIRE(file.ok());
    for (const char* content : {"one", "two"}) {
      CHECK((*file)->replace(content).ok());
      CHECK(read_file(path) == content);
      CHECK(is_busy());
    }
  }
  CHECK(read_file(path) == "two");
  CHECK(ManifestFile::lock(path, "out").value()->content() == "two");
  CHECK(ManifestFile::lock(dir / "no/m", "out").status().code() == StatusCode::kIoError);
  fs::create_symlink(path, dir / "link");
  CHECK(ManifestFile::lock(dir / "link", "out").status().code() == StatusCode::kIoError);
}

TEST_CASE(
    "a manifest that is replaced or removed between another's open and its lock is not mistaken for the new one") {
  TempDir dir;
  const std::string path = dir / "m";
  for (const bool writes : {true, false}) {
    auto first = ManifestFile::lock(path, "out");
    REQUIRE(first.ok());
    FaultyFileOps ops;
    ops.before_call = [&](FileCall call) {
      if (call != FileCall::kFlock || ops.count(FileCall::kFlock) > 0) return;
      if (writes) CHECK((*first)->replace("done").ok());
      first->reset();
    };
    auto second = ManifestFile::lock(path, "out", ops);
    REQUIRE(second.ok());
    CHECK((*second)->content() == (writes ? "done" : ""));
    CHECK((*second)->replace("mine").ok());
    CHECK(read_file(path) == "mine");
    second->reset();
    fs::remove(path);
  }
}

TEST_CASE("FAULTS 9: of many processes that start together one at a time holds the manifest") {
  TempDir dir;
  const std::string path = dir / "m";
  write_file(dir / "count", "");
  std::vector<pid_t> children;
  for (int i = 0; i < 20; ++i) {
    const pid_t child = fork();
    REQUIRE(child >= 0);
    if (child == 0) {
      auto file = ManifestFile::lock(path, "out");
      if (!file.ok()) _exit(file.status().code() == StatusCode::kBusy ? 8 : 1);
      for (int k = 0; k < 20; ++k) {
        // Whoever holds the lock is alone: its own content stays until it writes again.
        const std::string content = std::to_string(i) + ":" + std::to_string(k);
        if (!(*file)->replace(content).ok() || read_file(path) != content) _exit(2);
      }
      _exit(0);
    }
    children.push_back(child);
  }
  int num_winners = 0;
  for (const pid_t child : children) {
    int status = 0;
    REQUIRE(waitpid(child, &status, 0) == child);
    REQUIRE(WIFEXITED(status));
    CHECK((WEXITSTATUS(status) == 0 || WEXITSTATUS(status) == 8));
    num_winners += WEXITSTATUS(status) == 0;
  }
  CHECK(num_winners >= 1);
}

TEST_CASE("a failing call while the manifest is replaced leaves it whole, old or new, and is told") {
  for (const FileCall call : {FileCall::kOpen, FileCall::kFlock, FileCall::kWrite, FileCall::kFsync, FileCall::kRename})
    for (int64_t at = 1; at <= 2; ++at) {
      CAPTURE(static_cast<int>(call));
      CAPTURE(at);
      TempDir dir;
      const std::string path = dir / "m";
      write_file(path, "old");
      FaultyFileOps ops;
      auto file = ManifestFile::lock(path, "out", ops);
      REQUIRE(file.ok());
      ops.faults = {{call, ops.count(call) + at, EIO}};
      const int64_t fails_at = ops.count(call) + at;
      const Status status = (*file)->replace("new");
      CHECK((read_file(path) == "old" || read_file(path) == "new"));
      CHECK(status.ok() == (ops.count(call) < fails_at));
      if (status.ok()) CHECK(read_file(path) == "new");
      CHECK(ManifestFile::lock(path, "out").status().code() == StatusCode::kBusy);
    }
}

}  // namespace llmb
