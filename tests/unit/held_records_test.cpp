// Records that wait, in memory and on disk: each comes back as it was, by increasing ordinal, whatever fails.
#include "job/held_records.h"

#include <doctest/doctest.h>

#include <cstdlib>
#include <filesystem>
#include <map>
#include <string>

#include "tests/support/faulty_file_ops.h"
#include "tests/support/process.h"
#include "tests/support/test_rng.h"

namespace llmb::test {

namespace {

FormattedRecord record(int64_t ordinal) {
  return {std::string(1 + static_cast<size_t>(ordinal * 37 % 300), static_cast<char>('a' + ordinal % 26)) + "\n",
          ordinal % 3 == 0};
}

void check_same(const FormattedRecord& found, int64_t ordinal) {
  const FormattedRecord expected = record(ordinal);
  CHECK(found.text == expected.text);
  CHECK(found.is_error == expected.is_error);
}

// While it lives, temporary files are made here.
class TemporaryPlace {
 public:
  explicit TemporaryPlace(const std::string& path) {
    if (const char* before = std::getenv("TMPDIR")) before_ = before;
    ::setenv("TMPDIR", path.c_str(), 1);
  }
  ~TemporaryPlace() {
    if (before_) ::setenv("TMPDIR", before_->c_str(), 1);
    else ::unsetenv("TMPDIR");
  }

 private:
  std::optional<std::string> before_;
};

}  // namespace

TEST_CASE("records come back by increasing ordinal as they were, with memory for all, for some and for none") {
  const TemporaryDirectory dir;
  const TemporaryPlace place(dir.path());
  for (const size_t max_bytes : {size_t{1} << 20, size_t{2000}, size_t{0}}) {
    CAPTURE(max_bytes);
    HeldRecords held(max_bytes);
    TestRng rng(5);
    std::map<int64_t, bool> expected;
    for (int64_t round = 0; round < 3000; ++round) {
      if (rng.between(0, 2) > 0) {
        const auto ordinal = int64_t{rng.between(0, 1000000)};
        if (!expected.emplace(ordinal, true).second) continue;
        FormattedRecord next = record(ordinal);
        REQUIRE(held.add(ordinal, next).ok());
      } else if (!expected.empty()) {
        CHECK(held.first() == expected.begin()->first);
        const auto found = held.take_first();
        REQUIRE(found.ok());
        check_same(*found, expected.begin()->first);
        expected.erase(expected.begin());
      }
      CHECK(held.size() == expected.size());
    }
    CHECK((held.num_on_disk() > 0) == (max_bytes < 1 << 20));
    for (const auto& [ordinal, there] : expected) {
      const auto found = held.take_first();
      REQUIRE(found.ok());
      check_same(*found, ordinal);
    }
    CHECK_FALSE(held.first().has_value());
  }
  CHECK(std::filesystem::is_empty(dir.path()));
}

TEST_CASE("where the disk is full the record stays with the caller, and those that are held come back") {
  const TemporaryDirectory dir;
  const TemporaryPlace place(dir.path());
  FaultyFileOps ops;
  ops.disk_bytes = 1000;
  HeldRecords held(/*max_bytes=*/0, ops);
  int64_t ordinal = 0;
  Status status;
  while (status.ok()) {
    FormattedRecord next = record(ordinal);
    status = held.add(ordinal, next);
    if (status.ok()) ++ordinal;
    else check_same(next, ordinal);
    REQUIRE(ordinal < 100);
  }
  CHECK(status.code() == StatusCode::kIoError);
  CHECK(status.message().find("llm-batch-order-") != std::string::npos);
  CHECK(status.message().find("TMPDIR") != std::string::npos);
  REQUIRE(held.size() == static_cast<size_t>(ordinal));
  for (int64_t i = 0; i < ordinal; ++i) {
    const auto found = held.take_first();
    REQUIRE(found.ok());
    check_same(*found, i);
  }
  ops.disk_bytes = 1000;  // there is room again
  FormattedRecord again = record(7);
  CHECK(held.add(7, again).ok());
}

TEST_CASE("without a place for temporary files the first record that does not fit in memory says so") {
  const TemporaryDirectory dir;
  const TemporaryPlace place(dir.file("not there"));
  HeldRecords held(/*max_bytes=*/500);
  FormattedRecord small = record(0);
  CHECK(held.add(0, small).ok());
  FormattedRecord large = {std::string(1000, 'x') + "\n", false};
  const Status status = held.add(1, large);
  CHECK(status.code() == StatusCode::kIoError);
  CHECK(large.text.size() == 1001);
  CHECK(held.size() == 1);
}

}  // namespace llmb::test
