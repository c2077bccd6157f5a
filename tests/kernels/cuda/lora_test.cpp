#include "kernels/cuda/lora.h"

#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <list>
#include <random>

#include "tests/support/device_array.h"
#include "tests/support/kernel_support.h"

namespace llmb::cuda {
namespace {

using test::converted;
using test::DeviceArray;
using test::random_normal;

// An adapter with one product, in device memory, and its matrices as they were rounded.
template <class T>
struct Adapter {
  LoraProduct product;
  std::vector<std::vector<float>> a, b;  // of each part: [rank, in], [rank, num_columns]
  std::list<DeviceArray<T>> memory;
  DeviceArray<LoraProduct> on_device{1};

  // parts: rank, out_column and num_columns of each.
  Adapter(int64_t in, std::initializer_list<std::array<int32_t, 3>> parts, uint32_t seed) {
    LoraPart* part = product.parts;
    for (const auto& [rank, out_column, num_columns] : parts) {
      const auto place = [&](int64_t count, std::vector<std::vector<float>>& rounded) {
        const std::vector<T> values = converted<T>(random_normal(count, ++seed));
        auto& as_floats = rounded.emplace_back();
        for (const T value : values) as_floats.push_back(to_float(value));
        return memory.emplace_back(values).data();
      };
      *part++ = {place(rank * in, a), place(rank * num_columns, b), product.num_ranks, product.num_ranks + rank, out_column,
                 num_columns, 0.75f};
      product.num_ranks += rank;
    }
    for (; part < product.parts + kMaxLoraParts; ++part) part->rank_begin = part->rank_end = product.num_ranks;
    on_device.upload({&product, 1});
  }
};

struct Rows {
  std::vector<LoraItem> items;
  std::vector<int32_t> row_ids;

  void add(const LoraProduct* products, std::initializer_list<int32_t> rows) {
    const auto begin = static_cast<int32_t>(row_ids.size());
    row_ids.insert(row_ids.end(), rows);
    items.push_back({products, begin, static_cast<int32_t>(row_ids.size())});
  }
};

template <class T>
std::vector<T> run(const Rows& rows, bool can_pack, const std::vector<T>& x, int64_t in, const std::vector<T>& before,
                   int64_t out) {
  DeviceArray<T> from(x), to(before);
  DeviceArray<LoraItem> items(rows.items);
  DeviceArray<int32_t> row_ids(rows.row_ids);
  DeviceArray<float> t(rows.row_ids.size() * kMaxLoraRanks);
  lora(LoraRows{items.data(), row_ids.data(), static_cast<int32_t>(rows.items.size())}, 0, can_pack, from.data(), in,
       to.data(), out, t.data(), nullptr);
  const std::vector<T> result = to.download();
  CHECK(to.check_guards());
  CHECK(t.check_guards());
  CHECK(from.holds(x));
  return result;
}

template <class T>
std::vector<float> floats(const std::vector<T>& values) {
  std::vector<float> result;
  for (const T value : values) result.push_back(to_float(value));
  return result;
}

// In fp64; the second value sums the magnitudes of all terms, which errors are relative to.
template <class T>
std::pair<double, double> expected(const Adapter<T>& adapter, const T* x, int64_t in, int64_t column, double out) {
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

}  // namespace

TEST_CASE_TEMPLATE("lora: rows of adapters of any ranks, and rows without one, are near fp64; empty items add nothing", T,
                   float, __nv_bfloat16, __half) {
  for (const bool can_pack : {true, false}) {
    CAPTURE(can_pack);
    const int64_t in = can_pack ? 328 : 37, out = can_pack ? 64 : 61, num_rows = 12;
    Adapter<T> three(in, {{8, 0, 16}, {3, 16, 16}, {64, 32, 24}}, 10), one(in, {{1, 0, 64 - 8 * !can_pack}}, 20),
        wide(in, {{256, 8, 40}}, 30), none(in, {}, 40);
    const std::vector<T> x = converted<T>(random_normal(num_rows * in, 1)), before = converted<T>(random_normal(num_rows * out, 2));
    Rows rows;
    rows.add(three.on_device.data(), {0, 3, 5, 6, 7, 8, 9, 11});
    rows.add(nullptr, {});
    rows.add(one.on_device.data(), {1, 4});
    rows.add(wide.on_device.data(), {2});
    rows.add(none.on_device.data(), {10});
    const std::vector<T> after = run(rows, can_pack, x, in, before, out);
    const double rounding = sizeof(T) == 4 ? 1e-6 : std::is_same_v<T, __half> ? 1e-3 : 8e-3;
    for (int64_t row = 0; row < num_rows; ++row) {
      const Adapter<T>& adapter = row == 2 ? wide : row == 10 ? none : row == 1 || row == 4 ? one : three;
      for (int64_t column = 0; column < out; ++column) {
        const double was = to_float(before[row * out + column]), is = to_float(after[row * out + column]);
        const auto [value, size] = expected(adapter, x.data() + row * in, in, column, was);
        if (row == 10) CHECK(is == was);
        // t and its sums are fp32: rounded once, as a result.
        CHECK(std::fabs(is - value) <= 1e-6 * size + rounding * std::fabs(value));
      }
    }
  }
}

TEST_CASE_TEMPLATE("lora: a row's bits depend neither on the rows and adapters beside it, nor on the order of threads", T,
                   float, __nv_bfloat16) {
  const int64_t in = 264, out = 72, num_rows = 9;
  Adapter<T> first(in, {{16, 0, 40}, {5, 40, 32}}, 10), second(in, {{33, 0, 72}}, 20);
  const std::vector<T> x = converted<T>(random_normal(num_rows * in, 1)), before = converted<T>(random_normal(num_rows * out, 2));
  Rows together;
  together.add(second.on_device.data(), {8, 1});
  together.add(first.on_device.data(), {0, 2, 3, 4, 5, 6, 7});
  const std::vector<T> whole = run(together, true, x, in, before, out);
  test::for_each_order(3, [&](uint64_t) { CHECK(floats(run(together, true, x, in, before, out)) == floats(whole)); });
  std::vector<T> alone = before;
  for (int32_t row = 0; row < num_rows; ++row) {
    Rows only;
    only.add((row == 1 || row == 8 ? second : first).on_device.data(), {row});
    alone = run(only, true, x, in, alone, out);
  }
  CHECK(floats(alone) == floats(whole));
}

}  // namespace llmb::cuda
