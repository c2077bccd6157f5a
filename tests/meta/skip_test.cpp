// How skipped cases end a test program: this one runs itself on cases that it leaves out otherwise.
#include "tests/support/skip.h"

#include "tests/support/process.h"

namespace llmb::test {

namespace {

ProcessResult run_cases(const std::string& pattern) {
  return run_process({"/proc/self/exe", "--no-skip", "--test-case=" + pattern});
}

}  // namespace

TEST_CASE("child: skips" * doctest::skip()) { skip("no reason"); }
TEST_CASE("child: skips in one of two subcases" * doctest::skip()) {
  SUBCASE("one") { skip("another reason"); }
  SUBCASE("two") {}
}
TEST_CASE("child: runs" * doctest::skip()) { CHECK(1 + 1 == 2); }
TEST_CASE("child: fails" * doctest::skip()) { CHECK(1 + 1 == 3); }

TEST_CASE("a program that skipped everything ends with 77, and one that skipped some says how many") {
  const ProcessResult all = run_cases("child: skips*");
  CHECK(all.exit_code == 77);
  CHECK(all.out.find("\nskipped: 2 of 2 test cases: another reason; no reason\n") != std::string::npos);
  const ProcessResult some = run_cases("child: skips,child: runs");
  CHECK(some.exit_code == 0);
  CHECK(some.out.find("\nskipped: 1 of 2 test cases: no reason\n") != std::string::npos);
  const ProcessResult none = run_cases("child: runs");
  CHECK(none.exit_code == 0);
  CHECK(none.out.find("skipped: ") == std::string::npos);
}

TEST_CASE("a failure is a failure, whatever else was skipped") {
  CHECK(run_cases("child: skips,child: fails").exit_code == 1);
  CHECK(run_cases("child: fails").exit_code == 1);
}

}  // namespace llmb::test
