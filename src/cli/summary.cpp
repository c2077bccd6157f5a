#include "cli/summary.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/log.h"
#include "cli/report_members.h"

namespace llmb {

namespace {

struct Derived {
  double seconds, busy_seconds;
  double mean_occupancy, kv_use, kv_peak, kv_waste;
  double achieved_flops, achieved_bytes;
  std::optional<double> mfu, mbu;
};

double ratio(double a, double b) { return b > 0 ? a / b : 0; }

Derived derive(const JobMetrics& m, const SummaryContext& c) {
  Derived d{};
  d.seconds = m.wall_ms / 1000;
  d.busy_seconds = m.steps.busy_ms / 1000;
  d.mean_occupancy = ratio(m.steps.batch_size_sum, static_cast<double>(m.steps.num_steps));
  const double pool_slots = double{1} * m.backend.kv.num_blocks * m.backend.kv.block_size;
  d.kv_use = ratio(ratio(m.steps.kv_allocated_sum, static_cast<double>(m.steps.num_steps)), pool_slots);
  d.kv_peak = ratio(static_cast<double>(m.steps.kv_allocated_max), pool_slots);
  d.kv_waste = m.steps.kv_allocated_sum > 0 ? 1 - m.steps.kv_used_sum / m.steps.kv_allocated_sum : 0;
  // Model FLOPs and bytes over the time spent in steps: each step reads the weights once and each context once.
  const double bytes = double{1} * m.steps.num_steps * m.backend.weight_bytes +
                       m.steps.num_context_tokens_read * static_cast<double>(m.backend.kv.bytes_per_token());
  d.achieved_flops = ratio(m.steps.flops, d.busy_seconds);
  d.achieved_bytes = ratio(bytes, d.busy_seconds);
  if (c.limits.flops_per_s > 0 && m.steps.num_steps > 0) d.mfu = d.achieved_flops / c.limits.flops_per_s;
  if (c.limits.bytes_per_s > 0 && m.steps.num_steps > 0) d.mbu = d.achieved_bytes / c.limits.bytes_per_s;
  return d;
}

template <typename... Args>
void add_line(std::string& out, const char* format, Args... args) {
  char buffer[256];
  std::snprintf(buffer, sizeof buffer, format, args...);
  out += buffer;
  out += '\n';
}

void add_distribution(std::string& out, const char* name, const QuantileSketch& s) {
  add_line(out, "  %-10s %10.2f %10.2f %10.2f %10.2f %10.2f %10.2f", name, s.mean(), s.quantile(0.5), s.quantile(0.9),
           s.quantile(0.95), s.quantile(0.99), s.max());
}

void add_distribution(nlohmann::ordered_json& out, const std::string& name, const QuantileSketch& s) {
  out["mean_" + name] = s.mean();
  out["p50_" + name] = s.quantile(0.5);
  out["p90_" + name] = s.quantile(0.9);
  out["p95_" + name] = s.quantile(0.95);
  out["p99_" + name] = s.quantile(0.99);
  out["max_" + name] = s.max();
}

void add_errors(std::string& out, const std::vector<ErrorCount>& errors) {
  bool has_other_fields = false;
  for (const ErrorCount& error : errors) {
    out += (&error == &errors.front() ? "errors            " : "                  ") + std::to_string(error.count) + " × " +
           error.code + ": " + escape_control(error.first_message) +
           (error.count > 1 ? ", first at " : ", at ") + escape_control(error.first_place) + "\n";
    has_other_fields |= error.code == "missing_field" && error.first_message.find("; it has ") != std::string::npos;
  }
  if (has_other_fields)
    out += "                  --prompt-field NAME or --template '{{ NAME }}' makes prompts from such lines\n";
}

nlohmann::ordered_json error_objects(const std::vector<ErrorCount>& errors) {
  auto objects = nlohmann::ordered_json::array();
  for (const ErrorCount& error : errors)
    objects.push_back({{"code", error.code},
                       {"count", error.count},
                       {"message", error.first_message},
                       {"first_at", error.first_place}});
  return objects;
}

// Those with the most output tokens.
void add_adapters(std::string& out, const JobMetrics& m) {
  constexpr size_t kMaxShown = 20;
  auto adapters = m.adapters;
  std::stable_sort(adapters.begin(), adapters.end(), [](const auto& a, const auto& b) {
    return a.second.num_output_tokens > b.second.num_output_tokens;
  });
  for (size_t i = 0; i < std::min(adapters.size(), kMaxShown); ++i) {
    const auto& [name, totals] = adapters[i];
    out += (i == 0 ? "adapters          " : "                  ") + escape_control(name) + ": " +
           std::to_string(totals.num_completed) + " ok, " + std::to_string(totals.num_input_tokens) + " tokens in, " +
           std::to_string(totals.num_output_tokens) + " out\n";
  }
  if (adapters.size() > kMaxShown)
    out += "                  and " + std::to_string(adapters.size() - kMaxShown) + " more\n";
  if (!adapters.empty())
    out += "adapter reads     " + std::to_string(m.steps.num_adapter_reads) + ", of " + std::to_string(adapters.size()) +
           " adapters\n";
}

void add_adapters(nlohmann::ordered_json& out, const JobMetrics& m) {
  for (const auto& [name, totals] : m.adapters)
    out["adapters"][name] = {{"completed", totals.num_completed},
                             {"input_tokens", totals.num_input_tokens},
                             {"output_tokens", totals.num_output_tokens}};
  if (!m.adapters.empty()) out["adapter_reads"] = m.steps.num_adapter_reads;
}

// To two decimals; never "-0.00".
double rounded_seconds(double ms) { return std::round(ms / 10) / 100 + 0.0; }

// That verify tokens of its, of a sequence: those that were right, and one more.
double tokens_per_step(const SpeculationMetrics::Kind& kind) {
  return ratio(kind.num_accepted + kind.num_steps, kind.num_steps);
}

void add_speculation(std::string& out, const JobMetrics& m) {
  const SpeculationMetrics& s = m.speculation;
  if (s.num_steps == 0) return;
  for (const SpeculationMetrics::Kind& kind : s.drafters)
    add_line(out, "drafts            %s: %lld tokens, %lld accepted (%.1f %%), %.2f tokens of a sequence in each step",
             kind.name.c_str(), static_cast<long long>(kind.num_drafted), static_cast<long long>(kind.num_accepted),
             100 * ratio(kind.num_accepted, kind.num_drafted), tokens_per_step(kind));
  const auto num_steps = static_cast<long long>(s.num_steps);
  const double saved_s = rounded_seconds(s.measured_saved_ms), predicted_s = rounded_seconds(s.predicted_saved_ms);
  if (s.drafters.size() > 1)
    add_line(out, "                  in %lld steps, %.2f tokens of a sequence in each; %.2f s saved, %.2f s predicted",
             num_steps, ratio(s.num_given, s.num_groups), saved_s, predicted_s);
  else
    add_line(out, "                  in %lld steps; %.2f s saved, %.2f s predicted", num_steps, saved_s, predicted_s);
  if (s.blocks.most > 0)
    add_line(out, "                  keys and values in at most %d of %d blocks of the KV cache; %lld taken back for answers",
             s.blocks.most, m.backend.kv.num_blocks, static_cast<long long>(s.blocks.num_taken_back));
}

void add_speculation(nlohmann::ordered_json& out, const JobMetrics& m) {
  const SpeculationMetrics& s = m.speculation;
  if (s.drafters.empty()) return;
  auto& drafters = out["speculation"];
  for (const SpeculationMetrics::Kind& kind : s.drafters)
    drafters[kind.name] = {{"drafted_tokens", kind.num_drafted},
                           {"accepted_tokens", kind.num_accepted},
                           {"steps", kind.num_steps},
                           {"tokens_per_step", tokens_per_step(kind)}};
  out["speculation_steps"] = s.num_steps;
  out["speculation_tree_steps"] = s.num_tree_steps;
  out["speculation_tokens_per_step"] = ratio(s.num_given, s.num_groups);
  out["speculation_saved_s"] = s.measured_saved_ms / 1000;
  out["speculation_predicted_saved_s"] = s.predicted_saved_ms / 1000;
  if (m.backend.lent_tokens == 0) return;
  out["speculation_kv_blocks_peak"] = s.blocks.most;
  out["speculation_kv_blocks_taken_back"] = s.blocks.num_taken_back;
}

double perplexity(const JobMetrics& m) {
  return std::exp(-m.requests.scored_logprob / static_cast<double>(m.requests.num_scored_tokens));
}

// In both directions.
int64_t swapped_bytes(const JobMetrics& m) {
  return (m.steps.num_swapped_out + m.steps.num_swapped_in) * m.backend.kv.bytes_per_block();
}

}  // namespace

SummaryContext summary_context(const JobMetrics& metrics, std::optional<double> peak_flops,
                               std::optional<double> peak_bandwidth) {
  SummaryContext context = {metrics.limits, peak_flops && peak_bandwidth};
  if (peak_flops) context.limits.flops_per_s = *peak_flops;
  if (peak_bandwidth) context.limits.bytes_per_s = *peak_bandwidth;
  return context;
}

std::string summary_table(const JobMetrics& m, const SummaryContext& c) {
  const Derived d = derive(m, c);
  const auto n = [](int64_t v) { return static_cast<long long>(v); };
  std::string out = "---------------------------- summary ----------------------------\n";
  add_line(out, "requests          %lld ok, %lld failed%s", n(m.requests.num_completed), n(m.requests.num_failed),
           m.num_left > 0 ? (", " + std::to_string(m.num_left) + " left").c_str() : "");
  add_errors(out, m.errors);
  for (const std::string& name : m.fields_never_kept)
    out += "warning           --keep: no line has a field " + escape_control(name) + "\n";
  add_adapters(out, m);
  if (m.num_equal_rows > 0) add_line(out, "equal rows        %lld answered with another", n(m.num_equal_rows));
  add_line(out, "wall time         %.2f s (+ model load %.2f s)", d.seconds, m.backend.load_ms / 1000);
  add_line(out, "tokens            %lld in, %lld out", n(m.requests.num_input_tokens), n(m.requests.num_output_tokens));
  if (m.requests.num_scored_tokens > 0)
    add_line(out, "perplexity        %.6g over %lld tokens, log-probability %.6g", perplexity(m),
             n(m.requests.num_scored_tokens), m.requests.scored_logprob);
  const bool has_answers = m.requests.num_output_tokens > 0;
  const double output_rate = ratio(m.requests.num_output_tokens, d.seconds);
  char output_text[64] = "";
  if (has_answers) std::snprintf(output_text, sizeof output_text, ", %.1f output tokens/s", output_rate);
  add_line(out, "throughput        %.1f requests/s, %.1f input tokens/s%s", ratio(m.requests.num_completed, d.seconds),
           ratio(m.requests.num_input_tokens, d.seconds), output_text);
  if (m.requests.slo.any())
    add_line(out, "goodput           %.1f requests/s, %.1f %% of requests within --slo",
             ratio(m.requests.num_good, d.seconds), 100 * ratio(m.requests.num_good, m.requests.num_completed));
  add_line(out, "steps             %lld, mean batch %.1f sequences, %lld preemptions", n(m.steps.num_steps),
           d.mean_occupancy, n(m.requests.num_preemptions));
  const PromptTokens& prompt = m.steps.prompt_tokens;
  add_line(out, "prompt tokens     %lld asked for, %lld computed, %lld saved by the prefix cache", n(prompt.num_asked),
           n(prompt.num_computed), n(prompt.num_saved));
  add_line(out, "prefix cache      %s%lld tokens could be saved, %lld evictions, %lld block copies",
           m.repeated_granularity > 1 ? "at least " : "", n(m.num_repeated_tokens), n(m.steps.num_evictions),
           n(m.steps.num_block_copies));
  if (m.steps.num_swapped_out > 0)
    add_line(out, "swapped           %lld blocks to the host, %lld back, %.1f MiB", n(m.steps.num_swapped_out),
             n(m.steps.num_swapped_in), static_cast<double>(swapped_bytes(m)) / 1048576.0);
  add_speculation(out, m);
  add_line(out, "KV cache          mean use %.1f %%, peak %.1f %%, waste in used blocks %.1f %%", 100 * d.kv_use,
           100 * d.kv_peak, 100 * d.kv_waste);
  if (d.mfu && d.mbu)
    add_line(out, "utilisation       MFU %.1f %% of %.1f GFLOP/s, MBU %.1f %% of %.1f GB/s (%s limits)", 100 * *d.mfu,
             c.limits.flops_per_s / 1e9, 100 * *d.mbu, c.limits.bytes_per_s / 1e9,
             c.limits_were_given ? "given" : "measured");
  if (m.requests.num_completed > 0) {
    add_line(out, "  %-10s %10s %10s %10s %10s %10s %10s", "ms", "mean", "p50", "p90", "p95", "p99", "max");
    add_distribution(out, "TTFT", m.requests.ttft_ms);
    if (has_answers) add_distribution(out, "TPOT", m.requests.tpot_ms);
    if (has_answers) add_distribution(out, "ITL", m.requests.itl_ms);
    add_distribution(out, "E2E", m.requests.e2el_ms);
    add_distribution(out, "queue", m.requests.queue_ms);
  }
  return out;
}

std::string summary_json(const JobMetrics& m, const SummaryContext& c, const std::string& extra_json_members) {
  const Derived d = derive(m, c);
  nlohmann::ordered_json j;
  j["completed"] = m.requests.num_completed;
  j["failed"] = m.requests.num_failed;
  j["unanswered"] = m.num_left;
  j["errors"] = error_objects(m.errors);
  j["duration"] = d.seconds;
  j["model_load_time_s"] = m.backend.load_ms / 1000;
  j["total_input_tokens"] = m.requests.num_input_tokens;
  j["total_output_tokens"] = m.requests.num_output_tokens;
  j["request_throughput"] = ratio(m.requests.num_completed, d.seconds);
  j["input_throughput"] = ratio(m.requests.num_input_tokens, d.seconds);
  j["output_throughput"] = ratio(m.requests.num_output_tokens, d.seconds);
  j["total_token_throughput"] = ratio(m.requests.num_input_tokens + m.requests.num_output_tokens, d.seconds);
  if (m.requests.slo.any()) j["request_goodput"] = ratio(m.requests.num_good, d.seconds);
  add_distribution(j, "ttft_ms", m.requests.ttft_ms);
  add_distribution(j, "tpot_ms", m.requests.tpot_ms);
  add_distribution(j, "itl_ms", m.requests.itl_ms);
  add_distribution(j, "e2el_ms", m.requests.e2el_ms);
  add_distribution(j, "queue_ms", m.requests.queue_ms);
  j["num_steps"] = m.steps.num_steps;
  j["mean_batch_size"] = d.mean_occupancy;
  j["num_preemptions"] = m.requests.num_preemptions;
  j["prompt_tokens_asked"] = m.steps.prompt_tokens.num_asked;
  j["prompt_tokens_computed"] = m.steps.prompt_tokens.num_computed;
  j["prompt_tokens_saved"] = m.steps.prompt_tokens.num_saved;
  j["num_equal_rows"] = m.num_equal_rows;
  j["prompt_tokens_repeated"] = m.num_repeated_tokens;
  j["prompt_tokens_repeated_granularity"] = m.repeated_granularity;
  j["prefix_cache_evictions"] = m.steps.num_evictions;
  j["kv_block_copies"] = m.steps.num_block_copies;
  j["kv_blocks_swapped_out"] = m.steps.num_swapped_out;
  j["kv_blocks_swapped_in"] = m.steps.num_swapped_in;
  j["kv_swapped_bytes"] = swapped_bytes(m);
  if (m.requests.num_scored_tokens > 0) {
    j["scored_tokens"] = m.requests.num_scored_tokens;
    j["scored_logprob"] = m.requests.scored_logprob;
    j["perplexity"] = perplexity(m);
  }
  add_speculation(j, m);
  add_adapters(j, m);
  j["kv_cache_usage_mean"] = d.kv_use;
  j["kv_cache_usage_peak"] = d.kv_peak;
  j["kv_cache_waste"] = d.kv_waste;
  j["mfu"] = d.mfu ? nlohmann::ordered_json(*d.mfu) : nullptr;
  j["mbu"] = d.mbu ? nlohmann::ordered_json(*d.mbu) : nullptr;
  j["peak_flops"] = c.limits.flops_per_s;
  j["peak_bandwidth"] = c.limits.bytes_per_s;
  j["machine_limits"] = c.limits_were_given ? "given" : "measured";
  add_energy_member(c.energy, &j);
  add_figure_members(m, &j);
  std::string out = j.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
  if (!extra_json_members.empty()) out = "{" + extra_json_members + "," + out.substr(1);
  return out + "\n";
}

}  // namespace llmb
