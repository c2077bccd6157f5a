// The base of the benches of collectives: ranks as processes, what they give each other, the clock, and the table.
//
// 1. A call's size is what each rank has when it ends: of an all-gather the parts of all ranks together. "send, receive"
//    goes from an even rank to the next one and back; half of it counts.
// 2. Before a case is timed every rank compares each number that it gets with what it must be.
#pragma once

#include <CLI/CLI.hpp>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/shared_ranks.h"

namespace llmb::bench {

enum class Call { kBroadcast, kAllReduce, kAllGather, kSendReceive };
constexpr Call kCalls[] = {Call::kBroadcast, Call::kAllReduce, Call::kAllGather, Call::kSendReceive};

inline const char* name_of(Call call) {
  switch (call) {
    case Call::kBroadcast:
      return "broadcast";
    case Call::kAllReduce:
      return "all_reduce";
    case Call::kAllGather:
      return "all_gather";
    case Call::kSendReceive:
      return "send, receive";
  }
  return "";
}

struct CollectivesOptions {
  std::vector<int> ranks = {2, 4};
  std::vector<int64_t> kib = {4, 16, 64, 256, 1024, 4096, 16384};
  int repeats = 11;
  double round_ms = 5;

  void add_to(CLI::App& app) {
    app.option_defaults()->always_capture_default();
    app.add_option("--ranks", ranks, "how many ranks")->delimiter(',')->check(CLI::IsMember({2, 4, 6, 8}));
    app.add_option("--kib", kib, "sizes")->delimiter(',')->check(CLI::Range(1, 1 << 20));
    app.add_option("--repeats", repeats, "rounds of each case; the median counts")->check(CLI::Range(1, 1000));
    app.add_option("--round-ms", round_ms, "length of a round")->check(CLI::Range(0.0, 1000.0));
  }
  int64_t max_bytes() const { return *std::max_element(kib.begin(), kib.end()) << 10; }
};

// One rank's calls over memory of its own. Floats lie from its beginning on.
class RankCalls {
 public:
  virtual ~RankCalls() = default;
  virtual void write(const std::vector<float>& values) = 0;
  virtual std::vector<float> read(Call call, int64_t count) = 0;  // what the last such call gave
  // Makes `num_calls` calls of so many bytes, and waits for them. kBroadcast: from the last rank
  virtual void run(Call call, int64_t bytes, int num_calls) = 0;
  // Seconds in which the limit moves what such a call has to move. Rank 0 asks while the others do nothing, or all ranks
  // ask at a time (is_limit_of_all).
  virtual double limit_s(Call call, int64_t bytes) = 0;
  virtual bool is_limit_of_all() const = 0;
};

inline double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

inline double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

inline void wait_for_all(Collectives& host) {
  std::vector<char> all(static_cast<size_t>(host.size()));
  const char here = 1;
  host.all_gather(&here, 1, all.data());
}

// All cases of one rank; rank 0 prints them. host: a channel of its own
class CollectivesBench {
 public:
  CollectivesBench(const CollectivesOptions& options, Collectives& host, RankCalls& calls)
      : options_(options), host_(host), calls_(calls) {}

  void run() {
    for (const Call call : kCalls)
      for (const int64_t kib : options_.kib) run_case(call, kib << 10);
  }

  static void print_header(const char* limit) {
    std::printf("limit: %s\n", limit);
    std::printf("%-14s %6s %8s %10s %9s %10s %8s  %s\n", "call", "ranks", "KiB", "us", "GB/s", "limit us", "share",
                "hash of rank 0's result");
    std::fflush(stdout);
  }

 private:
  void run_case(Call call, int64_t bytes) {
    const int64_t count = bytes / int64_t{sizeof(float)};
    calls_.write(given(call, count));
    calls_.run(call, bytes, 1);
    const std::vector<float> got = calls_.read(call, count);
    check_result(call, got);
    calls_.write(std::vector<float>(static_cast<size_t>(count)));  // sums of zeros stay what they are
    int num_calls = 1;
    const double once = time_s(call, bytes, 1);
    if (host_.rank() == 0) num_calls = std::clamp(static_cast<int>(options_.round_ms / 1e3 / std::max(once, 1e-7)), 1, 2000);
    host_.broadcast(&num_calls, sizeof num_calls, 0);
    std::vector<double> rounds;
    for (int i = 0; i < options_.repeats; ++i) rounds.push_back(time_s(call, bytes, num_calls) / num_calls);
    wait_for_all(host_);
    const double limit = host_.rank() == 0 || calls_.is_limit_of_all() ? calls_.limit_s(call, bytes) : 0;
    wait_for_all(host_);
    if (host_.rank() != 0) return;
    const double seconds = median(rounds) / (call == Call::kSendReceive ? 2 : 1);
    std::printf("%-14s %6d %8lld %10.2f %9.3f %10.2f %7.1f%%  %016llx\n", name_of(call), host_.size(),
                static_cast<long long>(bytes >> 10), seconds * 1e6, static_cast<double>(bytes) / seconds / 1e9, limit * 1e6,
                100 * limit / seconds, static_cast<unsigned long long>(hash_of(got)));
    std::fflush(stdout);
  }

