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
  const ExpertAdapters* adapters;  // null: no row has one
  int64_t first_row;               // of its rows

  int64_t num_pairs() const { return rows * config.top_k; }
  bool has(int32_t expert) const { return experts[expert].gate_up != nullptr; }
};

// The first that is there.
const ExpertView& any_of(std::span<const ExpertView> experts) {
  return *std::find_if(experts.begin(), experts.end(), [](const ExpertView& e) { return e.gate_up != nullptr; });
}

// Whether number a goes before number b of `values`. NaN goes before all, so that it is chosen and its row becomes NaN.
struct Before {
  const float* values;
  bool operator()(int32_t a, int32_t b) const {
    const bool a_nan = std::isnan(values[a]), b_nan = std::isnan(values[b]);
    if (a_nan != b_nan) return a_nan;
    if (!a_nan && values[a] != values[b]) return values[a] > values[b];
    return a < b;
  }
};

// The first `count` of values' indices in order.
std::vector<int32_t> best_of(std::span<const float> values, int32_t count) {
  std::vector<int32_t> order(values.size());
  std::iota(order.begin(), order.end(), 0);
  std::partial_sort(order.begin(), order.begin() + count, order.end(), Before{values.data()});
  order.resize(static_cast<size_t>(count));
  return order;
}

// Takes experts of all but the best groups out of the choice.
void keep_best_groups(const ExpertsConfig& config, std::vector<float>* choice) {
  const size_t groups = static_cast<size_t>(config.num_groups), size = choice->size() / groups;
  std::vector<float> scores(groups);
  for (size_t g = 0; g < groups; ++g) {
    const std::span<const float> group(choice->data() + g * size, size);
    for (const int32_t e : best_of(group, std::min(config.scores_of_group, static_cast<int32_t>(size))))
      scores[g] += group[e];
  }
  std::vector<bool> is_kept(groups);
  for (const int32_t g : best_of(scores, config.top_groups)) is_kept[static_cast<size_t>(g)] = true;
  for (size_t e = 0; e < choice->size(); ++e)
    if (!is_kept[e / size]) (*choice)[e] = -INFINITY;
}

// Chooses a row's experts, ascending, and their weights.
void route(const float* logits, const float* choice_bias, const float* scales, const ExpertsConfig& config,
           int32_t* chosen, float* weights) {
  const int32_t count = config.num_experts;
  const bool is_softmax = config.scores == ExpertScores::kSoftmax;
  const float max = *std::max_element(logits, logits + count);
  const auto score = [&](int32_t e) {  // but for softmax's divisor
    if (is_softmax) return std::exp(static_cast<double>(logits[e] - max));
    return 1 / (1 + std::exp(-static_cast<double>(logits[e])));
  };
  double all = 1;
  if (is_softmax && (choice_bias != nullptr || !config.norm_topk_prob || config.num_groups > 1)) {
    all = 0;
    for (int32_t e = 0; e < count; ++e) all += score(e);
  }
  std::vector<float> choice(logits, logits + count);  // softmax keeps their order
  if (choice_bias != nullptr || config.num_groups > 1)
    for (int32_t e = 0; e < count; ++e)
      choice[e] = static_cast<float>(score(e) / all) + (choice_bias != nullptr ? choice_bias[e] : 0);
  if (config.num_groups > 1) keep_best_groups(config, &choice);
  std::vector<int32_t> order = best_of(choice, config.top_k);
  double total = all;
  if (config.norm_topk_prob) {
    total = 0;
    for (const int32_t e : order) total += score(e);
  }
  std::sort(order.begin(), order.end());
  for (int32_t i = 0; i < config.top_k; ++i) {
    chosen[i] = order[i];
    weights[i] = static_cast<float>(score(order[i]) / total * config.weight_scale);
    if (scales != nullptr) weights[i] *= scales[order[i]];
  }
}

