#include "kernels/cuda/expert_lora.h"

#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <deque>
#include <initializer_list>
#include <random>
#include <vector>

#include "core/types.h"
#include "tests/kernels/cuda/lora_case.h"
#include "tests/support/device_array.h"
#include "tests/support/kernel_support.h"

namespace llmb::cuda {
namespace {

using test::converted;
using test::DeviceArray;
using test::random_normal;

constexpr int32_t kNumExperts = 5, kTopK = 2, kOtherRanks = 3, kWithout = 1, kLayer = 1;
constexpr int64_t kHidden = 72, kWide = 80;

using Parts = std::initializer_list<std::array<int32_t, 3>>;

// An adapter's matrices for the experts of layer 1; expert 1 has none, and layer 0 has no tables.
template <class T>
struct AdapterOfExperts {
  std::deque<LoraCase<T>> cases;  // [num_experts, 2]
  DeviceArray<LoraProduct> products{2 * kNumExperts};
  DeviceArray<const LoraProduct*> tables{2};

  AdapterOfExperts(uint32_t seed, int32_t rank) {
    std::vector<LoraProduct> all;
    for (int32_t e = 0; e < kNumExperts; ++e)
      for (const bool is_down : {false, true}) {
        seed += 10;
        if (e == kWithout) cases.emplace_back(kHidden, Parts{}, seed);
        else if (is_down) cases.emplace_back(kWide, Parts{{rank, 0, kHidden}}, seed);
        else cases.emplace_back(kHidden, Parts{{rank, 0, 40}, {rank + e, 40, 40}}, seed, 4);
        all.push_back(cases.back().product);
      }
    products.upload(all);
    tables.upload(std::vector<const LoraProduct*>{nullptr, products.data()});
  }
};

// Rows' experts at random, and where their pairs lie; those of expert 3 are another rank's.
struct Pairs {
  std::vector<int32_t> chosen, slot_of_pair, row_of_slot, expert_of_slot;

