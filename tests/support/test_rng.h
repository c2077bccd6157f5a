// A small generator for tests: splitmix64. The same numbers on every machine.
#pragma once

#include <cstdint>

namespace llmb::test {

class TestRng {
 public:
  explicit TestRng(uint64_t seed) : state_(seed) {}
  uint64_t next();
  int32_t between(int32_t low, int32_t high);      // uniform, both ends included
  int32_t log_between(int32_t low, int32_t high);  // uniform in the logarithm; low >= 1
  bool chance(double probability);

 private:
  uint64_t state_;
};

}  // namespace llmb::test
