// A test case that cannot run here, for want of data or a device, says so by skip() and returns. run_tests() counts
// such cases: a program all of whose cases were skipped ends with 77, which CTest reports as skipped; one of which
// some were says how many.
#pragma once

#include <doctest/doctest.h>

#include <cstdio>
#include <set>
#include <string>

namespace llmb::test {

struct SkipCount {
  int num_cases = 0, num_skipped = 0;
  bool is_skipped = false;  // the case that runs
  std::set<std::string> reasons;
};

inline SkipCount& skip_count() {
  static SkipCount count;
  return count;
}

inline void skip(const std::string& reason) {
  MESSAGE("skipped: ", reason);
  skip_count().is_skipped = true;
  skip_count().reasons.insert(reason);
}

// Counts cases; prints nothing.
struct SkipListener : doctest::IReporter {
  explicit SkipListener(const doctest::ContextOptions&) {}
  void test_case_start(const doctest::TestCaseData&) override {
    ++skip_count().num_cases;
    skip_count().is_skipped = false;
  }
  void test_case_end(const doctest::CurrentTestCaseStats&) override {
    skip_count().num_skipped += skip_count().is_skipped;
  }
  void report_query(const doctest::QueryData&) override {}
  void test_run_start() override {}
  void test_run_end(const doctest::TestRunStats&) override {}
  void test_case_reenter(const doctest::TestCaseData&) override {}
  void test_case_exception(const doctest::TestCaseException&) override {}
  void subcase_start(const doctest::SubcaseSignature&) override {}
  void subcase_end() override {}
  void log_assert(const doctest::AssertData&) override {}
  void log_message(const doctest::MessageData&) override {}
  void test_case_skipped(const doctest::TestCaseData&) override {}
};

// main() of a test program.
inline int run_tests(int argc, char** argv) {
  const int result = doctest::Context(argc, argv).run();
  const SkipCount& count = skip_count();
  if (count.num_skipped == 0) return result;
  std::string reasons;
  for (const std::string& reason : count.reasons) reasons += (reasons.empty() ? "" : "; ") + reason;
  std::printf("skipped: %d of %d test cases: %s\n", count.num_skipped, count.num_cases, reasons.c_str());
  return result == 0 && count.num_skipped == count.num_cases ? 77 : result;
}

}  // namespace llmb::test
