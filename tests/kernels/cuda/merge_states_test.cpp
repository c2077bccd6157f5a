#include "kernels/cuda/merge_states.h"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "tests/support/device_array.h"
#include "tests/support/kernel_support.h"

namespace llmb::cuda {

using test::DeviceArray;
using test::random_normal;

namespace {

constexpr double kLog2e = 1.4426950408889634;

// Attention goes over these: each has a score, in units of log2, and a value.
struct Positions {
  std::vector<float> scores, values;  // [n], [n, value_dim]
};

// In fp64.
std::vector<float> state_of(const Positions& p, int32_t value_dim) {
  double max = -std::numeric_limits<double>::infinity(), sum = 0;
  for (const float score : p.scores) max = std::max(max, double{score});
  std::vector<double> values(static_cast<size_t>(value_dim), 0);
  for (size_t i = 0; i < p.scores.size(); ++i) {
    const double weight = std::exp2(p.scores[i] - max);
    sum += weight;
    for (size_t c = 0; c < values.size(); ++c) values[c] += weight * p.values[i * values.size() + c];
  }
  std::vector<float> state(values.begin(), values.end());
  state.push_back(p.scores.empty() ? -std::numeric_limits<float>::infinity() : static_cast<float>(max));
  state.push_back(static_cast<float>(sum));
  return state;
}

}  // namespace

TEST_CASE("states of pieces, then of parts, with and without a sink, make the result of all positions") {
  for (const int32_t value_dim : {1, 64, 127, 128, 130, 512})
    for (const bool has_sinks : {false, true}) {
      CAPTURE(value_dim);
      constexpr int32_t kHeads = 2, kRows = 4, kParts = 3, kPieces = 2;
      const std::vector<float> sinks = {0.5f, -30.0f};
      const auto dim = static_cast<size_t>(value_dim);
      std::vector<float> states, expected;
      std::vector<Positions> all(kRows);
      for (int32_t part = 0; part < kParts; ++part) {
        std::vector<float> partials, stats;
        std::vector<RowPieces> rows;
        for (int32_t row = 0; row < kRows; ++row) {
          // The first rows see little: one of the parts nothing, and one of its pieces nothing.
          const int32_t num_pieces = row == 0 && part == 1 ? 0 : kPieces;
          rows.push_back({static_cast<int32_t>(stats.size() / 2), num_pieces, 1});
          for (int32_t piece = 0; piece < num_pieces; ++piece) {
            const int32_t n = row == 1 && piece == 1 ? 0 : 3;
            const Positions p = {random_normal(n, 7 * part + 13 * row + piece),
                                 random_normal(n * value_dim, part + 5 * row + 11 * piece)};
            const std::vector<float> state = state_of(p, value_dim);
            partials.insert(partials.end(), state.begin(), state.end() - 2);
            stats.insert(stats.end(), state.end() - 2, state.end());
            all[row].scores.insert(all[row].scores.end(), p.scores.begin(), p.scores.end());
            all[row].values.insert(all[row].values.end(), p.values.begin(), p.values.end());
          }
        }
        const DeviceArray<RowPieces> of_rows(rows);
        const DeviceArray<float> values(partials), of_pieces(stats);
        DeviceArray<float> out(kRows * (dim + 2));
        join_pieces(of_rows.data(), values.data(), of_pieces.data(), kRows, value_dim, out.data(), nullptr);
        CHECK(out.check_guards());
        const std::vector<float> joined = out.download();
        states.insert(states.end(), joined.begin(), joined.end());
      }
      for (int32_t row = 0; row < kRows; ++row) {
        const std::vector<float> state = state_of(all[row], value_dim);
        const double sink = has_sinks ? std::exp2(sinks[row % kHeads] * kLog2e - state[dim]) : 0;
        for (size_t c = 0; c < dim; ++c) expected.push_back(static_cast<float>(state[c] / (state[dim + 1] + sink)));
      }
      const DeviceArray<float> in(states), of_heads(sinks);
      DeviceArray<float> out(expected.size());
      const float* const of_sinks = has_sinks ? of_heads.data() : nullptr;
      merge_states(in.data(), kParts, kRows, kHeads, value_dim, of_sinks, out.data(), nullptr);
      CHECK(out.check_guards());
      const std::vector<float> result = out.download();
      for (size_t i = 0; i < result.size(); ++i) REQUIRE(std::abs(result[i] - expected[i]) <= 2e-6f);
    }
}

}  // namespace llmb::cuda