  Pairs(int32_t num_rows, uint32_t seed) : slot_of_pair(static_cast<size_t>(num_rows * kTopK), -1) {
    std::mt19937 rng(seed);
    for (int32_t row = 0; row < num_rows; ++row) {
      const auto first = static_cast<int32_t>(rng() % (kNumExperts - 1));
      chosen.push_back(first);
      chosen.push_back(first + 1 + static_cast<int32_t>(rng() % static_cast<uint32_t>(kNumExperts - 1 - first)));
    }
    for (int32_t e = 0; e < kNumExperts; ++e)
      for (size_t pair = 0; pair < chosen.size(); ++pair) {
        if (chosen[pair] != e || e == kOtherRanks) continue;
        slot_of_pair[pair] = static_cast<int32_t>(row_of_slot.size());
        row_of_slot.push_back(static_cast<int32_t>(pair) / kTopK);
        expert_of_slot.push_back(e);
      }
    row_of_slot.resize(chosen.size(), -1);  // nobody reads these
  }
};

// Both products of all slots, `down` of numbers of its own. turn: of ExpertAdapters.
template <class T>
std::vector<std::vector<float>> run(const Pairs& pairs, const std::vector<ExpertLoraTables>& of_row, int32_t turn,
                                    const std::vector<T>& x, const std::vector<T>& wide, const std::vector<T>& y) {
  const auto count = static_cast<int32_t>(pairs.chosen.size());
  DeviceArray<int32_t> chosen(pairs.chosen), slot_of_pair(pairs.slot_of_pair), row_of_slot(pairs.row_of_slot);
  DeviceArray<ExpertLoraTables> rows(of_row);
  DeviceArray<const LoraProduct*> of_slot(pairs.chosen.size());
  DeviceArray<LoraItem> items(pairs.chosen.size());
  DeviceArray<float> t(static_cast<size_t>(turn * kMaxLoraRanks));
  DeviceArray<T> from(x), first(wide), second(y);
  const ExpertAdapters adapters{rows.data(), kLayer, true, of_slot.data(), items.data(), t.data(), turn};
  const ExpertSlots slots{chosen.data(), slot_of_pair.data(), row_of_slot.data(), count, kTopK};
  cut_expert_items(adapters, slots, nullptr);
  add_expert_lora(adapters, slots, false, from.data(), row_of_slot.data(), kHidden, first.data(), kWide, nullptr);
  add_expert_lora<T>(adapters, slots, true, first.data(), nullptr, kWide, second.data(), kHidden, nullptr);
  for (const bool is_whole : {of_slot.check_guards(), items.check_guards(), t.check_guards(), first.check_guards(),
                              second.check_guards()})
    CHECK(is_whole);
  CHECK(from.holds(x));
  return {first.download_floats(), second.download_floats()};
}

TEST_CASE_TEMPLATE("expert_lora: what adapters add to each pair's products is near fp64; other pairs stay", T, float,
                   __nv_bfloat16) {
  const int32_t num_rows = 61, num_pairs = num_rows * kTopK;
  AdapterOfExperts<T> one(100, 3), two(700, 16);
  DeviceArray<const LoraProduct*> without(std::vector<const LoraProduct*>{one.products.data(), nullptr});
  const Pairs pairs(num_rows, 5);
  std::vector<ExpertLoraTables> of_row;
  std::vector<const AdapterOfExperts<T>*> adapter_of_row;
  for (int32_t row = 0; row < num_rows; ++row) {
    const int32_t kind = row < 24 ? 0 : row < 40 ? 1 : row % 4;
    adapter_of_row.push_back(kind == 0 ? &one : kind == 1 ? &two : nullptr);
    of_row.push_back(kind == 0 ? one.tables.data() : kind == 1 ? two.tables.data() : kind == 2 ? without.data() : nullptr);
  }
  const std::vector<T> x = converted<T>(random_normal(num_rows * kHidden, 1)),
                       wide = converted<T>(random_normal(num_pairs * kWide, 2)),
                       y = converted<T>(random_normal(num_pairs * kHidden, 3));
  const auto whole = run(pairs, of_row, 128, x, wide, y);
  const std::vector<T> between = converted<T>(whole[0]);
  const auto check = [&](size_t slot, bool is_down) {
    const int64_t in = is_down ? kWide : kHidden, out = is_down ? kHidden : kWide;
    const bool is_slot = slot < pairs.expert_of_slot.size();
    const auto* const adapter = is_slot ? adapter_of_row[static_cast<size_t>(pairs.row_of_slot[slot])] : nullptr;
    const T* const own_x = is_down ? between.data() + slot * kWide
                                   : is_slot ? x.data() + pairs.row_of_slot[slot] * kHidden : x.data();
    for (int64_t column = 0; column < out; ++column) {
      const size_t at = slot * static_cast<size_t>(out) + static_cast<size_t>(column);
      const double was = to_float(is_down ? y[at] : wide[at]), is = whole[is_down][at];
      if (adapter == nullptr || pairs.expert_of_slot[slot] == kWithout) {
        CHECK(is == was);
        continue;
      }
      const auto& matrices = adapter->cases[static_cast<size_t>(2 * pairs.expert_of_slot[slot] + is_down)];
      const auto [value, size] = expected(matrices, own_x, in, column, was);
      CHECK(std::fabs(is - value) <= 1e-6 * size + (sizeof(T) == 4 ? 1e-6 : 8e-3) * std::fabs(value));
    }
  };
  for (size_t slot = 0; slot < static_cast<size_t>(num_pairs); ++slot)
    for (const bool is_down : {false, true}) check(slot, is_down);
  for (const int32_t turn : {8, 16, 48}) CHECK(run(pairs, of_row, turn, x, wide, y) == whole);
}

TEST_CASE_TEMPLATE("expert_lora: a row's bits do not depend on the rows beside it", T, float, __nv_bfloat16) {
  const int32_t num_rows = 40;
  AdapterOfExperts<T> one(100, 3), two(700, 16);
  const Pairs pairs(num_rows, 9);
  std::vector<ExpertLoraTables> of_row;
  for (int32_t row = 0; row < num_rows; ++row) of_row.push_back(row % 7 < 4 ? one.tables.data() : two.tables.data());
  const std::vector<T> x = converted<T>(random_normal(num_rows * kHidden, 1)),
                       wide = converted<T>(random_normal(num_rows * kTopK * kWide, 2)),
                       y = converted<T>(random_normal(num_rows * kTopK * kHidden, 3));
  const auto whole = run(pairs, of_row, 80, x, wide, y);
  std::vector<T> first = wide, second = y;
  for (int32_t row = 0; row < num_rows; ++row) {
    std::vector<ExpertLoraTables> only(of_row.size());
    only[static_cast<size_t>(row)] = of_row[static_cast<size_t>(row)];
    const auto after = run(pairs, only, 80, x, first, second);
    first = converted<T>(after[0]), second = converted<T>(after[1]);
  }
  for (size_t i = 0; i < first.size(); ++i) CHECK(to_float(first[i]) == whole[0][i]);
  for (size_t i = 0; i < second.size(); ++i) CHECK(to_float(second[i]) == whole[1][i]);
}

}  // namespace
}  // namespace llmb::cuda
