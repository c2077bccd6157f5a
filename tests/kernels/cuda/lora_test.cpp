#include "kernels/cuda/lora.h"

#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <list>
#include <random>

#include "tests/kernels/cuda/lora_case.h"
#include "tests/support/device_array.h"
#include "tests/support/kernel_support.h"

namespace llmb::cuda {
namespace {

using test::converted;
using test::DeviceArray;
using test::random_normal;

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

}  // namespace

TEST_CASE_TEMPLATE("lora: rows of adapters of any ranks, and rows without one, are near fp64; empty items add nothing", T,
                   float, __nv_bfloat16, __half) {
  for (const bool can_pack : {true, false}) {
    CAPTURE(can_pack);
    const int64_t in = can_pack ? 328 : 37, out = can_pack ? 64 : 61, num_rows = 12;
    LoraCase<T> three(in, {{8, 0, 16}, {3, 16, 16}, {64, 32, 24}}, 10, 3), one(in, {{1, 0, 64 - 8 * !can_pack}}, 20),
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
      const LoraCase<T>& adapter = row == 2 ? wide : row == 10 ? none : row == 1 || row == 4 ? one : three;
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
  LoraCase<T> first(in, {{16, 0, 40}, {5, 40, 32}}, 10), second(in, {{33, 0, 72}}, 20, 8);
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

TEST_CASE_TEMPLATE("lora: many items share blocks where they have one adapter, with the bits of each item alone", T,
                   __nv_bfloat16, __half) {
  const int64_t in = 72, out = 40;
  LoraCase<T> first(in, {{16, 0, 16}, {5, 16, 24}}, 10), second(in, {{19, 8, 32}}, 20, 4);
  for (const int32_t num_items : {130, 261}) {
    CAPTURE(num_items);
    Rows together;
    int32_t row = 0;
    for (int32_t i = 0; i < num_items; ++i) {
      // Runs of 11 items with an adapter end within blocks; now and then an item is empty.
      const auto* const products = (i / 11 % 2 == 0 ? first : second).on_device.data();
      if (i % 17 == 5) together.add(nullptr, {});
      else if (i % 3 == 0) together.add(products, {row + 2, row, row + 1}), row += 3;
      else together.add(products, {row}), row += 1;
    }
    const std::vector<T> x = converted<T>(random_normal(row * in, 1)),
                         before = converted<T>(random_normal(row * out, 2));
    const std::vector<T> whole = run(together, true, x, in, before, out);
    std::vector<T> parts = before;
    for (size_t begin = 0; begin < together.items.size(); begin += 50) {
      Rows some = together;
      some.items.assign(together.items.begin() + begin,
                        together.items.begin() + std::min(begin + 50, together.items.size()));
      parts = run(some, true, x, in, parts, out);
    }
    CHECK(floats(whole) == floats(parts));
    CHECK(floats(whole) != floats(before));
  }
}

TEST_CASE_TEMPLATE("lora: a part of the rows may be computed, into floats too, with the bits of all", T, float,
                   __nv_bfloat16) {
  const int64_t in = 72, out = 40, num_rows = 7;
  LoraCase<T> first(in, {{9, 0, 40}}, 10, 4), second(in, {{2, 8, 16}}, 20);
  const std::vector<T> x = converted<T>(random_normal(num_rows * in, 1));
  const std::vector<float> before = random_normal(num_rows * out, 2);
  Rows rows;
  rows.add(second.on_device.data(), {1, 6});
  rows.add(first.on_device.data(), {0, 2, 3, 4});
  DeviceArray<T> from(x);
  DeviceArray<LoraItem> items(rows.items);
  DeviceArray<int32_t> row_ids(rows.row_ids);
  DeviceArray<float> t(rows.row_ids.size() * kMaxLoraRanks);
  const auto add = [&](int32_t begin, int32_t end) {
    const std::vector<float> part(before.begin() + begin * out, before.begin() + end * out);
    DeviceArray<float> to(part);
    const LoraRows of{items.data(), row_ids.data(), static_cast<int32_t>(rows.items.size()), begin, end};
    lora(of, 0, true, from.data() + begin * in, in, to.data(), out, t.data(), nullptr);
    CHECK(to.check_guards());
    return to.download();
  };
  const std::vector<float> whole = add(0, num_rows);
  std::vector<float> parts;
  for (const auto& [begin, end] : {std::pair{0, 3}, {3, 4}, {4, 7}}) {
    const std::vector<float> part = add(begin, end);
    parts.insert(parts.end(), part.begin(), part.end());
  }
  CHECK(parts == whole);
  for (int64_t column = 0; column < out; ++column) CHECK(whole[5 * out + column] == before[5 * out + column]);
  CHECK(whole[0] != before[0]);
}

TEST_CASE_TEMPLATE("lora_embedding: rows of tables in pages are looked up by token, and other rows stay", T, float,
                   __half) {
  const int32_t tokens = 19, rank = 5, rows_per_page = 4;
  const int64_t out = 24, num_rows = 5;
  const std::vector<TokenId> ids = {18, 0, 3, 7, 18};
  const std::vector<T> table = converted<T>(random_normal(tokens * rank, 1)),
                       b = converted<T>(random_normal(rank * out, 2));
  const std::vector<float> before = random_normal(num_rows * out, 3);
  DeviceArray<T> a_memory(table), b_memory(b);
  std::vector<const void*> addresses;
  for (int32_t row = 3; row < tokens; row += rows_per_page) addresses.push_back(a_memory.data() + row * rank);
  DeviceArray<const void*> pages(addresses);
  LoraProduct product;
  product.num_ranks = rank;
  product.parts[0] = {{a_memory.data(), pages.data(), 3, rows_per_page},
                      {b_memory.data(), nullptr, rank, 1},
                      0,
                      rank,
                      0,
                      static_cast<int32_t>(out),
                      0.75f};
  for (int i : {1, 2}) product.parts[i].rank_begin = product.parts[i].rank_end = rank;
  DeviceArray<LoraProduct> on_device(std::vector<LoraProduct>{product});
  Rows rows;
  rows.add(on_device.data(), {0, 1, 3, 4});
  DeviceArray<LoraItem> items(rows.items);
  DeviceArray<int32_t> row_ids(rows.row_ids);
  DeviceArray<float> t(rows.row_ids.size() * kMaxLoraRanks), to(before);
  DeviceArray<TokenId> on_tokens(ids);
  lora_embedding<T>(LoraRows{items.data(), row_ids.data(), 1}, 0, true, on_tokens.data(), to.data(), out, t.data(),
                    nullptr);
  const std::vector<float> after = to.download();
  for (int64_t row = 0; row < num_rows; ++row) {
    for (int64_t column = 0; column < out; ++column) {
      double expected = before[row * out + column], size = std::fabs(expected);
      for (int32_t r = 0; r < rank && row != 2; ++r) {
        const double term = 0.75 * to_float(table[ids[row] * rank + r]) * to_float(b[r * out + column]);
        expected += term, size += std::fabs(term);
      }
      CHECK(std::fabs(after[row * out + column] - expected) <= 1e-6 * size);
    }
  }
}

}  // namespace llmb::cuda
