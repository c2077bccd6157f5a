// Memory that cannot be had, at any allocation of a run: FAULTS row 26. The program runs in a child process in which
// the n-th allocation of all threads together fails, once: it ends with 10, or as if nothing had been; it never
// crashes, hangs or leaks (under LeakSanitizer), and the same command completes the job. LLMB_NUM_ALLOCATIONS=100000
// fails so many.
#include <doctest/doctest.h>
#include <malloc.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <new>
#include <random>
#include <set>

#include "base/thread_pool.h"
#include "chat/chat_template_files.h"
#include "tests/e2e/run_in_child.h"
#include "tests/support/skip.h"
#include "tokenizer/tokenizer.h"

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/lsan_interface.h>
#endif

namespace {

std::atomic<int64_t> g_num_allocations{0};
std::atomic<int64_t> g_fail_at{-1};              // counted from 0
std::atomic<size_t> g_fail_from_size{SIZE_MAX};  // every allocation of so many bytes
std::atomic<int64_t> g_live_bytes{0}, g_peak_bytes{0}, g_max_live_bytes{INT64_MAX};

bool allocation_fails(size_t size) {
  if (size >= g_fail_from_size.load(std::memory_order_relaxed)) return true;
  if (g_live_bytes.load(std::memory_order_relaxed) + static_cast<int64_t>(size) >
      g_max_live_bytes.load(std::memory_order_relaxed))
    return true;
  if (g_fail_at.load(std::memory_order_relaxed) < 0) return false;
  return g_num_allocations.fetch_add(1, std::memory_order_relaxed) == g_fail_at.load(std::memory_order_relaxed);
}

}  // namespace

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
// The sanitizers own malloc; what is allocated by new still passes here.
namespace {
void* allocate(size_t size, size_t alignment) {
  if (allocation_fails(size)) return nullptr;
  void* memory = nullptr;
  return posix_memalign(&memory, std::max(alignment, sizeof(void*)), size == 0 ? 1 : size) == 0 ? memory : nullptr;
}
void* allocate_or_throw(size_t size, size_t alignment) {
  while (true) {  // as new does it: what the program keeps in reserve is given up by its handler
    if (void* const memory = allocate(size, alignment)) return memory;
    const std::new_handler handler = std::get_new_handler();
    if (handler == nullptr) throw std::bad_alloc();
    handler();
  }
}
constexpr size_t kDefault = alignof(std::max_align_t);
// Not inlined: GCC takes free() for a mistake where it sees the new that it belongs to.
[[gnu::noinline]] void release(void* memory) noexcept { free(memory); }
}  // namespace
void* operator new(size_t size) { return allocate_or_throw(size, kDefault); }
void* operator new[](size_t size) { return allocate_or_throw(size, kDefault); }
void* operator new(size_t size, const std::nothrow_t&) noexcept { return allocate(size, kDefault); }
void* operator new[](size_t size, const std::nothrow_t&) noexcept { return allocate(size, kDefault); }
void* operator new(size_t size, std::align_val_t a) { return allocate_or_throw(size, static_cast<size_t>(a)); }
void* operator new[](size_t size, std::align_val_t a) { return allocate_or_throw(size, static_cast<size_t>(a)); }
void operator delete(void* memory) noexcept { release(memory); }
void operator delete[](void* memory) noexcept { release(memory); }
void operator delete(void* memory, size_t) noexcept { release(memory); }
void operator delete[](void* memory, size_t) noexcept { release(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { release(memory); }
void operator delete[](void* memory, std::align_val_t) noexcept { release(memory); }
void operator delete(void* memory, size_t, std::align_val_t) noexcept { release(memory); }
void operator delete[](void* memory, size_t, std::align_val_t) noexcept { release(memory); }
#else
// All of the process: new, and the libraries in C.
extern "C" {
void* __libc_malloc(size_t size);
void* __libc_calloc(size_t count, size_t size);
void* __libc_realloc(void* memory, size_t size);
void __libc_free(void* memory);

static void* counted(void* memory) {
  const auto size = static_cast<int64_t>(malloc_usable_size(memory));
  const int64_t live = g_live_bytes.fetch_add(size, std::memory_order_relaxed) + size;
  for (int64_t peak = g_peak_bytes.load(); live > peak && !g_peak_bytes.compare_exchange_weak(peak, live);) {
  }
  return memory;
}
static void* failed() {
  errno = ENOMEM;
  return nullptr;
}
static void forget(void* memory) {
  g_live_bytes.fetch_sub(static_cast<int64_t>(malloc_usable_size(memory)), std::memory_order_relaxed);
}

void* malloc(size_t size) { return allocation_fails(size) ? failed() : counted(__libc_malloc(size)); }
void* calloc(size_t count, size_t size) {
  return allocation_fails(count * size) ? failed() : counted(__libc_calloc(count, size));
}
void* realloc(void* memory, size_t size) {
  if (allocation_fails(size)) return failed();
  forget(memory);
  return counted(__libc_realloc(memory, size));
}
void free(void* memory) {
  forget(memory);
  __libc_free(memory);
}
}
#endif

namespace llmb::test {

namespace fs = std::filesystem;

namespace {

// Every form of line, one of them an error.
std::string make_lines() {
  std::string text;
  for (int i = 0; i < 4; ++i)
    text += R"({"prompt":"Once upon a time )" + std::to_string(i) + R"(","max_tokens":5,"logprobs":true}
{"messages":[{"role":"user","content":"What is 7 + 8?"}],"max_tokens":6,"stop":["x"]}
{"prompt_token_ids":[1,2,3],"max_tokens":4,"temperature":0.7,"seed":5}
{"custom_id":"a","method":"POST","url":"/v1/completions","body":{"model":"m","prompt":"Tale","max_tokens":3}}
{"prompt":5}
)";
  return text;
}

// Ends the process where there are some.
void check_leaks() {
#ifdef __SANITIZE_ADDRESS__
  __lsan_do_leak_check();
#endif
}

struct Job {
  TemporaryDirectory dir{/*in_memory=*/true};
  std::string in = dir.file("in.jsonl"), out = dir.file("out.jsonl");

  Job() { write_file(in, make_lines()); }

  // The exit code of main(). fail_at < 0: nothing fails. more_bytes: beyond what the test has at the start.
  int run(const std::string& device, int64_t fail_at, size_t fail_from_size = SIZE_MAX,
          int64_t more_bytes = INT64_MAX) const {
    const pid_t child = fork();
    if (child == 0) {
      const int err = open(dir.file("err").c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
      dup2(err, STDERR_FILENO);
      for (const int number : {SIGABRT, SIGSEGV, SIGTERM}) signal(number, SIG_DFL);  // not the test's own
      alarm(kProcessTimeoutSeconds);  // where it hangs
      g_num_allocations = 0;
      g_fail_at = fail_at < 0 ? INT64_MAX : fail_at;
      g_fail_from_size = fail_from_size;
      const int64_t before_bytes = g_live_bytes;
      g_peak_bytes = before_bytes;
      if (more_bytes < INT64_MAX) g_max_live_bytes = before_bytes + more_bytes;
      const int code = run_main(device);
      const int64_t count = g_num_allocations, peak_bytes = g_peak_bytes - before_bytes;
      g_fail_at = -1;
      g_fail_from_size = SIZE_MAX;
      g_max_live_bytes = INT64_MAX;
      write_file(dir.file("count"), std::to_string(count));
      write_file(dir.file("peak"), std::to_string(peak_bytes));
      check_leaks();
      _exit(code);
    }
    int status = 0;
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }

  // After a run that ended with 10.
  void check_completed_by_next(const std::string& device) const {
    CHECK(!fs::exists(out));  // a complete output keeps its own exit code
    CHECK(run(device, -1) == 3);
  }

  void clear() const {
    for (const auto& entry : fs::directory_iterator(dir.path()))
      if (entry.path().filename() != "in.jsonl") fs::remove(entry.path());
  }

 private:
  int run_main(const std::string& device) const {
    const char* argv[] = {
        "llm-batch", "-m",       kModel.c_str(), "--device", device.c_str(),    "--progress", "none",
        "--metrics", "none",     "--threads",    "2",        "--max-model-len", "128",        "--max-num-seqs",
        "4",         in.c_str(), "-o",           out.c_str()};
    return run_command_line(static_cast<int>(std::size(argv)), argv);
  }
};

// The first line of `text` that is not the one of `expected`.
std::string first_difference(const std::string& text, const std::string& expected) {
  std::stringstream lines(text), expected_lines(expected);
  std::string line, expected_line;
  while (std::getline(expected_lines, expected_line))
    if (!std::getline(lines, line) || line != expected_line) return line + " for " + expected_line;
  return std::getline(lines, line) ? line : "";
}

int64_t num_failures(int64_t by_default) {
  const char* asked = std::getenv("LLMB_NUM_ALLOCATIONS");
  return asked ? std::strtoll(asked, nullptr, 10) : by_default;
}

// The first ones, where the program comes up, and random ones up to the last.
std::set<int64_t> choose(int64_t num_allocations, int64_t count) {
  std::mt19937_64 random(1);
  std::set<int64_t> chosen;
  for (int64_t i = 0; i < std::min(num_allocations, count / 4); ++i) chosen.insert(i);
  while (static_cast<int64_t>(chosen.size()) < std::min(count, num_allocations)) {
    // Half of them among the last tenth, where the job runs.
    const int64_t from = random() % 2 ? 0 : num_allocations - num_allocations / 10;
    chosen.insert(from + static_cast<int64_t>(random() % static_cast<uint64_t>(num_allocations - from)));
  }
  return chosen;
}

void check_device(const std::string& device, int64_t count) {
  const Job job;
  REQUIRE(job.run(device, -1) == 3);
  const std::string expected = stable_output(read_file(job.out));
  const char* only = std::getenv("LLMB_ALLOCATION");
  if (only) {
    job.clear();
    job.run(device, std::atoll(only));
    return;
  }
  const int64_t num_allocations = std::stoll(read_file(job.dir.file("count")));
  int num_refused = 0;
  for (const int64_t at : choose(num_allocations, count)) {
    job.clear();
    CAPTURE(at);
    const int code = job.run(device, at);
    INFO(read_file(job.dir.file("err")));
    CHECK((code == 10 || code == 3));
    num_refused += code == 10;
    if (code == 10) CHECK(read_file(job.dir.file("err")).find("out of memory") != std::string::npos);
    if (code == 10) job.check_completed_by_next(device);
    CHECK(first_difference(stable_output(read_file(job.out)), expected) == "");
  }
  CHECK(num_refused > count / 4);
  MESSAGE(num_refused << " of " << count << " failed allocations ended the run, of " << num_allocations);
}

}  // namespace

TEST_CASE("FAULTS 26: any allocation that fails ends the run with 10 or is survived; nothing is lost (ledger)") {
  check_device("ledger", num_failures(100));
}

TEST_CASE("FAULTS 26: the same on the CPU") { check_device("cpu", num_failures(160)); }

TEST_CASE("FAULTS 26: a pool whose threads cannot all be started ends those that were") {
  int num_refused = 0;
  for (int64_t fail_at = 0; fail_at < 30; ++fail_at) {
    g_num_allocations = 0;
    g_fail_at = fail_at;
    try {
      const ThreadPool pool(8);
    } catch (const std::exception&) {  // bad_alloc, or system_error where it was the C library's
      ++num_refused;
    }
    g_fail_at = -1;
  }
  CHECK(num_refused >= 7);
}

TEST_CASE("FAULTS 26: any allocation that fails while a text is encoded is an exception") {
  int num_refused = 0;
  for (int64_t fail_at = 0; fail_at < 200; ++fail_at) {
    const auto tokenizer = Tokenizer::load(kModel);  // which has nothing in reserve yet
    g_num_allocations = 0;
    g_fail_at = fail_at;
    try {
      (*tokenizer)->encode("What is 12 + 30?", false);
    } catch (const std::bad_alloc&) {
      ++num_refused;
    }
    const bool has_failed = g_num_allocations > fail_at;
    g_fail_at = -1;
    if (!has_failed) break;
  }
  CHECK(num_refused >= 3);
}

TEST_CASE("FAULTS 26: an allocation that fails while chat templates are read is no fault of their files") {
  // As the program's reserve: new tries again, and only what the C library does for itself has failed.
  const std::new_handler before = std::set_new_handler([] {});
  bool has_failed = true;
  for (int64_t fail_at = 0; has_failed; ++fail_at) {
    g_num_allocations = 0;
    g_fail_at = fail_at;
    const Result<ChatTemplateFiles> files = read_chat_template_files(kModel, "");
    has_failed = g_num_allocations > fail_at;
    g_fail_at = -1;
    CAPTURE(fail_at);
    REQUIRE_MESSAGE(files.ok(), files.status().message());
  }
  std::set_new_handler(before);
}

TEST_CASE("FAULTS 26: where large allocations fail for ever, the run ends with 10") {
  for (const char* device : {"ledger", "cpu"})
    for (const size_t size : {size_t{1} << 16, size_t{1} << 18}) {
      CAPTURE(size);
      const Job job;
      CHECK(job.run(device, -1, size) == 10);
      CHECK(read_file(job.dir.file("err")).find("out of memory") != std::string::npos);
      CHECK(!fs::exists(job.out));
      CHECK(job.run(device, -1) == 3);
    }
}

TEST_CASE("FAULTS 26: with any share of the memory that the run would take, it ends with 10, or completes") {
  const Job job;
  REQUIRE(job.run("cpu", -1) == 3);
  const std::string expected = stable_output(read_file(job.out));
  const int64_t peak_bytes = std::stoll(read_file(job.dir.file("peak")));
  if (peak_bytes == 0) {
    skip("the sanitizer owns malloc");
    return;
  }
  int num_refused = 0;
  constexpr int kParts = 40;
  for (int part = 1; part < kParts; ++part) {
    job.clear();
    CAPTURE(part);
    const int code = job.run("cpu", -1, SIZE_MAX, part * peak_bytes / kParts);
    INFO(read_file(job.dir.file("err")));
    CHECK((code == 10 || code == 3));
    num_refused += code == 10;
    if (code == 10) job.check_completed_by_next("cpu");
    CHECK(first_difference(stable_output(read_file(job.out)), expected) == "");
  }
  CHECK(num_refused > kParts / 2);
}

}  // namespace llmb::test
