// An adapter's matrices for a product in device memory, and what they add, in fp64.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <list>
#include <utility>
#include <vector>

#include "kernels/cuda/lora.h"
#include "tests/support/device_array.h"
#include "tests/support/kernel_support.h"

namespace llmb::cuda {

// With its matrices as they were rounded.
template <class T>
struct LoraCase {
  LoraProduct product;
  std::vector<std::vector<float>> a, b;  // of each part: [rank, in], [rank, num_columns]
  std::list<test::DeviceArray<T>> memory;
  std::list<test::DeviceArray<const void*>> pages;
  test::DeviceArray<LoraProduct> on_device{1};

  // parts: rank, out_column and num_columns of each. rows_per_page > 0: matrices lie in pages of so many rows, the
  // first of which has one less.
  LoraCase(int64_t in, std::initializer_list<std::array<int32_t, 3>> parts, uint32_t seed, int32_t rows_per_page = 0) {
    LoraPart* part = product.parts;
    for (const auto& [rank, out_column, num_columns] : parts) {
      const auto place = [&](int64_t width, std::vector<std::vector<float>>& rounded) {
        const std::vector<T> values = test::converted<T>(test::random_normal(rank * width, ++seed));
        auto& as_floats = rounded.emplace_back();
        for (const T value : values) as_floats.push_back(to_float(value));
        LoraMatrix m;
        m.rows_in_first = rows_per_page > 0 ? std::min(rank, rows_per_page - 1) : rank;
        m.rows_per_page = std::max(rows_per_page, 1);
        m.first = memory.emplace_back(std::vector<T>(values.begin(), values.begin() + m.rows_in_first * width)).data();
        std::vector<const void*> others;
        for (int32_t row = m.rows_in_first; row < rank; row += rows_per_page)
          others.push_back(
              memory
                  .emplace_back(std::vector<T>(values.begin() + row * width,
                                               values.begin() + std::min(rank, row + rows_per_page) * width))
                  .data());
        if (!others.empty()) m.pages = pages.emplace_back(others).data();
        return m;
      };
      part->a = place(in, a);
      part->b = place(num_columns, b);
      part->rank_begin = product.num_ranks, part->rank_end = product.num_ranks + rank;
      part->out_column = out_column, part->num_columns = num_columns;
      part++->scale = 0.75f;
      product.num_ranks += rank;
    }
    for (; part < product.parts + kMaxLoraParts; ++part) part->rank_begin = part->rank_end = product.num_ranks;
    on_device.upload({&product, 1});
  }
};

// In fp64; the second value sums the magnitudes of all terms, which errors are relative to.
template <class T>
std::pair<double, double> expected(const LoraCase<T>& adapter, const T* x, int64_t in, int64_t column, double out) {
  double size = std::fabs(out);
  for (size_t i = 0; i < adapter.a.size(); ++i) {
    const LoraPart& part = adapter.product.parts[i];
    const int64_t own = column - part.out_column;
    if (own < 0 || own >= part.num_columns) continue;
    for (int64_t r = 0; r < part.rank_end - part.rank_begin; ++r) {
      double t = 0, t_size = 0;
      for (int64_t k = 0; k < in; ++k) {
        const double term = double{adapter.a[i][r * in + k]} * double{to_float(x[k])};
        t += term, t_size += std::fabs(term);
      }
      const double factor = double{part.scale} * adapter.b[i][r * part.num_columns + own];
      out += factor * t;
      size += std::fabs(factor) * t_size;
    }
  }
  return {out, size};
}

}  // namespace llmb::cuda