// Where each expert's pairs begin, and their number; fills scratch's slots.
std::vector<int64_t> sort_pairs(const Batch& b, ExpertsScratch* s) {
  std::vector<int64_t> start(b.config.num_experts + 1);
  for (int64_t pair = 0; pair < b.num_pairs(); ++pair) start[s->chosen[pair] + 1] += b.has(s->chosen[pair]);
  std::partial_sum(start.begin(), start.end(), start.begin());
  std::vector<int64_t> next(start.begin(), start.end() - 1);
  for (int64_t pair = 0; pair < b.num_pairs(); ++pair)
    s->slots[pair] = b.has(s->chosen[pair]) ? static_cast<int32_t>(next[s->chosen[pair]]++) : -1;
  return start;
}

// Each slot's adapter; and adapted_slots, those of an expert that have one adapter beside each other.
void place_adapters(const Batch& b, const std::vector<int64_t>& start, ExpertsScratch* s) {
  s->adapter_of_slot.assign(static_cast<size_t>(start.back()), -1);
  for (int64_t pair = 0; pair < b.num_pairs(); ++pair)
    if (s->slots[pair] >= 0) s->adapter_of_slot[s->slots[pair]] = b.adapters->adapter_of_row[b.first_row + pair / b.config.top_k];
  s->adapted_slots.clear();
  for (int32_t e = 0; e < b.config.num_experts; ++e) {
    const auto first = static_cast<std::ptrdiff_t>(s->adapted_slots.size());
    for (int64_t slot = start[e]; slot < start[e + 1]; ++slot)
      if (s->adapter_of_slot[slot] >= 0) s->adapted_slots.push_back(static_cast<int32_t>(slot));
    std::stable_sort(s->adapted_slots.begin() + first, s->adapted_slots.end(),
                     [&](int32_t a, int32_t c) { return s->adapter_of_slot[a] < s->adapter_of_slot[c]; });
  }
}

// Begins a product of all slots: what adapters add to it. Null: nothing.
const LoraWork* shrink(const Batch& b, const std::vector<int64_t>& start, const ExpertAdapters::Matrices& matrices,
                       const float* x, int64_t in_features, ExpertsScratch* s, ThreadPool& pool) {
  s->lora.segments.clear();
  s->lora.row_ids = s->adapted_slots.data();
  const auto end = static_cast<int32_t>(s->adapted_slots.size());
  int32_t expert = 0;
  for (int32_t i = 0, next; i < end; i = next) {
    const int32_t slot = s->adapted_slots[i], adapter = s->adapter_of_slot[slot];
    while (slot >= start[expert + 1]) ++expert;
    next = i + 1;
    while (next < end && s->adapted_slots[next] < start[expert + 1] &&
           s->adapter_of_slot[s->adapted_slots[next]] == adapter)
      ++next;
    const auto of_segment = matrices[static_cast<size_t>(adapter) * b.experts.size() + expert];
    if (!of_segment.empty()) s->lora.segments.push_back({of_segment, i, next});
  }
  if (s->lora.segments.empty()) return nullptr;
  lora_shrink(x, in_features, &s->lora, pool);
  return &s->lora;
}

// The pairs' rows through one of the matrices of their experts. added: what adapters have for it; null: no row has one.
void run_group(const Batch& b, const std::vector<int64_t>& start, const PackedLinear* ExpertView::*matrix,
               const ExpertAdapters::Matrices* added, const std::vector<float>& x, std::vector<float>* y,
               ExpertsScratch* s, ThreadPool& pool) {
  const int64_t in = (any_of(b.experts).*matrix)->in_features();
  const LoraWork* const lora = added != nullptr ? shrink(b, start, *added, x.data(), in, s, pool) : nullptr;
  std::vector<LinearCall> calls;
  for (int32_t e = 0; e < b.config.num_experts; ++e) {
    const int64_t rows = start[e + 1] - start[e];
    const PackedLinear* weight = b.experts[e].*matrix;
    if (rows > 0)
      calls.push_back({weight, x.data() + start[e] * in, rows, y->data() + start[e] * weight->out_features(), nullptr,
                       lora, start[e]});
  }
  linear_group(calls, pool);
}

template <typename T>
void grow(std::vector<T>* v, int64_t size) {
  if (static_cast<int64_t>(v->size()) < size) v->resize(static_cast<size_t>(size));
}

