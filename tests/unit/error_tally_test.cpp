// Why lines failed.
#include "job/error_tally.h"

#include <doctest/doctest.h>

namespace llmb::test {

TEST_CASE("each kind of error is told once, with its first line; all are counted") {
  std::vector<std::string> told;
  ErrorTally tally([&](const ErrorCount& error) { told.push_back(error.code + " at " + error.first_place); });
  CHECK(tally.only_code() == "");
  LineRef line;
  line.source = "in.jsonl";
  for (int i = 1; i <= 40; ++i) {
    line.line_number = i;
    tally.count(line, {"missing_field", "number " + std::to_string(i), std::nullopt});
  }
  CHECK(tally.only_code() == "missing_field");
  line.line_number = 41;
  tally.count(line, {"invalid_json", "byte 3", std::nullopt});
  CHECK(tally.only_code() == "");
  CHECK(told == std::vector<std::string>{"missing_field at in.jsonl:1", "invalid_json at in.jsonl:41"});
  const std::vector<ErrorCount> errors = tally.errors();
  REQUIRE(errors.size() == 2);
  CHECK(errors[0].count == 40);
  CHECK(errors[0].first_message == "number 1");
}

TEST_CASE("codes without end are counted up to a bound") {
  int num_told = 0;
  ErrorTally tally([&](const ErrorCount&) { ++num_told; });
  for (int i = 0; i < 1000; ++i) tally.count({}, {"code" + std::to_string(i), std::string(1 << 10, 'x'), std::nullopt});
  CHECK(num_told == ErrorTally::kMaxCodes);
  CHECK(tally.errors().size() == ErrorTally::kMaxCodes);
  CHECK(tally.errors().back().first_message.size() == 400);
}

}  // namespace llmb::test
