// Inputs of update_states for one sequence, and what the rules make of them token by token in fp64.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "core/state_layout.h"
#include "tests/support/kernel_support.h"

namespace llmb::test {

struct StateInputs {
  StateLayout layout;
  int64_t num_tokens;
  std::vector<float> qkv, gates, log_a, dt_bias, skip;

  bool is_delta() const { return layout.config.kind == StateKind::kGatedDelta; }
};

inline StateInputs random_state_inputs(const StateConfig& config, int64_t num_tokens) {
  StateInputs in{{.config = config, .num_layers = 1, .num_slots = 1}, num_tokens, {}, {}, {}, {}, {}};
  in.qkv = random_normal(num_tokens * config.conv_channels(), 1);
  in.gates = random_normal(num_tokens * config.gates_size(), 2);
  in.skip = random_normal(config.num_value_heads, 5);
  in.log_a = random_normal(config.num_value_heads, 3, 0.5);
  in.dt_bias = random_normal(config.num_value_heads, 4);
  return in;
}

// x made as long as `factor` says.
inline std::vector<double> unit_vector(const float* x, int64_t n, double factor) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += double{x[i]} * x[i];
  std::vector<double> out(x, x + n);
  for (double& v : out) v *= factor / std::sqrt(sum + 1e-6);
  return out;
}

// [num_tokens, num_value_heads * value_dim]
inline std::vector<double> expected_states(const StateInputs& in) {
  const StateConfig& c = in.layout.config;
  const int64_t dk = c.key_dim, dv = c.value_dim, group = c.num_value_heads / c.num_key_heads;
  const bool is_delta = in.is_delta();
  std::vector<double> out(in.num_tokens * c.values_size());
  for (int64_t h = 0; h < c.num_value_heads; ++h) {
    std::vector<double> s(dk * dv);
    for (int64_t t = 0; t < in.num_tokens; ++t) {
      const float* const row = in.qkv.data() + t * c.conv_channels();
      const float *const q_row = row + h / group * dk, *const k_row = row + c.keys_size() + h / group * dk;
      const auto q = is_delta ? unit_vector(q_row, dk, 1 / std::sqrt(static_cast<double>(dk)))
                              : std::vector<double>(q_row, q_row + dk);
      const auto k = is_delta ? unit_vector(k_row, dk, 1) : std::vector<double>(k_row, k_row + dk);
      const float* const v = row + 2 * c.keys_size() + h * dv;
      const float* const gates = in.gates.data() + t * c.gates_size();
      const double input = double{gates[is_delta ? c.num_value_heads + h : h]} + in.dt_bias[h];
      const double step = std::log1p(std::exp(input));
      const double rate = is_delta ? 1 / (1 + std::exp(-double{gates[h]})) : step;
      const double decay = std::exp(-std::exp(double{in.log_a[h]}) * step);
      for (double& x : s) x *= decay;
      for (int64_t j = 0; j < dv; ++j) {
        double seen = 0, given = 0;
        for (int64_t d = 0; d < dk && is_delta; ++d) seen += s[d * dv + j] * k[d];
        const double u = rate * (v[j] - seen);
        for (int64_t d = 0; d < dk; ++d) given += (s[d * dv + j] += k[d] * u) * q[d];
        out[t * c.values_size() + h * dv + j] = is_delta ? given : given + double{in.skip[h]} * v[j];
      }
    }
  }
  return out;
}

}  // namespace llmb::test
