#include "tests/support/oracle.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace llmb::test {

Oracle::Row Oracle::linear(const std::string& name, const Row& x) const {
  const TestTensor& w = tensor(name + ".weight");
  const auto bias = tensors_.find(name + ".bias");
  Row out(w.shape[0]);
  for (size_t o = 0; o < out.size(); ++o) {
    for (size_t i = 0; i < x.size(); ++i) out[o] += w.values[o * x.size() + i] * x[i];
    if (bias != tensors_.end()) out[o] += bias->second.values[o];
  }
  return out;
}

Oracle::Row Oracle::rms_norm(const std::string& name, const Row& x) const {
  double mean_square = 0;
  for (const double v : x) mean_square += v * v / static_cast<double>(x.size());
  Row out(x.size());
  for (size_t i = 0; i < x.size(); ++i)
    out[i] = x[i] / std::sqrt(mean_square + config_.norm_eps) * tensor(name).values[i];
  return out;
}

// Llama 3.1's rule is stated in wavelengths.
double Oracle::frequency(int i) const {
  const RopeScaling& s = config_.ropes[0].scaling;
  const double f = 1 / std::pow(config_.ropes[0].theta, static_cast<double>(2 * i) / config_.head_dim);
  if (s.kind == RopeScalingKind::kNone) return f;
  if (s.kind == RopeScalingKind::kLinear) return f / s.factor;
  const double wavelength = 2 * std::numbers::pi / f;
  const double longest_kept = s.original_max_position_embeddings / s.high_freq_factor;
  const double shortest_stretched = s.original_max_position_embeddings / s.low_freq_factor;
  if (wavelength < longest_kept) return f;
  if (wavelength > shortest_stretched) return f / s.factor;
  const double smooth =
      (s.original_max_position_embeddings / wavelength - s.low_freq_factor) / (s.high_freq_factor - s.low_freq_factor);
  return (1 - smooth) * f / s.factor + smooth * f;
}

void Oracle::rotate(Row* heads, int num_heads, int position) const {
  const int d = config_.head_dim;
  for (int h = 0; h < num_heads; ++h)
    for (int i = 0; i < d / 2; ++i) {
      const double angle = position * frequency(i);
      double& a = (*heads)[h * d + i];
      double& b = (*heads)[h * d + i + d / 2];
      const double rotated = a * std::cos(angle) - b * std::sin(angle);
      b = b * std::cos(angle) + a * std::sin(angle);
      a = rotated;
    }
}

Oracle::Rows Oracle::attention(const std::string& prefix, const Rows& x) const {
  const int d = config_.head_dim, group = config_.num_attention_heads / config_.num_key_value_heads;
  Rows q, k, v, out;
  for (size_t t = 0; t < x.size(); ++t) {
    q.push_back(linear(prefix + "q_proj", x[t]));
    k.push_back(linear(prefix + "k_proj", x[t]));
    v.push_back(linear(prefix + "v_proj", x[t]));
    rotate(&q[t], config_.num_attention_heads, static_cast<int>(t));
    rotate(&k[t], config_.num_key_value_heads, static_cast<int>(t));
    Row mixed(q[t].size());
    for (int h = 0; h < config_.num_attention_heads; ++h) {
      const int kv = h / group * d;
      Row weight(t + 1);
      for (size_t s = 0; s <= t; ++s)
        for (int i = 0; i < d; ++i) weight[s] += q[t][h * d + i] * k[s][kv + i] / std::sqrt(static_cast<double>(d));
      const double top = *std::max_element(weight.begin(), weight.end());
      double sum = 0;
      for (double& w : weight) sum += w = std::exp(w - top);
      for (size_t s = 0; s <= t; ++s)
        for (int i = 0; i < d; ++i) mixed[h * d + i] += weight[s] / sum * v[s][kv + i];
    }
    out.push_back(linear(prefix + "o_proj", mixed));
  }
  return out;
}

Oracle::Row Oracle::mlp(const std::string& prefix, const Row& x) const {
  Row gate = linear(prefix + "gate_proj", x);
  const Row up = linear(prefix + "up_proj", x);
  for (size_t i = 0; i < gate.size(); ++i) gate[i] *= up[i] / (1 + std::exp(-gate[i]));
  return linear(prefix + "down_proj", gate);
}

std::vector<std::vector<double>> Oracle::log_probs(std::span<const TokenId> tokens) const {
  const TestTensor& table = tensor("model.embed_tokens.weight");
  Rows x;
  for (const TokenId token : tokens) {
    const auto row = table.values.begin() + static_cast<int64_t>(token) * config_.hidden_size;
    x.emplace_back(row, row + config_.hidden_size);
  }
  const auto add = [](Row* to, const Row& delta) {
    for (size_t i = 0; i < delta.size(); ++i) (*to)[i] += delta[i];
  };
  for (int layer = 0; layer < config_.num_hidden_layers; ++layer) {
    const std::string prefix = "model.layers." + std::to_string(layer) + ".";
    Rows normed;
    for (const Row& row : x) normed.push_back(rms_norm(prefix + "input_layernorm.weight", row));
    const Rows attended = attention(prefix + "self_attn.", normed);
    for (size_t t = 0; t < x.size(); ++t) {
      add(&x[t], attended[t]);
      add(&x[t], mlp(prefix + "mlp.", rms_norm(prefix + "post_attention_layernorm.weight", x[t])));
    }
  }
  for (Row& row : x) {
    row = linear(config_.tie_word_embeddings ? "model.embed_tokens" : "lm_head", rms_norm("model.norm.weight", row));
    const double top = *std::max_element(row.begin(), row.end());
    double sum = 0;
    for (const double logit : row) sum += std::exp(logit - top);
    for (double& logit : row) logit -= top + std::log(sum);
  }
  return x;
}

Oracle::Greedy Oracle::greedy(std::vector<TokenId> tokens, int num_tokens) const {
  Greedy out;
  for (int i = 0; i < num_tokens; ++i) {
    const Row row = log_probs(tokens).back();
    const auto best = std::max_element(row.begin(), row.end());
    out.tokens.push_back(static_cast<TokenId>(best - row.begin()));
    out.logprobs.push_back(*best);
    tokens.push_back(out.tokens.back());
  }
  return out;
}

}  // namespace llmb::test
