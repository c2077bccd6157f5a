#include "tests/support/compare.h"

#include <cmath>
#include <vector>

namespace llmb::test {

std::string compare(std::span<const float> actual, std::span<const double> expected, double rtol, double atol) {
  if (actual.size() != expected.size())
    return "sizes differ: " + std::to_string(actual.size()) + " and " + std::to_string(expected.size());
  for (size_t i = 0; i < actual.size(); ++i) {
    const double err = std::fabs(double{actual[i]} - expected[i]);
    if (!(err <= atol + rtol * std::fabs(expected[i])))
      return "[" + std::to_string(i) + "] is " + std::to_string(actual[i]) + ", expected " +
             std::to_string(expected[i]) + ", error " + std::to_string(err);
  }
  return "";
}

std::string compare(std::span<const float> actual, std::span<const float> expected, double rtol, double atol) {
  return compare(actual, std::vector<double>(expected.begin(), expected.end()), rtol, atol);
}

double relative_error(std::span<const float> actual, std::span<const double> expected) {
  if (actual.size() != expected.size()) return std::nan("");
  double error = 0, norm = 0;
  for (size_t i = 0; i < actual.size(); ++i) {
    error += (actual[i] - expected[i]) * (actual[i] - expected[i]);
    norm += expected[i] * expected[i];
  }
  return norm > 0 ? std::sqrt(error / norm) : std::sqrt(error);
}

}  // namespace llmb::test
