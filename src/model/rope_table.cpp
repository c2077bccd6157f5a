#include "model/rope_table.h"

#include <cmath>
#include <numbers>

namespace llmb {

namespace {

double scaled_frequency(double frequency, const RopeScaling& s) {
  switch (s.kind) {
    case RopeScalingKind::kNone:
      return frequency;
    case RopeScalingKind::kLinear:
      return frequency / s.factor;
    case RopeScalingKind::kLlama3:
      break;
  }
  // How many turns the channel makes over the original context.
  const double turns = s.original_max_position_embeddings * frequency / (2 * std::numbers::pi);
  if (turns < s.low_freq_factor) return frequency / s.factor;
  if (turns > s.high_freq_factor) return frequency;
  const double blend = (turns - s.low_freq_factor) / (s.high_freq_factor - s.low_freq_factor);
  return (1 - blend) * frequency / s.factor + blend * frequency;
}

}  // namespace

RopeTable make_rope_table(const ModelConfig& config, int32_t max_position) {
  const int32_t half = config.head_dim / 2;
  std::vector<double> frequencies(half);
  for (int32_t i = 0; i < half; ++i)
    frequencies[i] = scaled_frequency(std::pow(config.rope_theta, -2.0 * i / config.head_dim), config.rope_scaling);
  RopeTable table;
  table.cos.reserve(int64_t{max_position} * half);
  table.sin.reserve(int64_t{max_position} * half);
  for (int32_t position = 0; position < max_position; ++position)
    for (const double frequency : frequencies) {
      table.cos.push_back(static_cast<float>(std::cos(position * frequency)));
      table.sin.push_back(static_cast<float>(std::sin(position * frequency)));
    }
  return table;
}

}  // namespace llmb
