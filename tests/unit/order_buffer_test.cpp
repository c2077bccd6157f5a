#include "io/order_buffer.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "base/check.h"

namespace llmb {

TEST_CASE("records come out in the order of expect, whatever the order of put") {
  std::mt19937 random(1);
  for (int round = 0; round < 200; ++round) {
    const int window = 1 + static_cast<int>(random() % 8);
    OrderBuffer buffer(window);
    std::vector<int64_t> in_flight;
    std::string out, expected;
    int64_t index = 0;
    for (int line = 0; line < 40 || !in_flight.empty();) {
      if (line < 40 && buffer.has_room() && random() % 2 == 0) {
        index += 1 + random() % 3;  // blank lines between
        buffer.expect(index);
        in_flight.push_back(index);
        expected += std::to_string(index) + "\n";
        ++line;
      } else if (!in_flight.empty()) {
        std::swap(in_flight[random() % in_flight.size()], in_flight.back());
        buffer.put(in_flight.back(), std::to_string(in_flight.back()) + "\n", out);
        in_flight.pop_back();
      }
      CHECK(buffer.size() <= static_cast<size_t>(window));
      CHECK(expected.substr(0, out.size()) == out);
    }
    CHECK(out == expected);
    CHECK(buffer.size() == 0);
  }
}

TEST_CASE("a record that is not expected, or put twice, and a full window are programmer errors") {
  OrderBuffer buffer(2);
  std::string out;
  buffer.expect(3);
  CHECK_THROWS_AS(buffer.expect(3), CheckFailure);
  CHECK_THROWS_AS(buffer.put(2, "x", out), CheckFailure);
  buffer.expect(5);
  CHECK(!buffer.has_room());
  CHECK_THROWS_AS(buffer.expect(6), CheckFailure);
  buffer.put(5, "x", out);
  CHECK(out.empty());
  CHECK_THROWS_AS(buffer.put(5, "x", out), CheckFailure);
}

}  // namespace llmb
