// Cores are divided by sockets first, and no processor is left out or in two parts where there are enough.
#include "base/core_parts.h"

#include <doctest/doctest.h>

#include <algorithm>

namespace llmb::test {

namespace {

using Parts = std::vector<std::vector<int>>;

}  // namespace

TEST_CASE("two sockets, two parts: a socket each, whatever their processors' numbers") {
  std::vector<LogicalCpu> cpus;
  for (int i = 0; i < 8; ++i) cpus.push_back({i, i % 2, i % 2, i / 2});
  CHECK(divide_cores(cpus, 2) == Parts{{0, 2, 4, 6}, {1, 3, 5, 7}});
  CHECK(divide_cores(cpus, 4) == Parts{{0, 2}, {4, 6}, {1, 3}, {5, 7}});
}

TEST_CASE("both processors of a core stay together, where there are enough cores") {
  const std::vector<LogicalCpu> cpus = {{0, 0, 0, 0}, {1, 0, 0, 1}, {2, 0, 0, 2},
                                        {3, 0, 0, 0}, {4, 0, 0, 1}, {5, 0, 0, 2}};
  CHECK(divide_cores(cpus, 1) == Parts{{0, 3, 1, 4, 2, 5}});
  CHECK(divide_cores(cpus, 2) == Parts{{0, 3}, {1, 4, 2, 5}});
  CHECK(divide_cores(cpus, 3) == Parts{{0, 3}, {1, 4}, {2, 5}});
  CHECK(divide_cores(cpus, 4) == Parts{{0}, {3, 1}, {4}, {2, 5}});
}

TEST_CASE("more parts than processors: each has one") {
  const std::vector<LogicalCpu> cpus = {{4, 0, 0, 0}, {5, 0, 0, 1}};
  CHECK(divide_cores(cpus, 3) == Parts{{4}, {4}, {5}});
  CHECK(divide_cores({}, 2) == Parts{{}, {}});
}

TEST_CASE("this machine's processors are found, and each is in one part") {
  const std::vector<LogicalCpu> cpus = usable_cpus();
  REQUIRE(!cpus.empty());
  std::vector<int> numbers, divided;
  for (const LogicalCpu& cpu : cpus) numbers.push_back(cpu.number);
  for (const auto& part : divide_cores(cpus, std::min<int>(2, static_cast<int>(cpus.size()))))
    divided.insert(divided.end(), part.begin(), part.end());
  std::sort(divided.begin(), divided.end());
  CHECK(divided == numbers);
  CHECK_FALSE(run_on({}));
}

}  // namespace llmb::test
