#include "kernels/cuda/own_slots.h"

#include <doctest/doctest.h>

#include <vector>

#include "tests/support/device_array.h"
#include "tests/support/kernel_support.h"

namespace llmb::cuda {

using test::DeviceArray;

TEST_CASE("own_slots: a rank's slots are those of the pool, the others' and those of no row are -1") {
  constexpr int32_t kSlice = 8;
  const std::vector<SliceGroup> groups = {{0, 3}, {3, 1}};
  const std::vector<BlockPair> blocks = {{7, 0}, {0, 1}, {12, 2}, {5, 0}};
  for (const int32_t num_tokens : {1, 24, 127, 128, 129})
    for (const int32_t rank : {0, 1, 2}) {
      CAPTURE(num_tokens);
      CAPTURE(rank);
      std::vector<int32_t> slots, expected;
      for (const SliceGroup& group : groups)
        for (int32_t i = 0; i < num_tokens; ++i) {
          const int32_t slot = i % 5 == 4 ? -1 : i * 7 % (3 * group.count * kSlice);
          slots.push_back(slot);
          const int32_t slice = slot / kSlice;
          const bool is_own = slot >= 0 && slice / group.count == rank;
          expected.push_back(is_own ? blocks[group.first + slice % group.count].from * kSlice + slot % kSlice : -1);
        }
      const DeviceArray<int32_t> in(slots);
      const DeviceArray<SliceGroup> of_groups(groups);
      const DeviceArray<BlockPair> pairs(blocks);
      DeviceArray<int32_t> out(slots.size());
      own_slots(in.data(), num_tokens, of_groups.data(), 2, pairs.data(), rank, kSlice, out.data(), nullptr);
      CHECK(out.download() == expected);
      CHECK(out.check_guards());
    }
}

}  // namespace llmb::cuda
