// A rank's part of matrices (core/rank_part.h).
#include <algorithm>
#include <utility>

#include "model/weight_loader.h"

namespace llmb {

Parts Loader::rows_of(const Parts& parts, const Range& rows) const {
  if (!is_rank_ || !reader_.status().ok()) return parts;
  Parts out;
  int64_t first = 0;  // of the part, among all rows
  for (size_t i = 0; i < parts.weights.size(); ++i) {
    const int64_t end = first + parts.weights[i].rows;
    const int64_t from = std::max(first, rows.begin), to = std::min(end, rows.end);
    if (from < to) {
      out.weights.push_back(slice_rows(parts.weights[i], from - first, to - from));
      if (!parts.biases.empty()) out.biases.push_back(slice_vector(parts.biases[i], from - first, to - from));
    }
    first = end;
  }
  return out;
}

// Gate and up lie one behind the other, in one matrix or in two.
Parts Loader::mlp_rows(const Parts& gate_up, int64_t intermediate, const Range& columns) const {
  if (!is_rank_) return gate_up;
  Parts out = rows_of(gate_up, columns);
  if (!c_.activation.gated) return out;
  const Parts up = rows_of(gate_up, {intermediate + columns.begin, intermediate + columns.end});
  out.weights.insert(out.weights.end(), up.weights.begin(), up.weights.end());
  out.biases.insert(out.biases.end(), up.biases.begin(), up.biases.end());
  return out;
}

std::unique_ptr<LinearWeight> Loader::make_sum(Parts parts, const Range& columns) {
  if (!is_rank_) return make(parts);
  for (TensorView& weight : parts.weights) weight = reader_.columns(weight, columns.begin, columns.count());
  if (!share_.adds_biases) parts.biases.clear();
  return make(parts, WeightRole::kPartialSum);
}

TensorView Loader::heads_of(const TensorView& vectors, const Range& heads) const {
  if (!is_rank_ || !reader_.status().ok()) return vectors;
  return slice_vector(vectors, heads.begin * c_.head_dim, heads.count() * c_.head_dim);
}

}  // namespace llmb
