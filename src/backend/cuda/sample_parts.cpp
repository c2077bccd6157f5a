#include "backend/cuda/sample_parts.h"

#include <algorithm>

#include "base/check.h"

namespace llmb {

namespace {

// Entries begin … end - 1 of an array.
struct Slice {
  int32_t begin = 0, end = 0;

  bool empty() const { return begin >= end; }
  int64_t size() const { return int64_t{end} - begin; }
};

Slice joined(Slice a, Slice b) {
  if (a.empty()) return b;
  if (b.empty()) return a;
  return {std::min(a.begin, b.begin), std::max(a.end, b.end)};
}

template <typename T>
std::span<const T> part(const std::vector<T>& values, Slice slice) {
  if (slice.empty()) return std::span(values).first(0);
  return std::span(values).subspan(slice.begin, slice.size());
}

}  // namespace

std::vector<SamplePart> split_samples(const StepPlan& plan, int64_t max_biases, int64_t max_penalties) {
  std::vector<SamplePart> parts;
  Slice bias, penalty;  // of the last part
  for (int32_t i = 0; i < plan.num_samples(); ++i) {
    const SampleRow& row = plan.sample_rows[i];
    const Slice row_bias{row.bias_begin, row.bias_end}, row_penalty{row.penalty_begin, row.penalty_end};
    LLMB_CHECK_MSG(row_bias.size() <= max_biases && row_penalty.size() <= max_penalties,
                   "a row has more biases or penalties than the tables hold");
    const Slice wider_bias = joined(bias, row_bias), wider_penalty = joined(penalty, row_penalty);
    const bool fits = wider_bias.size() <= max_biases && wider_penalty.size() <= max_penalties;
    if (parts.empty() || !fits) parts.push_back({i, i, {}, {}});
    bias = fits ? wider_bias : row_bias;
    penalty = fits ? wider_penalty : row_penalty;
    parts.back() = {parts.back().begin, i + 1, part(plan.bias, bias), part(plan.penalty, penalty)};
  }
  return parts;
}

}  // namespace llmb
