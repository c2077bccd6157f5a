#include "cli/report_members.h"

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>

#include "cli/settings.h"

namespace llmb {

namespace {

using Json = nlohmann::ordered_json;

constexpr int kNumBins = 40;

// To four digits: a report draws them.
double rounded(double value) {
  if (!(std::abs(value) > 0) || !std::isfinite(value)) return 0;
  const double unit = std::pow(10, std::floor(std::log10(std::abs(value))) - 3);
  return unit < 1 ? std::round(value / unit) / std::round(1 / unit) : std::round(value / unit) * unit;
}

Json histogram(const QuantileSketch& values, Spacing spacing) {
  const Histogram h = values.histogram(kNumBins, spacing);
  Json edges = Json::array();
  for (const double edge : h.edges) edges.push_back(rounded(edge));
  return {{"edges", std::move(edges)}, {"counts", h.counts}};
}

// "AMD EPYC 9R14 96-Core Processor, 2 processors"
std::string machine_name() {
  std::ifstream in("/proc/cpuinfo");
  std::string name = "unknown processor";
  for (std::string line; std::getline(in, line);) {
    if (!line.starts_with("model name") || line.find(": ") == line.npos) continue;
    name = line.substr(line.find(": ") + 2);
    break;
  }
  return name + ", " + std::to_string(std::thread::hardware_concurrency()) + " threads";
}

Json requests(const RequestSample& sample) {
  Json drawn = Json::array(), slowest = Json::array();
  for (const RequestFigures& r : sample.drawn())
    drawn.push_back({r.num_input_tokens, r.num_output_tokens, rounded(r.ttft_ms), rounded(r.e2e_ms)});
  for (const RequestFigures& r : sample.slowest())
    slowest.push_back({{"line", r.place},
                       {"id", r.id_json},
                       {"input_tokens", r.num_input_tokens},
                       {"output_tokens", r.num_output_tokens},
                       {"queue_ms", rounded(r.queue_ms)},
                       {"ttft_ms", rounded(r.ttft_ms)},
                       {"e2el_ms", rounded(r.e2e_ms)}});
  return {{"sample", std::move(drawn)}, {"slowest", std::move(slowest)}};
}

// Bins without a step hold zeros.
Json timeline(const StepTimeline& timeline) {
  Json input = Json::array(), output = Json::array(), running = Json::array(), waiting = Json::array(),
       kv = Json::array();
  for (const TimelineBin& bin : timeline.bins()) {
    const auto mean = [&](double sum) { return rounded(bin.busy_ms > 0 ? sum / bin.busy_ms : 0); };
    input.push_back(bin.num_input_tokens);
    output.push_back(bin.num_output_tokens);
    running.push_back(mean(bin.running_ms));
    waiting.push_back(mean(bin.waiting_ms));
    kv.push_back(mean(bin.kv_use_ms));
  }
  return {{"bin_s", timeline.bin_ms() / 1000}, {"input_tokens", std::move(input)}, {"output_tokens", std::move(output)},
          {"running", std::move(running)},     {"waiting", std::move(waiting)},    {"kv_use", std::move(kv)}};
}

std::string yes_or_no(bool value) { return value ? "yes" : "no"; }

}  // namespace

void add_run_members(const JobOptions& o, const BackendInfo& b, Json* line) {
  Json settings;
  settings["device"] = b.device;
  settings["load-format"] = o.model.load_format == LoadFormat::kDummy ? "dummy (random weights)" : "auto";
  settings["weights"] = std::to_string((b.weight_bytes + (1 << 19)) >> 20) + " MiB";
  settings["batching"] = batching_name(o.scheduler.batching);
  settings["max-num-seqs"] = std::to_string(o.scheduler.max_num_seqs);
  settings["max-num-batched-tokens"] = std::to_string(o.scheduler.max_num_batched_tokens);
  settings["schedule"] = schedule_name(o.schedule);
  settings["prefix-caching"] = yes_or_no(o.scheduler.enable_prefix_caching);
  settings["speculative"] = describe_drafters(o.speculation);
  settings["kv-cache"] = std::string(dtype_name(b.kv.dtype)) + ", " + std::to_string(b.kv.num_blocks) + " blocks of " +
                         std::to_string(b.kv.block_size);
  settings["seed"] = std::to_string(o.seed);
  (*line)["machine"] = machine_name();
  (*line)["settings"] = std::move(settings);
}

void add_figure_members(const JobMetrics& m, Json* line) {
  const RequestMetrics& r = m.requests;
  Json& histograms = (*line)["histograms"];
  histograms["ttft_ms"] = histogram(r.ttft_ms, Spacing::kLogarithmic);
  histograms["tpot_ms"] = histogram(r.tpot_ms, Spacing::kLogarithmic);
  histograms["itl_ms"] = histogram(r.itl_ms, Spacing::kLogarithmic);
  histograms["e2el_ms"] = histogram(r.e2el_ms, Spacing::kLogarithmic);
  histograms["input_tokens"] = histogram(r.input_tokens, Spacing::kLinear);
  histograms["output_tokens"] = histogram(r.output_tokens, Spacing::kLinear);
  (*line)["requests"] = requests(r.sample);
  const TimeShares& t = m.steps.times;
  (*line)["time"] = {{"prefill_s", rounded(t.prefill_ms / 1000)},
                     {"decode_s", rounded(t.decode_ms / 1000)},
                     {"recomputed_s", rounded(t.recomputed_ms / 1000)},
                     {"tail_s", rounded(t.tail_ms / 1000)},
                     {"gap_s", rounded(t.gap_ms / 1000)}};
  if (const RankTimes& ranks = m.steps.ranks; !ranks.busy_ms.empty()) {
    Json idle_s = Json::array();
    for (size_t rank = 0; rank < ranks.busy_ms.size(); ++rank)
      idle_s.push_back(rounded(ranks.idle_share(rank) * ranks.steps_ms / 1000));
    (*line)["ranks"] = {{"step_s", rounded(ranks.steps_ms / 1000)}, {"idle_s", std::move(idle_s)}};
  }
  (*line)["recomputed_tokens"] = m.steps.num_recomputed_tokens;
  (*line)["timeline"] = timeline(m.steps.timeline);
}

void add_energy_member(const std::vector<EnergyReading>& readings, Json* line) {
  auto& energy = (*line)["energy"] = Json::array();
  for (const EnergyReading& r : readings)
    if (r.joules) energy.push_back({{"source", r.source}, {"joules", *r.joules}});
    else energy.push_back({{"source", r.source}, {"absent", r.reason}});
}

}  // namespace llmb
