// Packed weights kept in a file: what is mapped is what was written, and whatever is wrong with the file, weights are
// the same as without it.
#include "backend/cpu/weight_cache.h"

#include <doctest/doctest.h>

#include <fcntl.h>
#include <sys/file.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/content_hash.h"
#include "tests/support/faulty_file_ops.h"
#include "tests/support/file_changes.h"
#include "tests/support/process.h"
#include "tests/support/temp_dir.h"

namespace llmb::test {
namespace {

namespace fs = std::filesystem;

const std::string kKey = "quantization none\nsome files\n";

// In the place of a file that nobody may write to.
void replace_content(const std::string& path, const std::string& content) {
  fs::remove(path);
  write_file(path, content);
}

std::vector<std::string> some_sections() {
  std::vector<std::string> sections;
  for (const size_t size : {1, 63, 64, 65, 1 << 20, (1 << 20) + 1, 300'000}) {
    std::string& section = sections.emplace_back(size, '\0');
    for (size_t i = 0; i < size; ++i) section[i] = static_cast<char>(i * 31 + i / 251 + size);
  }
  return sections;
}

Status write(const std::string& path, const std::vector<std::string>& sections, FileOps& ops = real_file_ops()) {
  std::vector<std::span<const uint8_t>> spans;
  for (const std::string& s : sections) spans.emplace_back(reinterpret_cast<const uint8_t*>(s.data()), s.size());
  return write_weight_cache(path, kKey, spans, ops);
}

bool holds(CachedWeights& weights, const std::vector<std::string>& sections) {
  for (const std::string& section : sections) {
    const uint8_t* at = weights.take(static_cast<int64_t>(section.size()));
    if (at == nullptr || reinterpret_cast<uintptr_t>(at) % 64 != 0) return false;
    if (std::memcmp(at, section.data(), section.size()) != 0) return false;
  }
  return weights.is_used_up();
}

StatusCode code_of_open(const std::string& path, ThreadPool& pool) {
  return CachedWeights::open(path, kKey, pool).status().code();
}

}  // namespace

TEST_CASE("what was written is read, section by section, and no more than that") {
  ThreadPool pool(2);
  const TempDir dir;
  const std::string path = dir / "a/b/w.packed";  // directories are made
  const auto sections = some_sections();
  CHECK(code_of_open(path, pool) == StatusCode::kNotFound);
  REQUIRE(write(path, sections).ok());
  CHECK(!fs::exists(path + ".tmp"));
  auto weights = CachedWeights::open(path, kKey, pool);
  REQUIRE(weights.ok());
  CHECK(holds(*weights, sections));
  CHECK(weights->take(1) == nullptr);
  CHECK(!weights->is_used_up());
  auto again = CachedWeights::open(path, kKey, pool);
  REQUIRE(again.ok());
  CHECK(!again->is_used_up());
  CHECK(again->take(INT64_MAX) == nullptr);
  CHECK(again->take(1) == nullptr);
  CHECK(CachedWeights::open(path, kKey + "x", pool).status().code() == StatusCode::kNotFound);
  CHECK(CachedWeights::open(path, "q" + kKey.substr(1, kKey.size() - 2) + "!", pool).status().code() ==
        StatusCode::kNotFound);
  REQUIRE(write(dir / "none", {}).ok());
  auto none = CachedWeights::open(dir / "none", kKey, pool);
  REQUIRE(none.ok());
  CHECK(none->is_used_up());
}

TEST_CASE("a file that was cut, lengthened, or changed by a bit anywhere is refused") {
  ThreadPool pool(2);
  const TempDir dir;
  const std::string path = dir / "w";
  REQUIRE(write(path, {std::string(100, 'a'), std::string((1 << 20) + 7, 'b')}).ok());
  const std::string good = read_file(path);
  std::vector<size_t> places;
  for (size_t i = 0; i < 200; ++i) places.push_back(i);  // the header, and zeros after it
  for (size_t i = 4096; i < good.size(); i += 40'009) places.push_back(i);
  places.push_back(good.size() - 1);
  for (const size_t size : places) {
    CAPTURE(size);
    replace_content(path, good.substr(0, size));
    CHECK(code_of_open(path, pool) != StatusCode::kOk);
  }
  replace_content(path, good + '\0');
  CHECK(code_of_open(path, pool) == StatusCode::kDataLoss);
  const size_t header_end = 24 + kKey.size() + 2 * 8 + 8;
  for (const size_t place : places) {
    if (place >= header_end && place < 4096) continue;  // nobody looks at what lies between
    CAPTURE(place);
    for (const int bit : {0, 7}) {
      std::string bad = good;
      bad[place] = static_cast<char>(bad[place] ^ (1 << bit));
      replace_content(path, bad);
      CHECK(code_of_open(path, pool) != StatusCode::kOk);
    }
  }
  // Sizes that a forger chose, with a hash that fits.
  for (const uint64_t payload :
       {uint64_t{0}, uint64_t{1} << 20, uint64_t{1} << 62, ~uint64_t{0}, ~uint64_t{0} - 4095}) {
    CAPTURE(payload);
    std::string bad = good;
    std::memcpy(bad.data() + 16, &payload, 8);
    const uint64_t hash = content_hash(bad.substr(0, header_end - 8));
    std::memcpy(bad.data() + header_end - 8, &hash, 8);
    replace_content(path, bad);
    CHECK(code_of_open(path, pool) == StatusCode::kDataLoss);
  }
  fs::remove(path);
  fs::create_directory(path);
  CHECK(code_of_open(path, pool) == StatusCode::kIoError);
}

TEST_CASE("FAULTS 42: what is mapped does not change unnoticed, however it is written to; what is copied does not change") {
  ThreadPool pool(2);
  const TempDir dir;
  const std::string path = dir / "w", other = dir / "other";
  const auto sections = some_sections();
  const auto open_after_rest = [&] {
    fs::remove(path);
    REQUIRE(write(path, sections).ok());
    let_rest(path);
    auto weights = CachedWeights::open(path, kKey, pool);
    REQUIRE(weights.ok());
    CHECK(weights->is_mapped() == (change_times_at(path) == ChangeTimes::kAtOnce));
    CHECK(holds(*weights, sections));
    CHECK(weights->check(pool).ok());
    return std::move(*weights);
  };
  // The same bytes again, in a file of the name's own, or under other modes.
  const std::function<void()> harmless[] = {
      [&] { ::chmod(path.c_str(), 0640); },
      [&] { REQUIRE(write(path, {"another model's"}).ok()); },
      [&] { fs::remove(path); },
      [&] { fs::rename(path, other); },
  };
  for (size_t i = 0; i < std::size(harmless); ++i) {
    CAPTURE(i);
    CachedWeights weights = open_after_rest();
    harmless[i]();
    const Status status = weights.check(pool);
    CHECK_MESSAGE(status.ok(), status.message());
    CHECK(weights.check(pool).ok());
  }
  const std::function<void()> harmful[] = {
      [&] { flip_byte(path, 1'000'000); },        [&] { flip_byte_unseen(path, 1'000'000); },
      [&] { flip_byte_mapped(path, 1'000'000); }, [&] { cut_file(path, 0); },
      [&] { cut_file(path, 1'000'000); },         [&] { write_file(path, std::string(3'000'000, 'x')); },
  };
  for (size_t i = 0; i < std::size(harmful); ++i) {
    CAPTURE(i);
    CachedWeights weights = open_after_rest();
    ::chmod(path.c_str(), 0644);
    CHECK(weights.check(pool).ok());
    harmful[i]();
    const Status status = weights.check(pool);
    CHECK(status.ok() == !weights.is_mapped());
    if (status.ok()) continue;
    CHECK(status.code() == StatusCode::kDataLoss);
    CHECK(status.message().starts_with(path + ": "));
    CHECK_FALSE(weights.check(pool).ok());
  }
}

TEST_CASE("a file that is written a moment ago is copied, and one that nobody may write to is made") {
  ThreadPool pool(2);
  const TempDir dir;
  const std::string path = dir / "w";
  const auto sections = some_sections();
  REQUIRE(write(path, sections).ok());
  CHECK((fs::status(path).permissions() & fs::perms(0222)) == fs::perms::none);
  fs::permissions(path, fs::perms::owner_write, fs::perm_options::add);  // its times are those of this moment
  struct stat st {};
  auto weights = CachedWeights::open(path, kKey, pool);
  REQUIRE(weights.ok());
  REQUIRE(stat(path.c_str(), &st) == 0);
  if (!is_young(identity_of(st), ChangeTimes::kAtOnce)) return;  // a machine that is too slow to tell
  CHECK_FALSE(weights->is_mapped());
  CHECK(holds(*weights, sections));
  for (size_t at = 4096; at < fs::file_size(path); at += 10'000) flip_byte(path, at);
  CHECK(weights->check(pool).ok());
  CHECK(code_of_open(path, pool) == StatusCode::kDataLoss);
}

TEST_CASE("whichever file call fails while the file is written, the old one stays and nothing else is left") {
  ThreadPool pool(1);
  const TempDir dir;
  const std::string path = dir / "w";
  const std::vector<std::string> before = {"before"}, after = {std::string(3 << 20, 'x'), "after"};
  for (const FileCall call : {FileCall::kOpen, FileCall::kFlock, FileCall::kFtruncate, FileCall::kWrite,
                              FileCall::kFsync, FileCall::kRename}) {
    for (const int64_t at : {1, 2}) {
      CAPTURE(static_cast<int>(call));
      CAPTURE(at);
      REQUIRE(write(path, before).ok());
      FaultyFileOps ops;
      ops.faults = {{call, at, ENOSPC, true}};
      const Status status = write(path, after, ops);
      const bool has_failed = ops.count(call) >= at;
      CHECK(status.ok() != has_failed);
      // Without its lock the file may be another's.
      CHECK(fs::exists(path + ".tmp") == (has_failed && call == FileCall::kFlock));
      auto weights = CachedWeights::open(path, kKey, pool);
      REQUIRE(weights.ok());
      // Only to sync the directory comes after the renaming.
      const bool is_renamed =
          !has_failed || (call == FileCall::kFsync && at == 2) || (call == FileCall::kOpen && at == 2);
      CHECK(holds(*weights, is_renamed ? after : before));
      fs::remove(path + ".tmp");
    }
  }
  FaultyFileOps full;
  full.disk_bytes = 1 << 20;
  REQUIRE(write(path, before).ok());
  CHECK(!write(path, after, full).ok());
  CHECK(fs::file_size(path) < 10'000);
  CHECK(!fs::exists(path + ".tmp"));
  FaultyFileOps slow;
  slow.max_io_bytes = 1000;
  slow.num_interrupts = 2;
  CHECK(write(path, after, slow).ok());
  auto weights = CachedWeights::open(path, kKey, pool);
  REQUIRE(weights.ok());
  CHECK(holds(*weights, after));
}

TEST_CASE("where two processes would write the file, one does, and what a killed one left is used again") {
  ThreadPool pool(1);
  const TempDir dir;
  const std::string path = dir / "w";
  write_file(path + ".tmp", std::string(10'000, 'z'));  // left behind
  {
    const int fd = real_file_ops().open((path + ".tmp").c_str(), O_RDWR, 0);
    REQUIRE(real_file_ops().flock(fd, LOCK_EX) == 0);
    CHECK(write(path, {"mine"}).ok());
    CHECK(!fs::exists(path));
    CHECK(fs::file_size(path + ".tmp") == 10'000);
    real_file_ops().close(fd);
  }
  CHECK(write(path, {"mine"}).ok());
  // Another process is done between our opening and our locking: then the name is not ours to write to.
  FaultyFileOps ops;
  ops.before_call = [&, done = false](FileCall call) mutable {
    if (call != FileCall::kFlock || done) return;
    done = true;
    CHECK(write(path, {"theirs"}).ok());
  };
  CHECK(write(path, {"late"}, ops).ok());
  auto weights = CachedWeights::open(path, kKey, pool);
  REQUIRE(weights.ok());
  CHECK(holds(*weights, {"theirs"}));
}

TEST_CASE("the name tells directories and formats apart") {
  CHECK(weight_cache_path("d", "/m/a", Quantization::kNone) != weight_cache_path("d", "/n/a", Quantization::kNone));
  CHECK(weight_cache_path("d", "/m/a", Quantization::kNone) != weight_cache_path("d", "/m/a", Quantization::kInt4));
  CHECK(weight_cache_path("d", "/m/a", Quantization::kNone) ==
        weight_cache_path("d", "/m/x/../a", Quantization::kNone));
  CHECK(weight_cache_path("d", "/m/\n\x1b", Quantization::kInt8).find_first_of("\n\x1b") == std::string::npos);
}

}  // namespace llmb::test
