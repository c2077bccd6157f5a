// The durable output under every fault at every file call: FAULTS rows 2, 4 and 5.
//
// A job that failed must say so with an I/O error, leave whole records that are a part of the right answer, and be
// completed by the next run; a job that says ok must be complete. A job that died must be completed by the next run,
// also where that one dies too, and where the power went with it. Of the largest matrices a fixed part runs, in which
// every call and every errno occurs; LLMB_ALL_FAULTS=1 runs five times as much, in minutes: all of it, but for deaths
// in recovery.
#include <doctest/doctest.h>
#include <fcntl.h>

#include <cerrno>
#include <cstdlib>
#include <string>
#include <vector>

#include "base/durable_file.h"
#include "tests/property/durable_job.h"

namespace llmb::test {

namespace {

// Under ThreadSanitizer, which has nothing to find here where one thread works, only every so many trials.
#ifdef __SANITIZE_THREAD__
constexpr bool kIsSlowBuild = true;
#else
constexpr bool kIsSlowBuild = false;
#endif

// From one cell of a matrix that is run to the next one.
int64_t stride(int64_t in_part) { return std::getenv("LLMB_ALL_FAULTS") != nullptr ? 1 : in_part; }

// Calls whose failure the job may survive, because nothing depends on them.
bool may_be_survived(FileCall call) {
  return call == FileCall::kClose || call == FileCall::kStat || call == FileCall::kUnlink || call == FileCall::kFstat;
}

}  // namespace

TEST_CASE(
    "FAULTS 4, 5: any errno at any file call, once or for ever: an I/O error, intact, and the next run completes") {
  std::vector<int> errors = {EIO, ENOSPC, EDQUOT, EROFS, EACCES, EFBIG, ENOMEM, EMFILE};
  if (kIsSlowBuild) errors.resize(2);
  // Each call meets some errors, once or for ever, and its neighbours others.
  const int64_t every = stride(kIsSlowBuild ? 2 : 5);
  int64_t num_faults = 0, shift = 0;
  for (const Start& start : make_starts()) {
    CAPTURE(start.name);
    const Matrix matrix(start);
    for (const int error : errors)
      for (const bool forever : {false, true})
        for (int64_t at = 1 + shift++ % every; at <= matrix.num_calls(); at += every) {
          FaultyFileOps ops;
          ops.any_fault = {.at = at, .error = error, .forever = forever};
          const Status status = matrix.run(ops);
          ++num_faults;
          REQUIRE(ops.failed_call());
          CAPTURE(at);
          CAPTURE(error);
          CAPTURE(forever);
          CAPTURE(static_cast<int>(*ops.failed_call()));
          CAPTURE(status.message());
          if (status.ok()) {
            CHECK(may_be_survived(*ops.failed_call()));
            matrix.check_complete();
          } else {
            CHECK(status.code() == StatusCode::kIoError);
            matrix.check_intact();
            matrix.check_recovers();
          }
        }
  }
  MESSAGE(num_faults << " faults");
}

TEST_CASE("FAULTS 4: two calls that fail in one run never cost what an earlier run wrote") {
  const Matrix matrix(make_starts()[1]);
  const FileCall calls[] = {FileCall::kOpen,  FileCall::kRead, FileCall::kFlock,
                            FileCall::kFstat, FileCall::kStat, FileCall::kUnlink};
  const auto last_call = [](FileCall call) { return call == FileCall::kStat ? 16 : 4; };
  const int64_t every = stride(5);
  int64_t num_cells = 0;
  for (const FileCall first : calls)
    for (const FileCall second : calls)
      for (int64_t first_at = 1; first_at <= last_call(first); ++first_at)
        for (int64_t second_at = 1; second_at <= last_call(second); ++second_at) {
          if (num_cells++ % every != 0) continue;
          CAPTURE(static_cast<int>(first));
          CAPTURE(first_at);
          CAPTURE(static_cast<int>(second));
          CAPTURE(second_at);
          FaultyFileOps ops;
          ops.faults = {{first, first_at, EIO}, {second, second_at, EIO}};
          if (const Status status = matrix.run(ops); !status.ok()) CHECK(status.code() == StatusCode::kIoError);
          matrix.check_intact();
          matrix.check_recovers();
        }
}

TEST_CASE("FAULTS 3: a tail torn at every byte of the last three records, also one of NULs, is all that is dropped") {
  const Matrix matrix(make_starts()[2]);
  const std::string whole = matrix.start_file("out.jsonl.partial");
  size_t third = whole.size();
  for (int i = 0; i < 3; ++i) third = whole.rfind('\n', third - 2) + 1;
  REQUIRE(third > 0);
  for (size_t size = third; size <= whole.size(); ++size)
    for (const size_t num_nuls : {0, 1, 5000}) {
      CAPTURE(size);
      CAPTURE(num_nuls);
      const size_t num_whole = size == 0 ? 0 : whole.rfind('\n', size - 1) + 1;
      matrix.resume_from(whole.substr(0, size) + std::string(num_nuls, '\0'));
      CHECK(read_file(matrix.output()).starts_with(whole.substr(0, num_whole)));
    }
}

TEST_CASE("FAULTS 4: a disk that fills up at any byte cuts no record") {
  const std::vector<Start> starts = make_starts();
  for (const Start* start : {&starts[0], &starts[kFirstOfRows]}) {
    CAPTURE(start->name);
    const Matrix matrix(*start);
    for (int64_t bytes = 0;; bytes += 7) {
      FaultyFileOps ops;
      ops.disk_bytes = bytes;
      const Status status = matrix.run(ops);
      if (status.ok()) break;
      CAPTURE(bytes);
      CHECK(status.code() == StatusCode::kIoError);
      matrix.check_intact();
      matrix.check_recovers();
    }
  }
}

TEST_CASE("FAULTS 4: short reads and writes and storms of EINTR are invisible") {
  for (const Start& start : make_starts()) {
    CAPTURE(start.name);
    const Matrix matrix(start);
    for (const size_t max_io_bytes : {size_t{1}, size_t{7}, SIZE_MAX})
      for (const int num_interrupts : {0, 1, 5}) {
        FaultyFileOps ops;
        ops.max_io_bytes = max_io_bytes;
        ops.num_interrupts = num_interrupts;
        const Status status = matrix.run(ops);
        CHECK_MESSAGE(status.ok(), status.message());
        matrix.check_complete();
      }
  }
}

TEST_CASE("FAULTS 2: killed at every file call, and again during recovery, and again during that") {
  // All pairs of calls would be their number squared, all triples cubed: each first death meets some of the second
  // ones, shifted from one first death to the next.
  const int64_t every = kIsSlowBuild ? 41 : 5 * stride(5);
  int64_t num_deaths = 0;
  for (const Start& start : make_starts()) {
    CAPTURE(start.name);
    const Matrix matrix(start);
    for (int64_t first = 1; first <= matrix.num_calls(); ++first) {
      bool second_died = true;
      for (int64_t second = 1 + first % every; second_died; second += every) {
        CAPTURE(first);
        CAPTURE(second);
        const size_t torn_bytes = 40 * (first % 4);
        FaultyFileOps dying, recovering, recovering_again;
        dying.any_fault = {.at = first, .torn_bytes = torn_bytes};
        (void)matrix.run(dying);
        recovering.any_fault = {.at = second, .torn_bytes = torn_bytes};
        (void)matrix.run_again(recovering);
        second_died = recovering.failed_call().has_value();
        recovering_again.any_fault = {.at = 1 + (7 * first + 3 * second) % matrix.num_calls(), .torn_bytes = 1};
        (void)matrix.run_again(recovering_again);
        matrix.check_kept();
        num_deaths += 1 + second_died + recovering_again.failed_call().has_value();
        matrix.check_recovers();
      }
    }
  }
  MESSAGE(num_deaths << " deaths");
}

TEST_CASE("the disk that loses power keeps names and bytes only where they were synced") {
  const TemporaryDirectory dir(/*in_memory=*/true);
  write_file(dir.file("old"), "was there");
  PowerLossFileOps disk(dir.path(), real_file_ops());
  using Files = PowerLossFileOps::Files;
  const int fd = disk.open(dir.file("new").c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
  REQUIRE(disk.write(fd, "abc", 3) == 3);
  CHECK(disk.after(PowerLoss::kNothingUnsynced) == Files{{"old", "was there"}});
  CHECK(disk.after(PowerLoss::kNamesOnly) == Files{{"new", ""}, {"old", "was there"}});
  CHECK(disk.after(PowerLoss::kSizesOnly) == Files{{"new", std::string(3, '\0')}, {"old", "was there"}});
  REQUIRE(disk.fdatasync(fd) == 0);
  REQUIRE(disk.write(fd, "d", 1) == 1);
  CHECK(disk.after(PowerLoss::kNothingUnsynced) == Files{{"old", "was there"}});
  CHECK(disk.after(PowerLoss::kNamesOnly) == Files{{"new", "abc"}, {"old", "was there"}});
  REQUIRE(disk.rename(dir.file("new").c_str(), dir.file("old").c_str()) == 0);
  CHECK(disk.after(PowerLoss::kNothingUnsynced) == Files{{"old", "was there"}});
  CHECK(disk.after(PowerLoss::kSizesOnly) == Files{{"old", std::string("abc\0", 4)}});
  REQUIRE(sync_directory_of(disk, dir.file("old")).ok());
  CHECK(disk.after(PowerLoss::kNothingUnsynced) == Files{{"old", "abc"}});
  disk.close(fd);
}

TEST_CASE(
    "FAULTS 2, 5: power that goes at any file call costs at most what was not synced, and never a job that said ok") {
  int64_t num_losses = 0;
  for (const Start& start : make_starts()) {
    CAPTURE(start.name);
    const Matrix matrix(start);
    for (const PowerLoss kind : {PowerLoss::kNothingUnsynced, PowerLoss::kNamesOnly, PowerLoss::kSizesOnly})
      for (int64_t at = 1; at <= matrix.num_calls() + 1; ++at) {
        CAPTURE(static_cast<int>(kind));
        CAPTURE(at);
        FaultyFileOps dying;
        dying.any_fault = {.at = at, .torn_bytes = static_cast<size_t>(40 * (at % 4))};
        Status status;
        matrix.directory().restore(matrix.run_into_power_loss(dying, kind, &status));
        ++num_losses;
        matrix.check_kept();
        if (at > matrix.num_calls()) {
          CHECK_MESSAGE(status.ok(), status.message());
          matrix.check_complete();
        }
        matrix.check_recovers();
      }
  }
  MESSAGE(num_losses << " losses");
}

}  // namespace llmb::test
