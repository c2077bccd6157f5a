// Places of records, sorted in bounded memory: in one piece, in many runs, and where calls fail.
#include "job/place_sorter.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <random>
#include <vector>

#include "tests/support/faulty_file_ops.h"
#include "tests/support/temp_dir.h"

namespace llmb {

using test::FaultyFileOps;
using test::TempDir;

namespace {

// Indices 0, 3, 6, …, shuffled.
std::vector<RecordPlace> make_places(int64_t count, unsigned seed) {
  std::vector<RecordPlace> places;
  for (int64_t i = 0; i < count; ++i) places.push_back({3 * i, 1000 * i, 10 + i % 7});
  std::shuffle(places.begin(), places.end(), std::mt19937(seed));
  return places;
}

Status sort(const std::vector<RecordPlace>& places, size_t in_memory, const TempDir& dir, FileOps& ops,
            std::vector<RecordPlace>* sorted) {
  PlaceSorter sorter(dir / "tmp", ops, in_memory);
  for (const RecordPlace& place : places) LLMB_RETURN_IF_ERROR(sorter.add(place));
  return sorter.for_each([&](const RecordPlace& place) {
    sorted->push_back(place);
    return Status();
  });
}

bool is_sorted_whole(const std::vector<RecordPlace>& places, int64_t count) {
  if (static_cast<int64_t>(places.size()) != count) return false;
  for (int64_t i = 0; i < count; ++i) {
    const RecordPlace& place = places[static_cast<size_t>(i)];
    if (place.index != 3 * i || place.offset != 1000 * i || place.size != 10 + i % 7) return false;
  }
  return true;
}

}  // namespace

TEST_CASE("any number of places, one before, on and behind the border of a run, comes out in order; no file is left") {
  for (const int64_t count : {0, 1, 9, 10, 11, 20, 21, 1000, 5000})
    for (const size_t in_memory : {size_t{1}, size_t{10}, size_t{300}, PlaceSorter::kMaxInMemory}) {
      if (count > 1000 && in_memory == 1) continue;
      CAPTURE(count);
      CAPTURE(in_memory);
      const TempDir dir;
      std::vector<RecordPlace> sorted;
      REQUIRE(sort(make_places(count, 5), in_memory, dir, real_file_ops(), &sorted).ok());
      CHECK(is_sorted_whole(sorted, count));
      CHECK(std::filesystem::is_empty(dir.path()));
    }
}

TEST_CASE("short reads and writes and interrupts are invisible; a failing call is an I/O error that names the file") {
  const auto places = make_places(100, 6);
  const TempDir dir;
  std::vector<RecordPlace> sorted;
  FaultyFileOps short_ops;
  short_ops.max_io_bytes = 7;
  short_ops.num_interrupts = 2;
  REQUIRE(sort(places, 10, dir, short_ops, &sorted).ok());
  CHECK(is_sorted_whole(sorted, 100));
  FaultyFileOps counting;
  REQUIRE(sort(places, 10, dir, counting, &sorted).ok());
  for (int64_t at = 1; at <= counting.num_calls(); ++at) {
    CAPTURE(at);
    FaultyFileOps ops;
    ops.any_fault = {.at = at, .error = EIO};
    sorted.clear();
    const Status status = sort(places, 10, dir, ops, &sorted);
    const bool may_be_survived =
        ops.failed_call() == test::FileCall::kUnlink || ops.failed_call() == test::FileCall::kClose;
    CHECK((status.ok() ? may_be_survived : status.code() == StatusCode::kIoError));
    if (status.ok()) CHECK(is_sorted_whole(sorted, 100));
    else CHECK(status.message().find(dir / "tmp") == 0);
  }
}

TEST_CASE("an error of the one who takes the places ends it") {
  const TempDir dir;
  PlaceSorter sorter(dir / "tmp", real_file_ops(), 2);
  for (const RecordPlace& place : make_places(9, 7)) REQUIRE(sorter.add(place).ok());
  int num_taken = 0;
  CHECK(sorter.for_each([&](const RecordPlace&) { return ++num_taken == 4 ? io_error("full") : Status(); }).message() ==
        "full");
  CHECK(num_taken == 4);
}

}  // namespace llmb
