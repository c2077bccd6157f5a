// The rows of each head are gathered, so that the products of all heads are one group of tasks, which read their
// weights once for all rows. Bound by these weights with few rows.
#include "kernels/cpu/head_linear.h"

#include <algorithm>

#include "base/check.h"
#include "kernels/cpu/row_chunks.h"

namespace llmb::cpu {

namespace {

constexpr int64_t kScratchBytes = int64_t{64} << 20;  // about; rows beyond it go in a further turn

}  // namespace

void head_linear(std::span<const PackedLinear* const> weights, const float* x, const HeadColumns& x_columns,
                 int64_t rows, float* out, const HeadColumns& out_columns, HeadLinearScratch* scratch,
                 ThreadPool& pool) {
  const auto heads = static_cast<int64_t>(weights.size());
  const int64_t in = weights[0]->in_features(), wide = weights[0]->out_features();
  const int64_t turn = std::max<int64_t>(32, kScratchBytes / (heads * (in + wide) * int64_t{sizeof(float)}));
  for (int64_t first = 0; first < rows; first += turn) {
    const int64_t count = std::min(turn, rows - first);
    scratch->x.resize(std::max(scratch->x.size(), static_cast<size_t>(heads * count * in)));
    scratch->y.resize(std::max(scratch->y.size(), static_cast<size_t>(heads * count * wide)));
    float *const gathered = scratch->x.data(), *const products = scratch->y.data();
    for_each_row(pool, count, heads * in, [&](int64_t row, int) {
      for (int64_t h = 0; h < heads; ++h)
        std::copy_n(x + x_columns.at(first + row, h), in, gathered + (h * count + row) * in);
    });
    std::vector<LinearCall> calls;
    for (int64_t h = 0; h < heads; ++h) {
      LLMB_CHECK(weights[h]->in_features() == in && weights[h]->out_features() == wide);
      calls.push_back({weights[h], gathered + h * count * in, count, products + h * count * wide});
    }
    linear_group(calls, pool);
    for_each_row(pool, count, heads * wide, [&](int64_t row, int) {
      for (int64_t h = 0; h < heads; ++h)
        std::copy_n(products + (h * count + row) * wide, wide, out + out_columns.at(first + row, h));
    });
  }
}

}  // namespace llmb::cpu
