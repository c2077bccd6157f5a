// Latency under recorded arrivals by policy: fcfs, sjf and mlfq (src/scheduler/policies.h), on the ledger, with a step that
// takes 20 ms + 0.1 ms a row.
//
//     make tools && build/tools/bench_policies TRACE.csv [first|second [LEVEL_MS...]]
//
// TRACE.csv: lines "time,prompt tokens,output tokens", as Azure's traces of LLM inference (AzurePublicDataset, 2023). Its
// first half or, without the word, its second is taken; mlfq once for each LEVEL_MS. Arrivals are stretched so that they
// come at a share of the rate at which the same requests are computed when all are there from the start. Latency: from
// arrival to last token, mean and p99; and latency / output tokens, which FastServe's figures show ("ms a token"). The
// percentages say how much larger a figure is than fcfs's.
//
// Sequences that give way are swapped out, as FastServe does it; moving blocks takes no time. The scheduler sees all that
// have arrived; the engine shows it 2 * --max-num-seqs that wait.
//
// 2026-11-27; time is simulated, so the machine does not matter. mlfq's constants were chosen on the first halves, where
// all 32 figures are better than fcfs's or at most 0.3 % worse. The second halves:
//     9,683 conversations        mean s            p99 s             ms a token       its p99
//     70%  fcfs, sjf           7.04    6.88     25.53   25.07      40.7    38.8      160    109
//          mlfq                6.97   -0.9%     25.38   -0.6%      40.0   -1.8%      164   +2.1%
//     80%  fcfs, sjf          10.02    8.59     41.89   31.98      72.6    54.8      560    330
//          mlfq                9.81   -2.1%     41.91   +0.0%      70.3   -3.1%      576   +2.8%
//     90%  fcfs, sjf          23.34   14.80     74.34  267.97     211.2   125.5     1407   3364
//          mlfq               22.80   -2.3%     74.92   +0.8%     204.7   -3.1%     1416   +0.7%
//     95%  fcfs, sjf          43.81   24.40     95.40  653.50     403.9   245.1     2261   7692
//          mlfq               43.01   -1.8%     96.03   +0.7%     393.6   -2.6%     2199   -2.8%
//     4,410 requests for code
//     70%  fcfs, sjf          29.60   14.43     75.33  121.35      2114     872     7878   9721
//          mlfq               25.20  -14.9%     69.96   -7.1%      1758  -16.8%     7316   -7.1%
//     80%  fcfs, sjf          44.85   19.69    104.61  241.79      3316    1145    12365  15388
//          mlfq               40.25  -10.3%    100.76   -3.7%      2948  -11.1%    12133   -1.9%
//     90%  fcfs, sjf          75.93   29.68    157.58  585.63      5774    1904    20898  39098
//          mlfq               71.46   -5.9%    155.87   -1.1%      5418   -6.2%    20855   -0.2%
//     95%  fcfs, sjf          90.90   34.47    186.38  620.77      6960    2334    25487  46501
//          mlfq               86.27   -5.1%    185.09   -0.7%      6592   -5.3%    25534   +0.2%
// So both means are better at each load, the p99 of code too; the p99 of conversations stays within 0.8 % of fcfs's, that of
// their tokens within 2.8 %.
//
// At 90 % and above little more is there for the tail, even for "known", orders by answers that are known in advance. The
// largest change of p99 that its three reach, and the mean, mean per token and p99 per token of the same order:
//     conversations  70%  -6.4%  (-0.3, +2.7, +26.4)    80% -17.9%  (+1.4, +10.6, +28.1)
//                    90%  -2.9%  (+1.5, +5.9, +7.9)     95%  -3.3%  (+1.6, +5.0, +10.9)
//     code           70% -17.0%  (-8.5, -4.8, -0.3)     80% -10.3%  (-5.2, -1.8, +1.6)
//                    90%  -2.2%  (-4.0, -3.2, +1.2)     95%  -1.6%  (-3.7, -2.9, +0.5)
// In conversations each pays for it with the tokens' figures, as long answers go first. sjf, which knows the answers, too,
// has the best means, and a worse p99 in code and, from 90 % on, in conversations.
//
// FastServe (Wu et al., arXiv 2305.05920) says: 5.1 times shorter in the mean and 6.4 times in the tail than Orca, at most
// (version 1); 31.4 and 17.9 times the rate of vLLM with the same mean and tail, at most (version 3). Nothing of this size
// is here: those baselines batch or place memory otherwise, too, while here only the order differs. And these lengths have
// light tails: an answer that has run for long needs less until it ends (222 tokens are expected of a new conversation of
// the first half, 53 more after 400), so who preempts it gains little, and first come, first served is hard to beat in the
// tail.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "backend/ledger/ledger_backend.h"
#include "base/check.h"
#include "scheduler/policies.h"
#include "scheduler/scheduler.h"
#include "scheduler/sequence.h"