  // From when all ranks begin to when all have ended.
  double time_s(Call call, int64_t bytes, int num_calls) {
    wait_for_all(host_);
    const double begin = seconds_now();
    calls_.run(call, bytes, num_calls);
    wait_for_all(host_);
    return seconds_now() - begin;
  }

  static float value_of(int64_t rank, int64_t i) { return static_cast<float>((rank + 1) * (i % 97)); }

  std::vector<float> given(Call call, int64_t count) const {
    std::vector<float> values(static_cast<size_t>(call == Call::kAllGather ? count / host_.size() : count));
    for (size_t i = 0; i < values.size(); ++i) values[i] = value_of(host_.rank(), static_cast<int64_t>(i));
    return values;
  }

  float expected(Call call, int64_t count, int64_t i) const {
    const int64_t size = host_.size(), part = count / size;
    switch (call) {
      case Call::kBroadcast:
        return value_of(size - 1, i);
      case Call::kAllReduce:
        return value_of(size * (size + 1) / 2 - 1, i);
      case Call::kAllGather:
        return value_of(i / part, i % part);
      case Call::kSendReceive:
        return value_of(host_.rank() / 2 * 2, i);
    }
    return 0;
  }

  void check_result(Call call, const std::vector<float>& got) const {
    const auto count = static_cast<int64_t>(got.size());
    for (int64_t i = 0; i < count / host_.size() * host_.size(); ++i)
      if (const float want = expected(call, count, i); !(got[static_cast<size_t>(i)] == want))
        throw std::runtime_error(std::string(name_of(call)) + " gave rank " + std::to_string(host_.rank()) + " at " +
                                 std::to_string(i) + " of " + std::to_string(count) + " the number " +
                                 std::to_string(got[static_cast<size_t>(i)]) + " in place of " + std::to_string(want));
  }

  static uint64_t hash_of(const std::vector<float>& values) {  // FNV-1a
    uint64_t hash = 14695981039346656037u;
    const auto* const bytes = reinterpret_cast<const uint8_t*>(values.data());
    for (size_t i = 0; i < values.size() * sizeof(float); ++i) hash = (hash ^ bytes[i]) * 1099511628211u;
    return hash;
  }

  const CollectivesOptions options_;
  Collectives& host_;
  RankCalls& calls_;
};

// Runs work(rank) in a process for each rank; exit code 0 where all ended well. Where one did not, the others are ended.
inline int run_rank_processes(int num_ranks, const char* program, const std::function<void(int rank)>& work) {
  std::fflush(stdout);
  std::vector<pid_t> pids;
  for (int rank = 0; rank < num_ranks; ++rank) {
    const pid_t pid = ::fork();
    if (pid == 0) {
      int code = 0;
      try {
        work(rank);
      } catch (const std::exception& e) {
        std::fprintf(stderr, "%s: %s\n", program, e.what());
        code = 1;
      }
      std::fflush(stdout);
      ::_exit(code);
    }
    if (pid > 0) pids.push_back(pid);
  }
  int code = pids.size() == static_cast<size_t>(num_ranks) ? 0 : 1;
  const auto end_all = [&] {
    for (const pid_t pid : pids) ::kill(pid, SIGKILL);
  };
  if (code != 0) end_all();
  for (int status = 0; !pids.empty();) {
    const pid_t ended = ::waitpid(-1, &status, 0);
    if (ended < 0) return 1;
    std::erase(pids, ended);
    if (status == 0 || code != 0) continue;
    code = 1;
    end_all();
  }
  return code;
}

// main() of a bench. run: gives the exit code, or throws
inline int run_collectives_bench(int argc, char** argv, const char* program, const char* description,
                                 CollectivesOptions options, int (*run)(const CollectivesOptions&)) {
  CLI::App app(description);
  options.add_to(app);
  CLI11_PARSE(app, argc, argv);
  std::printf("repeat:");
  for (int i = 0; i < argc; ++i) std::printf(" %s", argv[i]);
  std::printf("\n");
  try {
    return run(options);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s: %s\n", program, error.what());
    return 1;
  }
}

}  // namespace llmb::bench
