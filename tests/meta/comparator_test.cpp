// The comparators that every numeric test relies on must be able to fail.
#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "tests/support/compare.h"

namespace llmb::test {

TEST_CASE("a comparator accepts what is equal and within tolerance") {
  CHECK(compare(std::vector<float>{1, 2}, std::vector<double>{1, 2}, 0, 0) == "");
  CHECK(compare(std::vector<float>{1.0f}, std::vector<double>{1.01}, 0.02, 0) == "");
  CHECK(compare(std::vector<float>{}, std::vector<double>{}, 0, 0) == "");
}

TEST_CASE("a comparator rejects errors, NaN on either side, infinities and different sizes") {
  const float nan = std::nanf("");
  const float inf = std::numeric_limits<float>::infinity();
  CHECK(compare(std::vector<float>{1.0f}, std::vector<double>{1.03}, 0.02, 0) != "");
  CHECK(compare(std::vector<float>{nan}, std::vector<double>{1}, 1e9, 1e9) != "");
  CHECK(compare(std::vector<float>{1}, std::vector<double>{nan}, 1e9, 1e9) != "");
  CHECK(compare(std::vector<float>{nan}, std::vector<double>{nan}, 1e9, 1e9) != "");
  CHECK(compare(std::vector<float>{inf}, std::vector<double>{1}, 1e9, 1e9) != "");
  CHECK(compare(std::vector<float>{inf}, std::vector<double>{inf}, 1, 1) != "");
  CHECK(compare(std::vector<float>{1}, std::vector<double>{1, 2}, 1, 1) != "");
  CHECK_FALSE(relative_error(std::vector<float>{nan}, std::vector<double>{1}) <= 1e9);
}

}  // namespace llmb::test
