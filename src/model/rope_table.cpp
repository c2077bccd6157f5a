#include "model/rope_table.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace llmb {

namespace {

double llama3_frequency(double frequency, const RopeScaling& s) {
  // How many turns the channel makes over the original context.
  const double turns = s.original_max_position_embeddings * frequency / (2 * std::numbers::pi);
  if (turns < s.low_freq_factor) return frequency / s.factor;
  if (turns >= s.high_freq_factor) return frequency;
  const double blend = (turns - s.low_freq_factor) / (s.high_freq_factor - s.low_freq_factor);
  return (1 - blend) * frequency / s.factor + blend * frequency;
}

// The channel that makes `turns` turns over the original context, as a real number.
double yarn_channel(double turns, const RopeConfig& rope, int32_t rotary_dim) {
  return rotary_dim * std::log(rope.scaling.original_max_position_embeddings / (turns * 2 * std::numbers::pi)) /
         (2 * std::log(rope.theta));
}

double yarn_frequency(double frequency, int32_t channel, const RopeConfig& rope, int32_t rotary_dim) {
  const RopeScaling& s = rope.scaling;
  double low = yarn_channel(s.beta_fast, rope, rotary_dim), high = yarn_channel(s.beta_slow, rope, rotary_dim);
  if (s.truncate) low = std::floor(low), high = std::ceil(high);
  low = std::max(low, 0.0), high = std::min(high, rotary_dim - 1.0);
  if (low == high) high += 0.001;
  const double stretched = std::clamp((channel - low) / (high - low), 0.0, 1.0);
  return frequency / s.factor * stretched + frequency * (1 - stretched);
}

// The theta that a sequence of `length` positions is turned by.
double dynamic_theta(const RopeConfig& rope, int32_t rotary_dim, int32_t length) {
  const RopeScaling& s = rope.scaling;
  const double over = s.factor * length / s.original_max_position_embeddings - (s.factor - 1);
  return rope.theta * std::pow(over, rotary_dim / (rotary_dim - 2.0));
}

std::vector<double> make_frequencies(const RopeConfig& rope, int32_t rotary_dim, double theta, int32_t max_position) {
  const RopeScaling& s = rope.scaling;
  std::vector<double> frequencies(rotary_dim / 2);
  for (int32_t i = 0; i < rotary_dim / 2; ++i) {
    double& f = frequencies[i] = std::pow(theta, -2.0 * i / rotary_dim);
    switch (s.kind) {
      case RopeScalingKind::kNone:
      case RopeScalingKind::kDynamic:
        break;
      case RopeScalingKind::kLinear:
        f /= s.factor;
        break;
      case RopeScalingKind::kLlama3:
        f = llama3_frequency(f, s);
        break;
      case RopeScalingKind::kYarn:
        f = yarn_frequency(f, i, rope, rotary_dim);
        break;
      case RopeScalingKind::kProportional:
        f = i < std::floor(s.rotated_share * rotary_dim / 2) ? f / s.factor : 0;
        break;
      case RopeScalingKind::kLongRope:
        f /= (max_position > s.original_max_position_embeddings ? s.long_factor : s.short_factor)[i];
        break;
    }
  }
  return frequencies;
}

}  // namespace

RopeTable make_rope_table(const RopeConfig& rope, int32_t rotary_dim, int32_t max_position) {
  const RopeScaling& s = rope.scaling;
  std::vector<double> frequencies = make_frequencies(rope, rotary_dim, rope.theta, max_position);
  RopeTable table;
  table.cos.reserve(int64_t{max_position} * (rotary_dim / 2));
  table.sin.reserve(int64_t{max_position} * (rotary_dim / 2));
  for (int32_t position = 0; position < max_position; ++position) {
    if (s.kind == RopeScalingKind::kDynamic && position >= s.original_max_position_embeddings)
      frequencies = make_frequencies(rope, rotary_dim, dynamic_theta(rope, rotary_dim, position + 1), max_position);
    for (const double frequency : frequencies) {
      table.cos.push_back(static_cast<float>(s.attention_factor * std::cos(position * frequency)));
      table.sin.push_back(static_cast<float>(s.attention_factor * std::sin(position * frequency)));
    }
  }
  return table;
}

}  // namespace llmb
