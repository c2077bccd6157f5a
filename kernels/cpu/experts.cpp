// Pairs of (row, expert) are sorted by expert; the rows of one expert lie together, so that its matrices are read once
// for all of them. The products of all experts are one group of tasks.
#include "kernels/cpu/experts.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/check.h"
#include "kernels/cpu/activation.h"
#include "kernels/cpu/row_chunks.h"

namespace llmb::cpu {

namespace {

constexpr int64_t kScratchBytes = int64_t{64} << 20;  // about; rows beyond it go in a further turn

struct Batch {
  std::span<const ExpertView> experts;
  const ExpertsConfig& config;
  const ActivationSpec& spec;
  int64_t rows, hidden;

  int64_t num_pairs() const { return rows * config.top_k; }
};

// Chooses a row's experts, ascending, and their weights.
void route(const float* logits, const ExpertsConfig& config, int32_t* chosen, float* weights) {
  std::vector<int32_t> order(config.num_experts);
  std::iota(order.begin(), order.end(), 0);
  // NaN ranks as the largest, so that it is chosen and its row becomes NaN.
  const auto before = [logits](int32_t a, int32_t b) {
    const bool a_nan = std::isnan(logits[a]), b_nan = std::isnan(logits[b]);
    if (a_nan != b_nan) return a_nan;
    if (!a_nan && logits[a] != logits[b]) return logits[a] > logits[b];
    return a < b;
  };
  std::partial_sort(order.begin(), order.begin() + config.top_k, order.end(), before);
  const float max = logits[order[0]];
  double total = 0;
  const auto share = [&](int32_t expert) { return std::exp(static_cast<double>(logits[expert] - max)); };
  if (config.norm_topk_prob) {
    for (int32_t i = 0; i < config.top_k; ++i) total += share(order[i]);
  } else {
    for (int32_t e = 0; e < config.num_experts; ++e) total += share(e);
  }
  std::sort(order.begin(), order.begin() + config.top_k);
  for (int32_t i = 0; i < config.top_k; ++i) {
    chosen[i] = order[i];
    weights[i] = static_cast<float>(share(order[i]) / total);
  }
}

// Where each expert's pairs begin; fills scratch's slots.
std::vector<int64_t> sort_pairs(const Batch& b, ExpertsScratch* s) {
  std::vector<int64_t> start(b.config.num_experts + 1);
  for (int64_t pair = 0; pair < b.num_pairs(); ++pair) ++start[s->chosen[pair] + 1];
  std::partial_sum(start.begin(), start.end(), start.begin());
  std::vector<int64_t> next(start.begin(), start.end() - 1);
  for (int64_t pair = 0; pair < b.num_pairs(); ++pair) s->slots[pair] = static_cast<int32_t>(next[s->chosen[pair]]++);
  return start;
}

// The pairs' rows through one of the matrices of their experts.
void run_group(const Batch& b, const std::vector<int64_t>& start, const PackedLinear* ExpertView::*matrix,
               const std::vector<float>& x, std::vector<float>* y, ThreadPool& pool) {
  std::vector<LinearCall> calls;
  for (int32_t e = 0; e < b.config.num_experts; ++e) {
    const int64_t rows = start[e + 1] - start[e];
    const PackedLinear* weight = b.experts[e].*matrix;
    if (rows > 0)
      calls.push_back(
          {weight, x.data() + start[e] * weight->in_features(), rows, y->data() + start[e] * weight->out_features()});
  }
  linear_group(calls, pool);
}

template <typename T>
void grow(std::vector<T>* v, int64_t size) {
  if (static_cast<int64_t>(v->size()) < size) v->resize(static_cast<size_t>(size));
}

void mix(const Batch& b, const float* logits, const float* x, float* out, ExpertsScratch* s, ThreadPool& pool) {
  const int64_t top_k = b.config.top_k, hidden = b.hidden, pairs = b.num_pairs();
  const int64_t wide = b.experts[0].gate_up->out_features(), intermediate = b.experts[0].down->in_features();
  grow(&s->chosen, pairs), grow(&s->weights, pairs), grow(&s->slots, pairs);
  grow(&s->x, pairs * hidden), grow(&s->gate_up, pairs * wide);
  grow(&s->activated, pairs * intermediate), grow(&s->y, pairs * hidden);
  for_each_row(pool, b.rows, b.config.num_experts, [&](int64_t row, int) {
    route(logits + row * b.config.num_experts, b.config, &s->chosen[row * top_k], &s->weights[row * top_k]);
  });
  const std::vector<int64_t> start = sort_pairs(b, s);
  for_each_row(pool, b.rows, top_k * hidden, [&](int64_t row, int) {
    for (int64_t k = 0; k < top_k; ++k)
      std::copy_n(x + row * hidden, hidden, s->x.data() + int64_t{s->slots[row * top_k + k]} * hidden);
  });
  run_group(b, start, &ExpertView::gate_up, s->x, &s->gate_up, pool);
  activate(b.spec, s->gate_up.data(), pairs, intermediate, s->activated.data(), pool);
  run_group(b, start, &ExpertView::down, s->activated, &s->y, pool);
  for_each_row(pool, b.rows, top_k * hidden, [&](int64_t row, int) {
    float* to = out + row * hidden;
    std::fill_n(to, hidden, 0.0f);
    for (int64_t k = 0; k < top_k; ++k) {
      const float weight = s->weights[row * top_k + k];
      const float* from = s->y.data() + int64_t{s->slots[row * top_k + k]} * hidden;
      for (int64_t i = 0; i < hidden; ++i) to[i] += weight * from[i];
    }
  });
}

}  // namespace

void mix_experts(std::span<const ExpertView> experts, const ExpertsConfig& config, const ActivationSpec& spec,
                 const float* router_logits, const float* x, int64_t rows, int64_t hidden, float* out,
                 ExpertsScratch* scratch, ThreadPool& pool) {
  LLMB_CHECK(static_cast<int32_t>(experts.size()) == config.num_experts && config.top_k <= config.num_experts);
  const int64_t floats_per_row =
      config.top_k * (2 * hidden + experts[0].gate_up->out_features() + experts[0].down->in_features());
  const int64_t turn = std::max<int64_t>(32, kScratchBytes / (floats_per_row * int64_t{sizeof(float)}));
  for (int64_t first = 0; first < rows; first += turn)
    mix({experts, config, spec, std::min(turn, rows - first), hidden}, router_logits + first * config.num_experts,
        x + first * hidden, out + first * hidden, scratch, pool);
}

}  // namespace llmb::cpu
