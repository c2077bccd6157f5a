// Hidden states kept by slot and found by the rows behind them, against the CPU's rules on random plans: every byte.
#include "kernels/cuda/hidden_rows.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "backend/cpu/hidden_rows.h"
#include "core/resolve_step.h"
#include "tests/support/device_array.h"
#include "tests/support/random_plan.h"

namespace llmb::cuda {
namespace {

using test::DeviceArray;
using test::TestRng;

#ifdef LLMB_SIMT
constexpr uint64_t kNumPlans = 300;
#else
constexpr uint64_t kNumPlans = 60;
#endif
constexpr int32_t kPadding = 3;

template <class T>
std::vector<T> row_values(int64_t num_rows, int64_t width) {
  std::vector<T> values;
  for (int64_t i = 0; i < num_rows * width; ++i) values.push_back(from_float<T>(static_cast<float>(i % 509) - 7.3f));
  return values;
}

// Rows are padded. group: the layer's
template <class Stored>
void check_previous(const StepPlan& plan, const GivenTokens& before, int32_t group, int64_t width) {
  ResolvedStep step;
  llmb::resolve_step(plan, before, &step);
  std::vector<int32_t> expected;
  find_previous_slots(plan, step, group, &expected);
  std::vector<StepRow> rows;
  std::vector<int32_t> block_start, positions = step.positions, parents = plan.parent_rows;
  std::vector<BlockId> ids;
  for (int32_t e = 0; e < plan.num_entries(); ++e) {
    for (int32_t row = plan.query_start[e]; row < plan.query_start[e + 1]; ++row) {
      const int32_t index = row - plan.query_start[e];
      rows.push_back({e, index, step.positions[row] - step.positions[plan.query_start[e]]});
    }
    block_start.push_back(static_cast<int32_t>(ids.size()) / plan.num_layer_groups);
    const int32_t* const tables = plan.block_start.data() + e * plan.num_layer_groups;
    for (int32_t i = 0; i < tables[1] - tables[0]; ++i)
      for (int32_t g = 0; g < plan.num_layer_groups; ++g) ids.push_back(plan.block_ids[tables[g] + i]);
  }
  std::vector<int32_t> slots(step.slots.begin() + group * plan.num_tokens(),
                             step.slots.begin() + (group + 1) * plan.num_tokens());
  const int32_t last_slot = std::max(*std::max_element(slots.begin(), slots.end()),
                                     *std::max_element(expected.begin(), expected.end()));
  rows.resize(rows.size() + kPadding);
  positions.resize(rows.size()), slots.resize(rows.size(), -1), expected.resize(rows.size(), -1);
  if (!parents.empty()) parents.resize(rows.size(), -1);
  const std::vector<Stored> pool = row_values<Stored>(last_slot + 1, width);
  const DeviceArray<StepRow> device_rows(rows);
  const DeviceArray<int32_t> starts(block_start), device_positions(positions), device_slots(slots), parent_rows(parents);
  const DeviceArray<BlockId> device_ids(ids);
  const DeviceArray<Stored> device_pool(pool);
  DeviceArray<float> out(rows.size() * static_cast<size_t>(width));
  const PreviousRows previous{static_cast<int32_t>(rows.size()),
                              plan.block_size,
                              device_rows.data(),
                              starts.data(),
                              device_ids.data() + group,
                              plan.num_layer_groups,
                              device_positions.data(),
                              device_slots.data(),
                              parents.empty() ? nullptr : parent_rows.data()};
  previous_hidden(previous, device_pool.data(), width, out.data(), nullptr);
  std::vector<float> values;
  for (const int32_t slot : expected)
    for (int64_t i = 0; i < width; ++i) values.push_back(slot < 0 ? 0 : to_float(pool[slot * width + i]));
  CHECK(out.holds(values));
  CHECK(out.check_guards());
}

template <class T, class Stored>
void check_store(int64_t width) {
  const std::vector<int32_t> slots = {11, -1, 0, 4};
  constexpr int64_t kSlots = 13;
  const std::vector<T> x = row_values<T>(static_cast<int64_t>(slots.size()), width);
  std::vector<Stored> expected = row_values<Stored>(kSlots, width);
  const DeviceArray<T> device_x(x);
  const DeviceArray<int32_t> device_slots(slots);
  DeviceArray<Stored> pool(expected);
  store_hidden(device_x.data(), device_slots.data(), static_cast<int64_t>(slots.size()), width, pool.data(), nullptr);
  for (size_t row = 0; row < slots.size(); ++row)
    for (int64_t i = 0; i < width && slots[row] >= 0; ++i)
      expected[slots[row] * width + i] = from_float<Stored>(to_float(x[static_cast<int64_t>(row) * width + i]));
  CHECK(pool.holds(expected));
  CHECK(pool.check_guards());
}

}  // namespace

TEST_CASE("each row is given the hidden state of the slot before its own, in trees its parent's") {
  TestRng rng(3);
  StepPlan in_flight;
  bool follows = false;
  for (uint64_t i = 0; i < kNumPlans; ++i) {
    CAPTURE(i);
    const StepPlan plan = test::random_plan(rng, follows ? &in_flight : nullptr);
    if (!plan.hidden_rows.empty()) continue;
    const GivenTokens before = follows ? test::random_given(rng, in_flight) : GivenTokens();
    const int32_t group = rng.between(0, plan.num_layer_groups - 1);
    if (i % 3 == 0) check_previous<float>(plan, before, group, 5);
    if (i % 3 == 1) check_previous<__nv_bfloat16>(plan, before, group, 8);
    if (i % 3 == 2) check_previous<__half>(plan, before, group, 1032);
    in_flight = plan, follows = true;
  }
}

TEST_CASE("hidden states go to their slots, and those of padding nowhere") {
  for (const int64_t width : {1, 5, 8, 577, 1032}) {
    CAPTURE(width);
    check_store<float, float>(width);
    check_store<float, __nv_bfloat16>(width);
    check_store<__nv_bfloat16, __nv_bfloat16>(width);
    check_store<__half, __half>(width);
  }
  const DeviceArray<float> nothing(size_t{0});
  DeviceArray<float> pool(std::vector<float>{1});
  store_hidden(nothing.data(), nullptr, 0, 1, pool.data(), nullptr);
  previous_hidden(PreviousRows(), pool.data(), 1, pool.data(), nullptr);
  CHECK(pool.holds(std::vector<float>{1}));
}

TEST_CASE("logits of a head that knows some tokens: those, and no other token has any") {
  for (const int64_t vocab_size : {1, 127, 128, 129, 700}) {
    CAPTURE(vocab_size);
    std::vector<int32_t> known_as(static_cast<size_t>(vocab_size), -1);
    int32_t num_known = 0;
    for (int64_t token = vocab_size % 3 / 2; token < vocab_size; token += 3)
      known_as[static_cast<size_t>(token)] = num_known++;
    std::vector<float> from = row_values<float>(4, num_known), expected;
    if (num_known > 1) from[1] = NAN;
    for (int64_t row = 0; row < 4; ++row)
      for (const int32_t column : known_as)
        expected.push_back(column < 0 ? kNoLogit : from[static_cast<size_t>(row * num_known + column)]);
    const DeviceArray<float> device_from(from);
    const DeviceArray<int32_t> columns(known_as);
    DeviceArray<float> to(expected.size());
    spread_logits(device_from.data(), num_known, columns.data(), 4, vocab_size, to.data(), nullptr);
    CHECK(to.holds(expected));
    CHECK(to.check_guards());
  }
}

}  // namespace llmb::cuda
