// Comparisons of floating-point arrays that reject NaN: accepted only where err <= tol holds.
#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace llmb::test {

// "" where |actual - expected| <= atol + rtol * |expected| for every element (both finite); otherwise what and where.
std::string compare(std::span<const float> actual, std::span<const double> expected, double rtol, double atol);
std::string compare(std::span<const float> actual, std::span<const float> expected, double rtol, double atol);

// ||actual - expected|| / ||expected||; NaN where anything is NaN.
double relative_error(std::span<const float> actual, std::span<const double> expected);

}  // namespace llmb::test
