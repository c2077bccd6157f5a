#include "cache/state_snapshots.h"

#include <doctest/doctest.h>

#include <algorithm>

namespace llmb::test {

TEST_CASE("snapshots are found by node and serial number; the one used longest ago gives way") {
  StateSnapshots snapshots(2);
  CHECK(snapshots.find(7, 1) == -1);
  CHECK(snapshots.add(7, 1, 10) == -1);
  CHECK(snapshots.add(8, 2, 11) == -1);
  CHECK(snapshots.find(7, 1) == 10);
  CHECK(snapshots.find(7, 2) == -1);  // another node of that id
  snapshots.use(7);
  CHECK(snapshots.add(9, 3, 12) == 11);
  CHECK(snapshots.find(8, 2) == -1);
  CHECK(snapshots.find(7, 1) == 10);
  std::vector<int32_t> slots = snapshots.slots();
  std::sort(slots.begin(), slots.end());
  CHECK(slots == std::vector<int32_t>{10, 12});
}

TEST_CASE("a node keeps the snapshot that it has, and one that is gone makes room for the next of its id") {
  StateSnapshots snapshots(2);
  CHECK(snapshots.add(7, 1, 10) == -1);
  CHECK(snapshots.add(7, 1, 11) == 11);
  CHECK(snapshots.find(7, 1) == 10);
  CHECK(snapshots.add(7, 2, 12) == 10);
  CHECK(snapshots.find(7, 2) == 12);
  CHECK(snapshots.slots() == std::vector<int32_t>{12});
}

TEST_CASE("one that a sequence wants does not give way; where all are wanted there is no room") {
  StateSnapshots snapshots(2);
  CHECK(snapshots.add(7, 1, 10) == -1);
  snapshots.want(7);
  CHECK(snapshots.has_room());
  CHECK(snapshots.make_room() == -1);
  CHECK(snapshots.add(8, 2, 11) == -1);
  snapshots.use(8);
  CHECK(snapshots.make_room() == 11);  // though it was used last
  CHECK(snapshots.add(9, 3, 12) == -1);
  snapshots.want(9);
  CHECK_FALSE(snapshots.has_room());
  CHECK(snapshots.add(8, 4, 13) == 13);
  CHECK(snapshots.find(8, 4) == -1);
  snapshots.want(7);
  snapshots.unwant(7);
  CHECK_FALSE(snapshots.has_room());
  snapshots.unwant(7);
  CHECK(snapshots.add(8, 4, 13) == 10);
  CHECK(snapshots.find(9, 3) == 12);
}

TEST_CASE("where none may be kept, each gives way at once") {
  StateSnapshots snapshots(0);
  CHECK_FALSE(snapshots.has_room());
  CHECK(snapshots.add(7, 1, 10) == 10);
  CHECK(snapshots.slots().empty());
}

}  // namespace llmb::test
