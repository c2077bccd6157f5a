// Records sorted by input line: in one piece, durable, and as they were where a call fails.
#include "job/record_order.h"

#include <doctest/doctest.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <random>
#include <vector>

#include "io/result_writer.h"
#include "tests/support/bounded.h"
#include "tests/support/faulty_file_ops.h"
#include "tests/support/process.h"
#include "tests/support/temp_dir.h"

namespace llmb {

namespace fs = std::filesystem;
using test::FaultyFileOps;
using test::read_file;
using test::TempDir;
using test::write_file;

namespace {

std::vector<std::string> make_records(int count) {
  std::vector<std::string> records;
  for (int i = 0; i < count; ++i) {
    Completion completion;
    completion.line = {3 * i, "in.jsonl", 3 * i + 1, 0, 5};
    completion.choices.emplace_back();
    completion.choices[0].text = std::string(static_cast<size_t>(i * 7919 % 4000), 'x');
    records.push_back(ResultFormatter().format(completion));
  }
  return records;
}

std::string joined(const std::vector<std::string>& records) {
  std::string text;
  for (const std::string& record : records) text += record;
  return text;
}

Result<std::optional<FileIdentity>> sort_file(const TempDir& dir, FileOps& ops = real_file_ops()) {
  return sort_records(dir / "out", dir / "out.tmp", ops);
}

uint64_t inode(const std::string& path) {
  struct stat st {};
  REQUIRE(stat(path.c_str(), &st) == 0);
  return st.st_ino;
}

}  // namespace

TEST_CASE("any order becomes the order of the input; what is in order is not touched") {
  std::mt19937 random(1);
  for (const int count : {0, 1, 2, 3, 500}) {
    CAPTURE(count);
    const TempDir dir;
    const auto records = make_records(count);
    auto shuffled = records;
    for (int round = 0; round < 4; ++round) {
      if (round == 1) std::reverse(shuffled.begin(), shuffled.end());
      if (round == 2) std::shuffle(shuffled.begin(), shuffled.end(), random);
      if (round == 3 && count > 10) {  // runs in order that overlap, as resumed runs leave them
        shuffled = records;
        std::rotate(shuffled.begin() + 5, shuffled.begin() + 9, shuffled.end());
      }
      write_file(dir / "out", joined(shuffled));
      const uint64_t before = inode(dir / "out");
      const auto replaced = sort_file(dir);
      REQUIRE(replaced.ok());
      CHECK(replaced->has_value() == (shuffled != records));
      if (replaced->has_value()) CHECK((*replaced)->inode == inode(dir / "out"));
      CHECK(read_file(dir / "out") == joined(records));
      if (shuffled == records) CHECK(inode(dir / "out") == before);
      CHECK(!fs::exists(dir / "out.tmp"));
      shuffled = records;
    }
  }
}

TEST_CASE("short reads and interrupts are invisible; a failing call leaves the file as it was, or sorted") {
  auto records = make_records(5);
  const std::string sorted = joined(records);
  std::swap(records[1], records[3]);
  const std::string unsorted = joined(records);
  const TempDir dir;
  write_file(dir / "out", unsorted);
  FaultyFileOps short_ops;
  short_ops.max_io_bytes = 3;
  short_ops.num_interrupts = 2;
  CHECK(sort_file(dir, short_ops).ok());
  CHECK(read_file(dir / "out") == sorted);
  write_file(dir / "out", unsorted);
  FaultyFileOps counting;
  REQUIRE(sort_file(dir, counting).ok());
  REQUIRE(counting.num_calls() > 10);
  for (int64_t at = 1; at <= counting.num_calls(); ++at) {
    CAPTURE(at);
    write_file(dir / "out", unsorted);
    FaultyFileOps ops;
    ops.any_fault = {.at = at, .error = EIO};
    const Status status = sort_file(dir, ops).status();
    if (!status.ok()) CHECK(status.code() == StatusCode::kIoError);
    const std::string text = read_file(dir / "out");
    CHECK((text == sorted || (text == unsorted && !status.ok())));
    CHECK(sort_file(dir).ok());
    CHECK(read_file(dir / "out") == sorted);
  }
}

TEST_CASE("a file that is damaged, torn or shrinks is refused") {
  const TempDir dir;
  const auto records = make_records(3);
  const std::string unsorted = records[2] + records[0] + records[1];
  write_file(dir / "out", unsorted.substr(0, unsorted.size() - 1));
  CHECK(sort_file(dir).status().code() == StatusCode::kDataLoss);
  write_file(dir / "out", "no record\n" + unsorted);
  CHECK(sort_file(dir).status().code() == StatusCode::kDataLoss);
  CHECK(sort_records(dir / "none", dir / "tmp").status().code() == StatusCode::kIoError);
  write_file(dir / "out", unsorted);
  FaultyFileOps ops;
  int num_opens = 0;
  ops.before_call = [&](test::FileCall call) {  // the third opening is the one for copying
    if (call == test::FileCall::kOpen && ++num_opens == 3) fs::resize_file(dir / "out", 10);
  };
  CHECK(sort_file(dir, ops).status().code() == StatusCode::kIoError);
}

TEST_CASE("a million records are sorted in bounded memory") {
  constexpr int64_t kCount = 1'000'000;
  const TempDir dir;
  {
    std::ofstream file(dir / "out", std::ios::binary);
    for (int64_t i = 0; i < kCount; ++i)
      file << R"({"index":)" << (i * 7919) % kCount << R"(,"text":"","hash":"0123456789abcdef"})"
           << "\n";
  }
  const auto run = test::run_bounded([&] { return sort_file(dir).ok() ? 0 : 1; }, 60);
  CHECK(run.exit_code == 0);
  if (test::memory_figures_count()) CHECK(run.peak_mebibytes <= 16);
  std::ifstream sorted(dir / "out");
  int64_t index = 0;
  for (std::string line; std::getline(sorted, line); ++index)
    if (!line.starts_with("{\"index\":" + std::to_string(index) + ",")) break;
  CHECK(index == kCount);
}

}  // namespace llmb
