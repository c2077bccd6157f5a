// Hidden states kept by slot and found by the rows behind them, against the CPU's rules on random plans: every byte.
#include "kernels/cuda/hidden_rows.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <memory>
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

// A layer group's rows of a plan on the device, padded.
struct RowsOnDevice {
  std::vector<StepRow> rows;
  std::vector<int32_t> expected, slots;  // [rows]  -1: none
  std::unique_ptr<DeviceArray<StepRow>> device_rows;
  std::unique_ptr<DeviceArray<int32_t>> starts, positions, device_slots, parents;
  std::unique_ptr<DeviceArray<BlockId>> ids;
  PreviousRows step;
  int32_t num_slots = 0;

  // Slots are as new_id says of the plan's blocks.
  template <typename NewId>
  RowsOnDevice(const StepPlan& plan, const GivenTokens& before, int32_t group, const NewId& new_id) {
    ResolvedStep resolved;
    llmb::resolve_step(plan, before, &resolved);
    find_previous_slots(plan, resolved, group, &expected);
    std::vector<int32_t> block_start, places = resolved.positions, parent_rows = plan.parent_rows, new_slots;
    std::vector<BlockId> block_ids;
    for (int32_t e = 0; e < plan.num_entries(); ++e) {
      for (int32_t row = plan.query_start[e]; row < plan.query_start[e + 1]; ++row) {
        const int32_t index = row - plan.query_start[e];
        rows.push_back({e, index, places[row] - places[plan.query_start[e]]});
      }
      block_start.push_back(static_cast<int32_t>(block_ids.size()) / plan.num_layer_groups);
      const int32_t* const tables = plan.block_start.data() + e * plan.num_layer_groups;
      for (int32_t i = 0; i < tables[1] - tables[0]; ++i)
        for (int32_t g = 0; g < plan.num_layer_groups; ++g) block_ids.push_back(new_id(plan.block_ids[tables[g] + i]));
    }
    slots.assign(resolved.slots.begin() + group * plan.num_tokens(),
                 resolved.slots.begin() + (group + 1) * plan.num_tokens());
    num_slots = 1 + std::max(*std::max_element(slots.begin(), slots.end()),
                             *std::max_element(expected.begin(), expected.end()));
    for (const int32_t slot : slots)
      new_slots.push_back(new_id(slot / plan.block_size) * plan.block_size + slot % plan.block_size);
    const size_t num_rows = rows.size() + kPadding;
    rows.resize(num_rows), places.resize(num_rows), new_slots.resize(num_rows, -1), expected.resize(num_rows, -1);
    if (!parent_rows.empty()) parent_rows.resize(num_rows, -1);
    device_rows = std::make_unique<DeviceArray<StepRow>>(rows);
    starts = std::make_unique<DeviceArray<int32_t>>(block_start);
    positions = std::make_unique<DeviceArray<int32_t>>(places);
    device_slots = std::make_unique<DeviceArray<int32_t>>(new_slots);
    parents = std::make_unique<DeviceArray<int32_t>>(parent_rows);
    ids = std::make_unique<DeviceArray<BlockId>>(block_ids);
    step = {static_cast<int32_t>(num_rows), plan.block_size,   device_rows->data(),
            starts->data(),                 ids->data() + group, plan.num_layer_groups,
            positions->data(),              device_slots->data(), parent_rows.empty() ? nullptr : parents->data()};
  }

  template <class Stored>
  std::vector<float> states_before(const std::vector<Stored>& pool, int64_t width) const {
    std::vector<float> values;
    for (const int32_t slot : expected)
      for (int64_t i = 0; i < width; ++i) values.push_back(slot < 0 ? 0 : to_float(pool[slot * width + i]));
    return values;
  }
};

// group: the layer's
template <class Stored>
void check_previous(const StepPlan& plan, const GivenTokens& before, int32_t group, int64_t width) {
  const RowsOnDevice rows(plan, before, group, [](BlockId block) { return block; });
  const std::vector<Stored> pool = row_values<Stored>(rows.num_slots, width);
  const DeviceArray<Stored> device_pool(pool);
  DeviceArray<float> out(rows.rows.size() * static_cast<size_t>(width));
  previous_hidden(rows.step, device_pool.data(), width, out.data(), nullptr);
  CHECK(out.holds(rows.states_before(pool, width)));
  CHECK(out.check_guards());
}

// The same where block b is the rank's b % num_ranks, which has the first ones last.
template <class Stored>
void check_ranks(const StepPlan& plan, const GivenTokens& before, int32_t group, int64_t width, int32_t num_ranks) {
  const BlockId num_blocks = *std::max_element(plan.block_ids.begin(), plan.block_ids.end()) + 1;
  const auto count = static_cast<int32_t>(ceil_div(num_blocks, num_ranks));
  const RowsOnDevice rows(plan, before, group,
                          [&](BlockId block) { return block % num_ranks * count + block / num_ranks; });
  const std::vector<Stored> all = row_values<Stored>(int64_t{num_blocks} * plan.block_size, width);
  const int64_t num_entries = plan.num_entries(), block_numbers = plan.block_size * width;
  const DeviceArray<SliceGroup> groups(std::vector<SliceGroup>{{2, count}});
  std::vector<BlockPair> pairs(2);
  for (int32_t place = 0; place < count; ++place) pairs.push_back({count - 1 - place, place});
  const DeviceArray<BlockPair> blocks(pairs);
  DeviceArray<Stored> given(static_cast<size_t>(num_ranks * num_entries * width));
  for (int32_t rank = 0; rank < num_ranks; ++rank) {
    std::vector<Stored> pool(static_cast<size_t>(count * block_numbers));
    for (int32_t place = 0; place < count; ++place)
      if (const BlockId block = place * num_ranks + rank; block < num_blocks)
        std::copy_n(all.begin() + block * block_numbers, block_numbers,
                    pool.begin() + (count - 1 - place) * block_numbers);
    const DeviceArray<Stored> own_pool(pool);
    give_previous_hidden({rows.step, groups.data(), blocks.data(), rank}, own_pool.data(), width,
                         given.data() + rank * num_entries * width, nullptr);
  }
  std::vector<Stored> own;
  for (const int32_t slot : rows.slots) own.insert(own.end(), &all[slot * width], &all[slot * width] + width);
  const DeviceArray<Stored> own_rows(own);
  DeviceArray<float> out(rows.rows.size() * static_cast<size_t>(width));
  take_previous_hidden({rows.step, groups.data(), blocks.data(), 0}, own_rows.data(), given.data(),
                       static_cast<int32_t>(num_entries), width, out.data(), nullptr);
  CHECK(out.holds(rows.states_before(all, width)));
  CHECK(out.check_guards());
  CHECK(given.check_guards());
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
  DeviceArray<Stored> in_order(x.size());
  store_hidden(device_x.data(), nullptr, static_cast<int64_t>(slots.size()), width, in_order.data(), nullptr);
  expected.clear();
  for (const T value : x) expected.push_back(from_float<Stored>(to_float(value)));
  CHECK(in_order.holds(expected));
}

}  // namespace

TEST_CASE("each row is given the hidden state of the slot before its own, in trees its parent's, whichever rank has it") {
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
    if (i % 4 != 0) continue;
    const auto num_ranks = static_cast<int32_t>(1 + i / 12 % 3);
    if (i % 3 == 0) check_ranks<float>(plan, before, group, 8, num_ranks);
    if (i % 3 == 1) check_ranks<__half>(plan, before, group, 5, num_ranks);
    if (i % 3 == 2) check_ranks<__nv_bfloat16>(plan, before, group, 264, num_ranks);
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
