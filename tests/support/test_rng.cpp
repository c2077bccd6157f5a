#include "tests/support/test_rng.h"

#include <algorithm>
#include <cmath>

namespace llmb::test {

uint64_t TestRng::next() {
  state_ += 0x9E3779B97F4A7C15u;
  uint64_t x = state_;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

int32_t TestRng::between(int32_t low, int32_t high) {
  return low + static_cast<int32_t>(next() % (static_cast<uint64_t>(high - low) + 1));
}

int32_t TestRng::log_between(int32_t low, int32_t high) {
  const double u = static_cast<double>(next() >> 11) * 0x1.0p-53;
  return std::min(high, static_cast<int32_t>(low * std::pow((high + 1.0) / low, u)));
}

bool TestRng::chance(double probability) { return static_cast<double>(next() >> 11) * 0x1.0p-53 < probability; }

}  // namespace llmb::test