void mix(const Batch& b, const float* logits, const float* choice_bias, const float* scales, const float* x, float* out,
         ExpertsScratch* s, ThreadPool& pool) {
  const int64_t top_k = b.config.top_k, hidden = b.hidden, pairs = b.num_pairs();
  const ExpertView& any = any_of(b.experts);
  const int64_t wide = any.gate_up->out_features(), intermediate = any.down->in_features();
  grow(&s->chosen, pairs), grow(&s->weights, pairs), grow(&s->slots, pairs);
  grow(&s->x, pairs * hidden), grow(&s->gate_up, pairs * wide);
  grow(&s->activated, pairs * intermediate), grow(&s->y, pairs * hidden);
  for_each_row(pool, b.rows, b.config.num_experts, [&](int64_t row, int) {
    route(logits + row * b.config.num_experts, choice_bias, scales, b.config, &s->chosen[row * top_k],
          &s->weights[row * top_k]);
  });
  const std::vector<int64_t> start = sort_pairs(b, s);
  if (b.adapters != nullptr) place_adapters(b, start, s);
  for_each_row(pool, b.rows, top_k * hidden, [&](int64_t row, int) {
    for (int64_t k = row * top_k; k < (row + 1) * top_k; ++k)
      if (s->slots[k] >= 0) std::copy_n(x + row * hidden, hidden, s->x.data() + int64_t{s->slots[k]} * hidden);
  });
  run_group(b, start, &ExpertView::gate_up, b.adapters ? &b.adapters->gate_up : nullptr, s->x, &s->gate_up, s, pool);
  if (b.config.weighs_input) {
    for_each_row(pool, b.rows, top_k * wide, [&](int64_t row, int) {
      for (int64_t k = row * top_k; k < (row + 1) * top_k; ++k) {
        if (s->slots[k] < 0) continue;
        float* of_pair = s->gate_up.data() + int64_t{s->slots[k]} * wide;
        for (int64_t i = 0; i < wide; ++i) of_pair[i] *= s->weights[k];
      }
    });
    std::fill_n(s->weights.begin(), pairs, 1.0f);
  }
  activate(b.spec, s->gate_up.data(), start.back(), intermediate, s->activated.data(), pool);
  run_group(b, start, &ExpertView::down, b.adapters ? &b.adapters->down : nullptr, s->activated, &s->y, s, pool);
  for_each_row(pool, b.rows, top_k * hidden, [&](int64_t row, int) {
    float* to = out + row * hidden;
    std::fill_n(to, hidden, 0.0f);
    for (int64_t k = 0; k < top_k; ++k) {
      if (s->slots[row * top_k + k] < 0) continue;
      const float weight = s->weights[row * top_k + k];
      const float* from = s->y.data() + int64_t{s->slots[row * top_k + k]} * hidden;
      for (int64_t i = 0; i < hidden; ++i) to[i] += weight * from[i];
    }
  });
}

}  // namespace

void mix_experts(std::span<const ExpertView> experts, const ExpertsConfig& config, const ActivationSpec& spec,
                 const float* router_logits, const float* choice_bias, const float* scales, const float* x,
                 int64_t rows, int64_t hidden, float* out, ExpertsScratch* scratch, ThreadPool& pool,
                 const ExpertAdapters* adapters) {
  LLMB_CHECK(config.choice_bias == (choice_bias != nullptr) && config.num_experts % config.num_groups == 0);
  LLMB_CHECK(static_cast<int32_t>(experts.size()) == config.num_experts && config.top_k <= config.num_experts);
  const ExpertView& any = any_of(experts);
  const int64_t floats_per_row = config.top_k * (2 * hidden + any.gate_up->out_features() + any.down->in_features());
  const int64_t turn = std::max<int64_t>(32, kScratchBytes / (floats_per_row * int64_t{sizeof(float)}));
  for (int64_t first = 0; first < rows; first += turn)
    mix({experts, config, spec, std::min(turn, rows - first), hidden, adapters, first}, router_logits + first * config.num_experts,
        choice_bias, scales, x + first * hidden, out + first * hidden, scratch, pool);
}

}  // namespace llmb::cpu