namespace llmb {

namespace {

constexpr double kStepMs = 20, kRowMs = 0.1;
constexpr int32_t kNumSlots = 32, kMaxModelLen = 8192;

struct Arrival {
  double ms = 0;
  int32_t num_prompt_tokens = 0, num_output_tokens = 0;
};

std::vector<Arrival> read_trace(const char* path) {
  std::ifstream file(path);
  std::vector<Arrival> arrivals;
  for (std::string line; std::getline(file, line);) {
    int hours = 0, minutes = 0, prompt = 0, output = 0;
    double seconds = 0;
    if (std::sscanf(line.c_str(), "%*d-%*d-%*d %d:%d:%lf,%d,%d", &hours, &minutes, &seconds, &prompt, &output) != 5)
      continue;
    if (prompt < 1 || output < 1 || prompt + output > kMaxModelLen) continue;
    arrivals.push_back({1000 * (3600.0 * hours + 60.0 * minutes + seconds), prompt, output});
  }
  return arrivals;
}

// The first half of them or the second; its first one arrives at 0.
std::vector<Arrival> half_of(const std::vector<Arrival>& arrivals, bool second) {
  const auto middle = arrivals.begin() + static_cast<ptrdiff_t>(arrivals.size() / 2);
  std::vector<Arrival> half = second ? std::vector(middle, arrivals.end()) : std::vector(arrivals.begin(), middle);
  const double first = half.empty() ? 0 : half[0].ms;
  for (Arrival& arrival : half) arrival.ms -= first;
  return half;
}

struct Latencies {
  double mean_s = 0, p99_s = 0, per_token_ms = 0, per_token_p99_ms = 0, end_ms = 0;
  int64_t num_preemptions = 0;
};

double quantile(std::vector<double>& values, double share) {
  std::sort(values.begin(), values.end());
  return values[static_cast<size_t>(share * static_cast<double>(values.size() - 1))];
}

// `stretch` 0: all are there from the start.
Latencies simulate(const std::vector<Arrival>& arrivals, double stretch, const Policy& policy) {
  ModelConfig model;
  model.vocab_size = 32000;
  SchedulerConfig config;
  config.max_num_seqs = kNumSlots;
  config.max_num_batched_tokens = 2048;
  config.max_model_len = kMaxModelLen;
  config.num_blocks = kNumSlots * 2048 / config.block_size;
  config.policy = policy;
  config.enable_prefix_caching = true;
  config.preemption = PreemptionMode::kSwap;
  LoadOptions load;
  load.block_size = config.block_size;
  load.num_blocks_override = config.num_blocks;
  load.swap_space_gib = 64;
  const std::unique_ptr<Backend> backend = make_ledger_backend({});
  LLMB_CHECK(backend->load(model, load).ok());
  config.num_host_blocks = backend->info().num_host_blocks;
  Scheduler scheduler(config);
  std::vector<double> latencies, per_token;
  StepPlan plan;
  StepOutput output;
  std::vector<SequenceUpdate> updates;
  size_t next = 0;
  double now_ms = 0;
  while (next < arrivals.size() || scheduler.has_work()) {
    if (!scheduler.has_work()) now_ms = std::max(now_ms, stretch * arrivals[next].ms);
    for (; next < arrivals.size() && stretch * arrivals[next].ms <= now_ms; ++next) {
      auto request = std::make_shared<Request>();
      for (int32_t t = 0; t < arrivals[next].num_prompt_tokens; ++t)
        request->prompt_tokens.push_back(static_cast<TokenId>((next * 7919 + static_cast<size_t>(t) * 31) % 30000));
      request->params.stop.max_tokens = arrivals[next].num_output_tokens;
      request->params.stop.ignore_eos = true;
      LLMB_CHECK(std::holds_alternative<SeqId>(scheduler.add(std::move(request), stretch * arrivals[next].ms)));
    }
    LLMB_CHECK(scheduler.schedule(now_ms, next < arrivals.size(), &plan));
    LLMB_CHECK(backend->submit(plan).ok() && backend->wait(&output).ok());
    now_ms += kStepMs + kRowMs * plan.num_tokens();
    scheduler.apply(plan, output, &updates);
    for (const SequenceUpdate& update : updates) {
      if (!update.finish) continue;
      const Arrival& arrival = arrivals[static_cast<size_t>(update.seq)];
      latencies.push_back(now_ms - stretch * arrival.ms);
      per_token.push_back(latencies.back() / arrival.num_output_tokens);
    }
  }
  const auto mean = [](const std::vector<double>& values) {
    return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
  };
  return {mean(latencies) / 1000, quantile(latencies, 0.99) / 1000, mean(per_token), quantile(per_token, 0.99), now_ms,
          scheduler.num_preemptions_total()};
}

// No policy can know what this one does: how long answers will be. Of orders by arrival, work and time to the end, one of
// the few found to lower the p99 at 90 % of capacity and above: a row goes by `share_of_time` of its time to the end earlier.
Policy known_in_advance(const std::vector<Arrival>& arrivals, double share_of_time) {
  const auto work_of = [](double num_prompt_tokens, double num_output_tokens) {
    return num_prompt_tokens / 8 + num_output_tokens;
  };
  double sum = 0;
  for (const Arrival& arrival : arrivals) sum += work_of(arrival.num_prompt_tokens, arrival.num_output_tokens);
  const double ms_of_work = 2000 * static_cast<double>(arrivals.size()) / sum;
  const auto rank = [=](const Sequence& s, double) {
    const double to_the_end_ms = 28.0 * s.max_new_tokens + kRowMs * s.num_prompt_tokens();
    const double late_ms = ms_of_work * work_of(s.num_prompt_tokens(), s.max_new_tokens) - share_of_time * to_the_end_ms;
    return Ranking{Rank{std::llround(1000 * (s.arrival_ms + late_ms))}};
  };
  return {rank, 0};
}

// How much larger, in percent.
double percent(double value, double than) { return 100 * (value / than - 1); }

void run(const std::vector<Arrival>& arrivals, const std::vector<double>& levels_ms) {
  const double capacity_ms = simulate(arrivals, 0, {}).end_ms;
  std::printf("%zu requests, %d rows at a time: all at once in %.0f s, recorded in %.0f s\n", arrivals.size(), kNumSlots,
              capacity_ms / 1000, arrivals.back().ms / 1000);
  std::vector<std::pair<std::string, Policy>> policies = {{"sjf", shortest_job_first()}};
  for (const double share : {0.5, 1.0, 2.0})
    policies.emplace_back("known " + std::to_string(share).substr(0, 3), known_in_advance(arrivals, share));
  for (const double level_ms : levels_ms)
    policies.emplace_back("mlfq " + std::to_string(std::lround(level_ms)),
                          multi_level_feedback_queue({.level_ms = level_ms}));
  std::printf("%5s %-10s %16s %16s %18s %18s %8s\n", "load", "", "mean s", "p99 s", "ms a token", "its p99", "give way");
  for (const double share : {0.70, 0.80, 0.90, 0.95}) {
    const double stretch = capacity_ms / share / arrivals.back().ms;
    const Latencies first = simulate(arrivals, stretch, {});
    const auto print = [&](const char* name, const Latencies& l) {
      std::printf("%4.0f%% %-10s %8.2f %+6.1f%% %8.2f %+6.1f%% %10.1f %+6.1f%% %10.1f %+6.1f%% %8lld\n", 100 * share, name,
                  l.mean_s, percent(l.mean_s, first.mean_s), l.p99_s, percent(l.p99_s, first.p99_s), l.per_token_ms,
                  percent(l.per_token_ms, first.per_token_ms), l.per_token_p99_ms,
                  percent(l.per_token_p99_ms, first.per_token_p99_ms), static_cast<long long>(l.num_preemptions));
      std::fflush(stdout);
    };
    print("fcfs", first);
    for (const auto& [name, policy] : policies) print(name.c_str(), simulate(arrivals, stretch, policy));
  }
}

}  // namespace

}  // namespace llmb

int main(int argc, char** argv) {
  const std::string half = argc > 2 ? argv[2] : "second";
  if (argc < 2 || (half != "first" && half != "second")) {
    std::fprintf(stderr, "usage: bench_policies TRACE.csv [first|second [LEVEL_MS...]]\n");
    return 2;
  }
  const auto arrivals = llmb::half_of(llmb::read_trace(argv[1]), half == "second");
  if (arrivals.size() < 2) {
    std::fprintf(stderr, "%s: no lines \"time,prompt tokens,output tokens\"\n", argv[1]);
    return 2;
  }
  std::vector<double> levels_ms;
  for (int i = 3; i < argc; ++i) levels_ms.push_back(std::strtod(argv[i], nullptr));
  if (levels_ms.empty()) levels_ms.push_back(llmb::FeedbackQueue().level_ms);
  llmb::run(arrivals, levels_ms);
  return 0;
}
