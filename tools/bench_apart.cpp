// Goodput of prefill and decode apart (DistServe, Zhong et al. 2024) beside one pool with chunked prefill on as many
// devices, under recorded arrivals: the highest rate at which 90 % of the requests meet both objectives (as `--slo
// ttft=…,tpot=…` counts them). Simulated: tools/apart_simulation.h.
//
//     make tools && build/tools/bench_apart TRACE.csv [requests for each instance]
//
// TRACE.csv: lines "time,prompt tokens,output tokens", as Azure's traces of LLM inference (AzurePublicDataset, 2023);
// its arrivals are stretched to each rate. Rates are tried in steps of 15 %; of a way's settings (rows of a step; the
// division of instances) the best counts at each objective. Tables: data/measurements/predicted-apart.md.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include "tools/apart_simulation.h"
#include "tools/step_model.h"

namespace llmb {

namespace {

constexpr int32_t kMaxModelLen = 8192, kBlockSize = 16;
constexpr double kShareMet = 0.90, kMemoryShare = 0.90, kRateStep = 1.15;
constexpr double kMinRate = 0.05;  // requests a second and device
constexpr int kNumRates = 48;

struct Objective {
  double ttft_ms, tpot_ms;
};
struct Cluster {
  const ModelShape& model;
  int64_t tensor_size, num_devices;
  const LinkModel& between;
  std::vector<Objective> objectives;
};

struct Best {
  double rate = 0;  // requests a second
  std::string setting;
};

ClusterSetup setup_of(const Cluster& cluster, const StepModel& model) {
  ClusterSetup setup;
  setup.max_model_len = kMaxModelLen;
  setup.num_blocks = static_cast<int32_t>(std::min(model.kv_tokens(kMemoryShare) / kBlockSize, 40000.0));
  setup.between = cluster.between;
  setup.block_bytes = kBlockSize * model.kv_bytes_per_token() / static_cast<double>(cluster.tensor_size);
  return setup;
}

// The highest rate at which each objective is met, found by halves: fewer meet it at a higher one.
void try_setting(const Cluster& cluster, const StepModel& model, const ClusterSetup& setup, const std::string& name,
                 const std::vector<SimulatedArrival>& arrivals, std::vector<Best>* best) {
  const double trace_rate = 1000.0 * static_cast<double>(arrivals.size()) / arrivals.back().ms;
  const auto rate_of = [&](int step) {
    return kMinRate * static_cast<double>(cluster.num_devices) * std::pow(kRateStep, step);
  };
  std::map<int, std::vector<SimulatedLatency>> tried;
  for (size_t i = 0; i < best->size(); ++i) {
    const auto is_met = [&](int step) {
      const auto [at, is_new] = tried.try_emplace(step);
      if (is_new) at->second = ClusterSimulation(setup, model).run(arrivals, trace_rate / rate_of(step)).latencies;
      return share_within(at->second, cluster.objectives[i].ttft_ms, cluster.objectives[i].tpot_ms) >= kShareMet;
    };
    int met = -1, missed = kNumRates;
    while (missed - met > 1) {
      const int step = (met + missed) / 2;
      (is_met(step) ? met : missed) = step;
    }
    if (met >= 0 && rate_of(met) > (*best)[i].rate) (*best)[i] = {rate_of(met), name};
  }
}

std::string cell(const Best& best) {
  if (best.rate == 0) return "-";
  char text[64];
  std::snprintf(text, sizeof text, "%.2f (%s)", best.rate, best.setting.c_str());
  return text;
}

// The first requests of the trace, as many for each instance.
void print_cluster(const Cluster& cluster, const char* trace, size_t num_requests) {
  const StepModel model(cluster.model, kBf16, kH100, kNvLink, {cluster.tensor_size, 1});
  const auto num_instances = static_cast<int32_t>(cluster.num_devices / cluster.tensor_size);
  const auto arrivals = read_arrivals(trace, num_requests * static_cast<size_t>(num_instances), kMaxModelLen);
  std::vector<Best> pool(cluster.objectives.size()), apart(cluster.objectives.size());
  for (const int32_t rows : {256, 512, 1024}) {
    ClusterSetup setup = setup_of(cluster, model);
    setup.num_pool = num_instances;
    setup.max_num_batched_tokens = rows;
    try_setting(cluster, model, setup, std::to_string(rows) + " rows", arrivals, &pool);
  }
  for (int32_t num_prefill = 1; num_prefill < num_instances; ++num_prefill) {
    if (num_instances > 8 && num_prefill % (num_instances / 8) != 0) continue;
    ClusterSetup setup = setup_of(cluster, model);
    setup.num_prefill = num_prefill, setup.num_decode = num_instances - num_prefill;
    const std::string name = std::to_string(num_prefill) + " + " + std::to_string(setup.num_decode);
    try_setting(cluster, model, setup, name, arrivals, &apart);
  }
  std::printf("\n## %s, bf16, %lld × H100, TP %lld, %d instances, %zu requests\n\n", cluster.model.name,
              static_cast<long long>(cluster.num_devices), static_cast<long long>(cluster.tensor_size), num_instances,
              arrivals.size());
  std::printf("| TTFT, TPOT within | one pool | apart | ratio |\n|---|---|---|---|\n");
  for (size_t i = 0; i < pool.size(); ++i) {
    const Objective& objective = cluster.objectives[i];
    const std::string ratio = pool[i].rate > 0 ? std::to_string(apart[i].rate / pool[i].rate).substr(0, 4) : "";
    std::printf("| %.1f s, %.0f ms | %s | %s | %s |\n", objective.ttft_ms / 1000, objective.tpot_ms,
                cell(pool[i]).c_str(), cell(apart[i]).c_str(), ratio.c_str());
    std::fflush(stdout);
  }
}

}  // namespace

}  // namespace llmb

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: bench_apart TRACE.csv [requests for each instance]\n");
    return 2;
  }
  const size_t count = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 200;
  if (llmb::read_arrivals(argv[1], 2, llmb::kMaxModelLen).size() < 2) {
    std::fprintf(stderr, "%s: no lines \"time,prompt tokens,output tokens\"\n", argv[1]);
    return 2;
  }
  const std::vector<llmb::Objective> small = {{2000, 8}, {2000, 10}, {2000, 15}, {500, 10}, {500, 15}};
  const std::vector<llmb::Objective> large = {{2000, 20}, {2000, 25}, {2000, 35}, {2000, 50}, {500, 25}};
  llmb::print_cluster({llmb::kLlama8B, 1, 8, llmb::kNvLink, small}, argv[1], count);
  llmb::print_cluster({llmb::kLlama70B, 4, 8, llmb::kNvLink, large}, argv[1], 2 * count);
  llmb::print_cluster({llmb::kLlama70B, 4, 64, llmb::kInfiniBand, large}, argv[1], count);
  return 0;
}
