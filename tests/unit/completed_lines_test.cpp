// Which lines are done, at chunk borders and where the input is not what it was: FAULTS row 11.
#include "job/completed_lines.h"

#include <doctest/doctest.h>

#include <random>
#include <set>

namespace llmb {

namespace {

LineRef line_at(int64_t index, uint64_t hash) { return {index, "in.jsonl", index + 1, 0, hash}; }

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("a line is new, done or edited, at every border of a chunk") {
  CompletedLines lines;
  CHECK(lines.size() == 0);
  CHECK(lines.last_index() == -1);
  for (const int64_t index : {0, 1, 1023, 1024, 1025, 2047, 1 << 30}) {
    CHECK(lines.match(index, 7) == CompletedLines::Match::kNew);
    CHECK(lines.add(index, 7));
    CHECK_FALSE(lines.add(index, 7));
    CHECK_FALSE(lines.add(index, 8));
    CHECK(lines.match(index, 7) == CompletedLines::Match::kDone);
    CHECK(lines.match(index, 8) == CompletedLines::Match::kEdited);
    CHECK(lines.contains(index));
  }
  CHECK(lines.size() == 7);
  CHECK(lines.last_index() == 1 << 30);
  for (const int64_t index : {2, 1022, 1026, 2046, 2048}) CHECK_FALSE(lines.contains(index));
  CHECK(lines.add(INT64_MAX, 1));
  CHECK(lines.match(INT64_MAX, 1) == CompletedLines::Match::kDone);
}

TEST_CASE("a removed line is new again") {
  CompletedLines lines;
  for (const int64_t index : {3, 4, 5}) lines.add(index, 7);
  lines.remove(4);
  CHECK(lines.size() == 2);
  CHECK(lines.match(4, 7) == CompletedLines::Match::kNew);
  CHECK(lines.match(3, 7) == CompletedLines::Match::kDone);
  CHECK(lines.add(4, 8));
  CHECK(lines.match(4, 8) == CompletedLines::Match::kDone);
}

TEST_CASE("FAULTS 11: a line that may have grown is new where it has, and no other line may be edited") {
  CompletedLines lines;
  for (const int64_t index : {0, 1, 2}) lines.add(index, 7);
  CompletedLineMatcher matcher(lines, {1, 2});
  CHECK(*matcher.is_done(line_at(0, 7)));
  CHECK_FALSE(*matcher.is_done(line_at(1, 8)));
  CHECK(*matcher.is_done(line_at(2, 7)));
  CHECK(matcher.grown() == std::set<int64_t>{1});
  CHECK(matcher.check_end().ok());
  CompletedLineMatcher strict(lines, {1});
  CHECK(strict.is_done(line_at(0, 8)).status().code() == StatusCode::kConflict);
}

TEST_CASE("random indices agree with a set") {
  std::mt19937_64 random(1);
  CompletedLines lines;
  std::set<int64_t> reference;
  for (int i = 0; i < 20000; ++i) {
    const auto index = static_cast<int64_t>(random() % 10000);
    CHECK(lines.add(index, static_cast<uint64_t>(index)) == reference.insert(index).second);
  }
  CHECK(lines.size() == static_cast<int64_t>(reference.size()));
  for (int64_t index = 0; index < 11000; ++index) CHECK(lines.contains(index) == reference.contains(index));
}

TEST_CASE("the matcher passes an unchanged or grown input and skips exactly the done lines") {
  CompletedLines lines;
  for (const int64_t index : {0, 2, 5}) lines.add(index, static_cast<uint64_t>(100 + index));
  CompletedLineMatcher matcher(lines);
  for (const int64_t index : {0, 1, 2, 5, 9}) {  // 3 and 4 are blank
    const auto done = matcher.is_done(line_at(index, static_cast<uint64_t>(100 + index)));
    REQUIRE(done.ok());
    CHECK(*done == (index == 0 || index == 2 || index == 5));
  }
  CHECK(matcher.check_end().ok());
}

TEST_CASE("an edited, blanked or missing line is a conflict that names it") {
  CompletedLines lines;
  for (const int64_t index : {0, 2, 5}) lines.add(index, 7);
  {
    CompletedLineMatcher matcher(lines);
    const auto edited = matcher.is_done(line_at(0, 8));
    REQUIRE_FALSE(edited.ok());
    CHECK(edited.status().code() == StatusCode::kConflict);
    CHECK(contains(edited.status().message(), "in.jsonl:1: "));
  }
  {
    CompletedLineMatcher matcher(lines);
    CHECK(matcher.is_done(line_at(0, 7)).ok());
    const auto blanked = matcher.is_done(line_at(3, 1));
    REQUIRE_FALSE(blanked.ok());
    CHECK(contains(blanked.status().message(), "index 2"));
  }
  {
    CompletedLineMatcher matcher(lines);
    CHECK(contains(matcher.check_end().message(), "the input is empty"));
    CHECK(matcher.is_done(line_at(0, 7)).ok());
    CHECK(matcher.is_done(line_at(2, 7)).ok());
    CHECK(contains(matcher.check_end().message(), "in.jsonl:3: the input ends here"));
    CHECK(contains(matcher.check_end().message(), "index 5"));
    CHECK(matcher.is_done(line_at(5, 7)).ok());
    CHECK(matcher.check_end().ok());
  }
  const CompletedLines none;
  CHECK(CompletedLineMatcher(none).check_end().ok());
}

}  // namespace llmb
