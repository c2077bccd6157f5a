// The n-th opening of a file or a directory fails. Interrupted by a signal it is tried again; for want of descriptors
// or memory the run ends with 6 or 10, never with a word against the file: FAULTS row 41. The program runs in a child
// process in which this file's open() and opendir() stand before the C library's.
#include <dirent.h>
#include <dlfcn.h>
#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <filesystem>
#include <new>

#include "tests/e2e/run_in_child.h"

namespace {

// Shared with the child.
struct OpenFault {
  std::atomic<int64_t> num_opens{0};
  std::atomic<int64_t> fail_at{-1};  // counted from 0; < 0: before and after the run
  std::atomic<int> error{0};
};

OpenFault& fault() {
  static OpenFault* const shared =
      new (mmap(nullptr, sizeof(OpenFault), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0)) OpenFault;
  return *shared;
}

bool open_fails() {
  if (fault().fail_at.load() < 0 || fault().num_opens.fetch_add(1) != fault().fail_at.load()) return false;
  errno = fault().error.load();
  return true;
}

}  // namespace

extern "C" int open(const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = (flags & O_CREAT) != 0 ? va_arg(arguments, mode_t) : 0;
  va_end(arguments);
  return open_fails() ? -1 : static_cast<int>(syscall(SYS_openat, AT_FDCWD, path, flags, mode));
}

extern "C" DIR* opendir(const char* path) {
  static const auto real = reinterpret_cast<DIR* (*)(const char*)>(dlsym(RTLD_NEXT, "opendir"));
  return open_fails() ? nullptr : real(path);
}

namespace llmb::test {

namespace fs = std::filesystem;

namespace {

constexpr int64_t kNone = INT64_MAX;

struct OpenJob {
  TemporaryDirectory dir{/*in_memory=*/true};
  std::string in = dir.file("in.jsonl"), out = dir.file("out.jsonl");

  OpenJob() {
    write_file(in, R"({"prompt":"Once upon a time","max_tokens":3}
{"messages":[{"role":"user","content":"What is 7 + 8?"}],"max_tokens":3}
{"prompt":5}
)");
  }

  ProcessResult run(const std::string& device, int64_t fail_at, int error) const {
    const auto begin = [&] {
      fault().num_opens = 0;
      fault().error = error;
      fault().fail_at = fail_at;
    };
    const ProcessResult result =
        run_in_child({in, "-o", out, "--device", device, "--no-metrics", "--error-file", dir.file("errors.jsonl")},
                     make_backend, begin)
            .process;
    fault().fail_at = -1;
    return result;
  }
  void clear() const {
    for (const auto& entry : fs::directory_iterator(dir.path()))
      if (entry.path() != in) fs::remove(entry.path());
  }
};

}  // namespace

TEST_CASE("FAULTS 41: an open that fails once is tried again after a signal, else the run ends with 6 or 10") {
  for (const char* device : {"ledger", "cpu"}) {
    const OpenJob job;
    fault();  // before there is a child to share it with
    REQUIRE(job.run(device, kNone, 0).exit_code == 3);
    const int64_t num_opens = fault().num_opens;
    const std::string expected = stable_output(read_file(job.out));
    CHECK(num_opens > 10);
    for (const int error : {EINTR, EMFILE, ENOMEM})
      for (int64_t at = 0; at < num_opens; ++at) {
        CAPTURE(device);
        CAPTURE(error);
        CAPTURE(at);
        job.clear();
        const ProcessResult result = job.run(device, at, error);
        INFO(result.err);
        const bool is_complete = result.exit_code == 3;
        CHECK((is_complete || (error != EINTR && (result.exit_code == 6 || result.exit_code == 10))));
        const int again = is_complete ? 3 : job.run(device, kNone, 0).exit_code;
        CHECK((again == 3 || again == 0));  // 0: all was done but for the last sync
        CHECK(stable_output(read_file(job.out)) == expected);
      }
  }
}

}  // namespace llmb::test
