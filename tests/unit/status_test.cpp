// Results and the two macros that hand errors on.
#include "base/status.h"

#include <doctest/doctest.h>

#include <map>
#include <memory>

namespace llmb {

namespace {

Result<int> positive(int value, int* num_calls) {
  ++*num_calls;
  if (value > 0) return value;
  return invalid_argument(std::to_string(value) + " is not positive");
}

Result<std::unique_ptr<int>> on_heap(int value) { return std::make_unique<int>(value); }

template <typename A, typename B>
Result<std::map<A, B>> map_of(A a, B b) {
  return std::map<A, B>{{a, b}};
}

Result<int> sum(int a, int b, int* num_calls) {
  LLMB_ASSIGN_OR_RETURN(const int first, positive(a, num_calls));
  int second = 0;
  LLMB_ASSIGN_OR_RETURN(second, positive(b, num_calls));
  if (first > 100) {
    LLMB_ASSIGN_OR_RETURN(second, positive(second - 100, num_calls));
  }
  return first + second;
}

Status check_all(std::unique_ptr<int>* out) {
  LLMB_ASSIGN_OR_RETURN(*out, on_heap(7));
  LLMB_ASSIGN_OR_RETURN(const auto map, map_of<int, int>(1, 2));
  LLMB_RETURN_IF_ERROR(map.at(1) == 2 ? Status() : internal_error("another value"));
  return not_found("the end");
}

}  // namespace

TEST_CASE("LLMB_ASSIGN_OR_RETURN declares or assigns the value, or returns the first error and goes no further") {
  int num_calls = 0;
  CHECK(sum(3, 4, &num_calls).value() == 7);
  CHECK(num_calls == 2);
  CHECK(sum(101, 104, &num_calls).value() == 105);
  num_calls = 0;
  const Result<int> first = sum(-3, -4, &num_calls);
  REQUIRE_FALSE(first.ok());
  CHECK(first.status().code() == StatusCode::kInvalidArgument);
  CHECK(first.status().message() == "-3 is not positive");
  CHECK(num_calls == 1);
  CHECK(sum(3, -4, &num_calls).status().message() == "-4 is not positive");
  CHECK(sum(101, 100, &num_calls).status().message() == "0 is not positive");
}

TEST_CASE("values move, expressions may hold commas, and a function that returns a Status hands errors on as well") {
  std::unique_ptr<int> value;
  CHECK(check_all(&value).message() == "the end");
  REQUIRE(value != nullptr);
  CHECK(*value == 7);
}

TEST_CASE("a Result without a value says why where it is asked for one, and takes no Status that is ok") {
  const Result<int> none = not_found("nothing here");
  CHECK_THROWS_WITH_AS(none.value(), doctest::Contains("nothing here"), CheckFailure);
  CHECK_THROWS_AS(Result<int>{Status()}, CheckFailure);
  CHECK(not_found("a.json").with_context("model").message() == "model: a.json");
  CHECK(Status().with_context("model").ok());
}

}  // namespace llmb
