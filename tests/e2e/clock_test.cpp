// A wall clock that jumps a day at every look: FAULTS row 8. The program runs in a child process of this test, which
// has its own clock_gettime(); all that is measured must come from the steady clock.
#include <doctest/doctest.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <unistd.h>

#include <atomic>
#include <ctime>

#include "tests/e2e/run_in_child.h"

namespace {

constexpr time_t kDay = 24 * 60 * 60;
std::atomic<bool> g_jumps{false};
std::atomic<int> g_num_looks{0};

// A day ahead, a day behind, in turn.
time_t jump() {
  if (!g_jumps.load()) return 0;
  return g_num_looks.fetch_add(1) % 2 == 0 ? kDay : -kDay;
}

}  // namespace

// In place of the C library's, for everything in this process.
extern "C" int clock_gettime(clockid_t clock, timespec* out) noexcept {
  const long result = syscall(SYS_clock_gettime, clock, out);
  if (result == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) out->tv_sec += jump();
  return static_cast<int>(result);
}
extern "C" time_t time(time_t* out) noexcept {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  if (out != nullptr) *out = now.tv_sec;
  return now.tv_sec;
}
extern "C" int gettimeofday(timeval* out, void*) noexcept {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  *out = {now.tv_sec, now.tv_nsec / 1000};
  return 0;
}

namespace llmb::test {

TEST_CASE("FAULTS 8: with a wall clock that jumps a day to and fro, durations are what they are, and resume works") {
  const TemporaryDirectory dir;
  const std::string in = dir.file("in.jsonl"), out = dir.file("out.jsonl");
  std::string text;
  for (int i = 0; i < 20; ++i)
    text += R"({"prompt":"Once upon a time )" + std::to_string(i) + R"(","max_tokens":8,"ignore_eos":true})" + "\n";
  write_file(in, text);
  const auto start_jumping = [] { g_jumps = true; };
  const std::vector<std::string> arguments = {in, "-o", out, "--device", "cpu", "--batching", "dynamic"};
  const ChildResult first = run_in_child(arguments, make_backend, start_jumping);
  REQUIRE_MESSAGE(first.process.exit_code == 0, first.process.err);
  const auto records = parse_lines(read_file(out));
  REQUIRE(records.size() == 20);
  for (const auto& record : records)
    for (const auto& [name, value] : record["metrics"].items()) {
      CHECK_MESSAGE(value.get<double>() >= 0, name);
      CHECK_MESSAGE(value.get<double>() <= 1000 * first.wall_s, name);
    }
  // Nothing new; then new lines; then the model's files as they were.
  CHECK(run_in_child(arguments, make_backend, start_jumping).process.exit_code == 0);
  write_file(in, text + R"({"prompt":"And then","max_tokens":2})"
                        "\n");
  const ChildResult grown = run_in_child(arguments, make_backend, start_jumping);
  CHECK_MESSAGE(grown.process.exit_code == 0, grown.process.err);
  CHECK(parse_lines(read_file(out)).size() == 21);
}

TEST_CASE("the clock of this test does jump, and the steady one does not") {
  g_jumps = true;
  const auto wall_before = std::chrono::system_clock::now(), wall_after = std::chrono::system_clock::now();
  const auto before = std::chrono::steady_clock::now(), after = std::chrono::steady_clock::now();
  g_jumps = false;
  CHECK(std::chrono::abs(wall_before - wall_after) > std::chrono::hours(40));
  CHECK(after - before < std::chrono::hours(1));
  CHECK(after >= before);
}

}  // namespace llmb::test
