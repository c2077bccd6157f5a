#include "base/mapped_file.h"

#include <doctest/doctest.h>

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/file_changes.h"
#include "tests/support/process.h"
#include "tests/support/temp_dir.h"

namespace llmb {

namespace {

constexpr int kUnguarded = 42;
// There before the first guard of this process.
[[maybe_unused]] const auto g_before = ::signal(SIGBUS, [](int) { _exit(kUnguarded); });

}  // namespace

TEST_CASE("pages of a mapped file that are given up leave the process, and can be read again") {
  const auto resident_kib = [] {  // of mapped files
    std::ifstream status("/proc/self/status");
    for (std::string line; std::getline(status, line);)
      if (line.starts_with("RssFile:")) return std::stol(line.substr(8));
    return 0L;
  };
  const test::TempDir dir;
  std::string bytes(8 << 20, '\0');
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(i * 7 + i / 4096);
  std::ofstream(dir / "f", std::ios::binary) << bytes;
  const auto file = MappedFile::open(dir / "f");
  REQUIRE(file.ok());
  const auto is_same = [&] { return std::memcmp(file->data(), bytes.data(), bytes.size()) == 0; };
  CHECK(file->contains(file->data()));
  CHECK(file->contains(file->data() + bytes.size() - 1));
  CHECK(!file->contains(file->data() + bytes.size()));
  CHECK(is_same());
  const long before = resident_kib();
  file->release_pages(file->data() + 1, 4096);  // no whole page
  file->release_pages(file->data() + 1, bytes.size() - 1);
  CHECK(resident_kib() <= before - (7 << 10));
  CHECK(is_same());
}

TEST_CASE("FAULTS 41: a mapped file that is cut short reads as zeros, by any number of threads, and says so") {
  const test::TempDir dir;
  const std::string path = dir / "f";
  for (const size_t left : {size_t{0}, size_t{1}, size_t{4096}, size_t{1} << 20}) {
    CAPTURE(left);
    const std::string bytes(4 << 20, 'x');
    test::write_file(path, bytes);
    const auto file = MappedFile::open(path), whole = MappedFile::open(path);
    REQUIRE(file.ok());
    CHECK(file->data()[bytes.size() - 1] == 'x');
    CHECK(file->still_readable().ok());
    test::cut_file(path, static_cast<off_t>(left));
    std::vector<uint64_t> sums(4);
    std::vector<std::thread> threads;
    for (uint64_t& sum : sums)
      threads.emplace_back([&] { sum = std::accumulate(file->data(), file->data() + bytes.size(), uint64_t{0}); });
    for (std::thread& thread : threads) thread.join();
    for (const uint64_t sum : sums) CHECK(sum < bytes.size() * 'x');
    CHECK(file->still_readable().code() == StatusCode::kDataLoss);
    CHECK(file->still_readable().message().starts_with(path + ": "));
    CHECK(file->data()[0] == 0);          // all of it: nothing of a lost file looks whole
    CHECK(whole->still_readable().ok());  // nobody has touched a missing page
  }
  test::write_file(path, "new");
  CHECK(MappedFile::open(path)->still_readable().ok());
}

TEST_CASE("a moved mapping stays guarded, and one that is gone leaves its place to others") {
  const test::TempDir dir;
  const std::string path = dir / "f";
  test::write_file(path, std::string(10'000, 'x'));
  std::vector<MappedFile> files;
  for (int i = 0; i < MappingGuard::kMaxGuards; ++i) {
    auto file = MappedFile::open(path);
    REQUIRE(file.ok());
    files.push_back(std::move(*file));
  }
  CHECK(MappedFile::open(path).status().code() == StatusCode::kIoError);
  files.pop_back();
  CHECK(MappedFile::open(path).ok());
  test::cut_file(path, 0);
  CHECK(files[77].data()[9999] == 0);
  CHECK_FALSE(files[77].still_readable().ok());
  CHECK(files[78].still_readable().ok());
}

TEST_CASE("a page that nobody guards, and a signal that somebody sends, reach the handler that was there before") {
  const test::TempDir dir;
  const std::string path = dir / "f";
  test::write_file(path, std::string(10'000, 'x'));
  const auto exit_code_of = [](const auto& body) {
    const pid_t child = fork();
    if (child == 0) {
      body();
      _exit(1);
    }
    int status = 0;
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  };
  const auto read_unguarded = [&] {
    const auto guarded = MappedFile::open(path);
    const int fd = ::open(path.c_str(), O_RDONLY);
    const auto* data = static_cast<const volatile char*>(mmap(nullptr, 10'000, PROT_READ, MAP_SHARED, fd, 0));
    test::cut_file(path, 0);
    _exit(data[5000] == 0 && guarded.ok() ? 2 : 3);
  };
  CHECK(exit_code_of(read_unguarded) == kUnguarded);
  CHECK(exit_code_of([&] {
          const auto guarded = MappedFile::open(path);
          raise(SIGBUS);
        }) == kUnguarded);
}

}  // namespace llmb
