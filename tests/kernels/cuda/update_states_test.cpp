#include "kernels/cuda/update_states.h"

#include <doctest/doctest.h>

#include <cmath>
#include <string>
#include <vector>

#include "tests/support/compare.h"
#include "tests/support/device_states.h"
#include "tests/support/kernel_support.h"
#include "tests/support/state_inputs.h"

namespace llmb::cuda {
namespace {

using test::converted;
using test::DeviceArray;
using test::DeviceStates;
using test::DraftedStep;
using test::random_state_inputs;
using test::same_bytes;
using test::StateInputs;
using test::steps_of;

constexpr StateKind kDelta = StateKind::kGatedDelta, kMamba = StateKind::kMamba2;

// Device vectors of a layer.
struct Weights {
  explicit Weights(const StateInputs& in)
      : log_a(in.log_a), dt_bias(in.dt_bias), skip(in.skip), has_skip(!in.is_delta()) {}
  StateWeights of() { return {log_a.data(), dt_bias.data(), has_skip ? skip.data() : nullptr}; }

  DeviceArray<float> log_a, dt_bias, skip;
  bool has_skip;
};

// In these steps; rows of wrong drafts get other inputs.
template <class T>
std::vector<float> run(StateInputs in, const std::vector<DraftedStep>& steps, bool has_drafts = false,
                       bool one_at_a_time = false) {
  const StateConfig& c = in.layout.config;
  if (has_drafts) in.layout.max_drafts = kMaxStateDrafts;
  DeviceStates states(in.layout, 1);
  Weights weights(in);
  std::vector<float> out(static_cast<size_t>(in.num_tokens * c.values_size()));
  for (const DraftedStep& step : steps) {
    std::vector<float> qkv(in.qkv.begin() + step.position * c.conv_channels(),
                           in.qkv.begin() + (step.position + step.count()) * c.conv_channels());
    for (size_t i = step.num_good() * c.conv_channels(); i < qkv.size(); ++i) qkv[i] += 1;
    const DeviceArray<T> x(converted<T>(qkv));
    const DeviceArray<float> gates(
        std::vector<float>(in.gates.begin() + step.position * c.gates_size(),
                           in.gates.begin() + (step.position + step.count()) * c.gates_size()));
    DeviceArray<T> given(static_cast<size_t>(step.count() * c.values_size()));
    update_states(in.layout, 0, x.data(), gates.data(), weights.of(),
                  states.resolve(step.position, step.count(), step.num_drafts), 1, one_at_a_time ? 1 : step.count(),
                  given.data(), nullptr);
    const std::vector<float> rows = given.download_floats();
    CHECK(given.check_guards());
    CHECK(states.check_guards());
    std::copy_n(rows.begin(), step.num_good() * c.values_size(), out.begin() + step.position * c.values_size());
  }
  return out;
}

template <class T>
void check_against_fp64(const StateConfig& config, int32_t num_tokens) {
  CAPTURE(config.key_dim);
  CAPTURE(num_tokens);
  StateInputs in = random_state_inputs(config, num_tokens);
  for (float& x : in.qkv) x = to_float(from_float<T>(x));
  const std::vector<double> expected = test::expected_states(in);
  std::vector<float> rounded;
  for (const double x : expected) rounded.push_back(to_float(from_float<T>(static_cast<float>(x))));
  const double limit = 2 * test::relative_error(rounded, expected) + 2e-6;
  CHECK(test::relative_error(run<T>(in, steps_of(num_tokens, {1000})), expected) <= limit);
}

TEST_CASE("update_states is the rules computed token by token in fp64") {
  for (const StateConfig& config :
       {StateConfig{kDelta, 1, 1, 1, 1, 4}, StateConfig{kDelta, 2, 4, 12, 10, 4}, StateConfig{kDelta, 2, 2, 33, 80, 4},
        StateConfig{kDelta, 1, 2, 128, 128, 4}, StateConfig{kDelta, 1, 1, 200, 33, 4}, StateConfig{kMamba, 1, 1, 1, 1, 4},
        StateConfig{kMamba, 2, 4, 12, 10, 4}, StateConfig{kMamba, 1, 3, 128, 64, 4}, StateConfig{kMamba, 1, 2, 256, 31, 4}})
    for (const int32_t num_tokens : {1, 2, 15, 16, 17, 32, 33, 70}) {
      check_against_fp64<float>(config, num_tokens);
      if (num_tokens != 17) continue;
      check_against_fp64<__nv_bfloat16>(config, num_tokens);
      check_against_fp64<__half>(config, num_tokens);
    }
}

TEST_CASE("update_states gives the same bytes however steps cut a sequence") {
  for (const StateKind kind : {kDelta, kMamba}) {
    const StateInputs in = random_state_inputs({kind, 2, 4, 40, 40, 4}, 70);
    const std::vector<float> whole = run<__nv_bfloat16>(in, steps_of(70, {1000}));
    for (const std::vector<int32_t>& sizes :
         std::vector<std::vector<int32_t>>{{1}, {16}, {15, 2}, {17}, {3, 1, 40}, {5, 60}})
      CHECK(same_bytes(run<__nv_bfloat16>(in, steps_of(70, sizes)), whole));
  }
}

TEST_CASE("one token at a time gives the bytes of eight, whatever a sequence's rows are") {
  for (const StateKind kind : {kDelta, kMamba})
    for (const int32_t key_dim : {40, 100, 200}) {
      const StateInputs in = random_state_inputs({kind, 1, 2, key_dim, 40, 4}, 50);
      const std::vector<float> whole = run<float>(in, steps_of(50, {1000}));
      for (const std::vector<int32_t>& sizes : std::vector<std::vector<int32_t>>{{1000}, {1}, {9, 1, 30}})
        CHECK(same_bytes(run<float>(in, steps_of(50, sizes), false, true), whole));
    }
}

TEST_CASE("drafts leave the bytes as they are, right or wrong, also across the borders of chunks") {
  for (const StateKind kind : {kDelta, kMamba})
    for (const double right : {0.0, 0.7, 1.0})
      for (uint64_t seed = 1; seed <= 8; ++seed) {
        CAPTURE(right);
        CAPTURE(seed);
        const StateInputs in = random_state_inputs({kind, 1, 3, 12, 20, 4}, 90);
        const std::vector<float> whole = run<float>(in, steps_of(90, {1000}));
        CHECK(same_bytes(run<float>(in, test::drafted_steps(90, right, seed), true), whole));
      }
}

TEST_CASE("update_states keeps sequences apart, whatever stands between them, and layers too") {
  const StateConfig config = {kDelta, 1, 2, 8, 12, 4};
  StateInputs a = random_state_inputs(config, 20), b = a;
  a.layout.num_layers = b.layout.num_layers = 2;
  for (float& x : b.qkv) x = 1 - x;
  const std::vector<float> alone_a = run<float>(a, steps_of(20, {1000})), alone_b = run<float>(b, steps_of(20, {1000}));
  DeviceStates states(a.layout, 3);
  Weights weights(a);
  // The two take turns in a layer each; a's rows come first in one step and last in the next.
  std::vector<float> of_a, of_b;
  for (const int32_t position : {0, 9}) {
    const int32_t count = position == 0 ? 9 : 11, first_a = position == 0 ? 0 : count, first_b = count - first_a;
    std::vector<int32_t> positions;
    for (int32_t i = 0; i < 2 * count; ++i) positions.push_back(position + i % count);
    const StateEntry* const entries = states.resolve({{}, {first_a, count, 0, 2}, {}, {first_b, count, 0, 0}}, positions);
    for (int32_t layer = 0; layer < 2; ++layer) {
      const StateInputs& one = layer == 0 ? a : b;
      const StateInputs& other = layer == 0 ? b : a;
      const auto rows_of = [&](const std::vector<float>& of_one, const std::vector<float>& of_other, int64_t width) {
        std::vector<float> rows(static_cast<size_t>(2 * count * width));
        std::copy_n(of_one.begin() + position * width, count * width, rows.begin() + first_a * width);
        std::copy_n(of_other.begin() + position * width, count * width, rows.begin() + first_b * width);
        return rows;
      };
      const DeviceArray<float> qkv(rows_of(one.qkv, other.qkv, config.conv_channels()));
      const DeviceArray<float> gates(rows_of(one.gates, other.gates, config.gates_size()));
      DeviceArray<float> out(static_cast<size_t>(2 * count * config.values_size()));
      update_states(a.layout, layer, qkv.data(), gates.data(), weights.of(), entries, 4, 2 * count, out.data(), nullptr);
      const std::vector<float> rows = out.download();
      const auto from = rows.begin() + (layer == 0 ? first_a : first_b) * config.values_size();
      of_a.insert(of_a.end(), from, from + count * config.values_size());
      const auto from_b = rows.begin() + (layer == 0 ? first_b : first_a) * config.values_size();
      of_b.insert(of_b.end(), from_b, from_b + count * config.values_size());
    }
  }
  const auto check_layers = [&](const std::vector<float>& both, const std::vector<float>& alone) {
    const size_t first = 9 * config.values_size(), second = 11 * config.values_size();
    for (size_t layer = 0; layer < 2; ++layer) {
      CHECK(same_bytes(std::span(both).subspan(layer * first, first), std::span(alone).first(first)));
      CHECK(same_bytes(std::span(both).subspan(2 * first + layer * second, second), std::span(alone).subspan(first)));
    }
  };
  check_layers(of_a, alone_a);
  check_layers(of_b, alone_b);
}

TEST_CASE("resolve_states says where each sequence goes on and forgets a slot's earlier one") {
  const StateLayout layout{.config = {kDelta, 1, 1, 4, 4, 4}, .num_layers = 1, .num_slots = 2};
  DeviceStates states(layout, 2);
  struct Step {
    int32_t position, count, num_drafts, border, next_border;
  };
  for (const Step& step : {Step{0, 1, 0, 0, 0}, Step{1, 15, 0, 0, 0}, Step{16, 1, 0, 0, 16}, Step{17, 23, 8, 16, 32},
                           Step{35, 1, 0, 32, 32}, Step{0, 40, 0, 0, 32}, Step{40, 12, 4, 32, 48}}) {
    const StateEntry* const on_device = states.resolve(step.position, step.count, step.num_drafts);
    StateEntry entry;
    check(cudaMemcpy(&entry, on_device, sizeof entry, cudaMemcpyDeviceToHost), "cudaMemcpy");
    CHECK(entry.first_position == step.position);
    CHECK(entry.border == step.border);
    CHECK(entry.next_border == step.next_border);
  }
}

}  // namespace
}  // namespace llmb::cuda
