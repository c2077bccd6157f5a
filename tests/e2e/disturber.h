// Kills and stops that come to a run over ranks at random.
#pragma once

#include <signal.h>
#include <unistd.h>

#include <map>
#include <string>
#include <vector>

#include "tests/e2e/started_run.h"
#include "tests/support/test_rng.h"

namespace llmb::test {

// Sends signals to processes of a run until it ends.
class Disturber {
 public:
  Disturber(TestRng& rng, int num_wanted) : rng_(rng), num_wanted_(num_wanted) {}

  bool has_done_all() const { return num_sent_ >= num_wanted_; }
  const std::map<std::string, int>& counts() const { return counts_; }

  // has_ranks: in processes of their own; else it is the job that is killed
  void disturb(StartedRun& run, bool has_ranks = true) {
    while (!run.has_ended()) {
      ::usleep(static_cast<useconds_t>(1000 * rng_.between(1, 400)));
      const std::vector<pid_t> ranks = run.ranks(), workers = run.workers();
      if (!has_ranks && !has_done_all() && rng_.chance(0.3)) send(run.pid(), SIGKILL, "job without ranks killed");
      if (ranks.empty() || has_done_all() || run.has_ended()) continue;
      const pid_t rank = ranks[static_cast<size_t>(rng_.between(0, static_cast<int>(ranks.size()) - 1))];
      switch (rng_.between(0, 9)) {
        case 0:
          send(run.pid(), SIGKILL, "job killed");
          break;
        case 1:
          if (!workers.empty()) send(workers[0], SIGKILL, "worker killed");
          break;
        case 2:
          send(rank, SIGSTOP, "rank stopped");
          break;
        case 3:
        case 4:
          pause(run.pid(), "job stopped a while");
          break;
        case 5:
        case 6:
          pause(rank, "rank stopped a while");
          break;
        default:
          send(rank, SIGKILL, "rank killed");
      }
    }
  }

 private:
  void send(pid_t pid, int signal, const char* name) {
    if (::kill(pid, signal) != 0) return;
    ++num_sent_;
    ++counts_[name];
  }
  void pause(pid_t pid, const char* name) {
    send(pid, SIGSTOP, name);
    ::usleep(static_cast<useconds_t>(1000 * rng_.between(1, 300)));
    ::kill(pid, SIGCONT);
  }

  TestRng& rng_;
  const int num_wanted_;
  int num_sent_ = 0;
  std::map<std::string, int> counts_;
};

}  // namespace llmb::test
