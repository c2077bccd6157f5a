#include "report/read_metrics.h"

#include <nlohmann/json.hpp>

namespace llmb {

namespace {

using Json = nlohmann::ordered_json;

std::optional<double> number(const Json& object, const std::string& name) {
  const auto at = object.find(name);
  if (at == object.end() || !at->is_number()) return std::nullopt;
  return at->get<double>();
}

double number_or_0(const Json& object, const std::string& name) { return number(object, name).value_or(0); }

std::string text(const Json& object, const std::string& name) {
  const auto at = object.find(name);
  if (at == object.end() || at->is_null()) return "";
  return at->is_string() ? at->get<std::string>() : at->dump(-1, ' ', false, Json::error_handler_t::replace);
}

const Json& member(const Json& object, const std::string& name) {
  static const Json kNone = Json::object();
  const auto at = object.find(name);
  return at == object.end() ? kNone : *at;
}

std::vector<double> numbers(const Json& object, const std::string& name) {
  std::vector<double> values;
  for (const Json& value : member(object, name)) values.push_back(value.is_number() ? value.get<double>() : 0);
  return values;
}

Histogram histogram(const Json& line, const std::string& name) {
  Histogram h;
  const Json& object = member(member(line, "histograms"), name);
  h.edges = numbers(object, "edges");
  for (const double count : numbers(object, "counts")) h.counts.push_back(static_cast<int64_t>(count));
  const bool is_whole = h.edges.size() == h.counts.size() + 1;
  return is_whole ? h : Histogram();
}

std::optional<Distribution> distribution(const Json& line, const std::string& name) {
  const std::optional<double> mean = number(line, "mean_" + name);
  if (!mean) return std::nullopt;
  return Distribution{*mean,
                      number_or_0(line, "p50_" + name),
                      number_or_0(line, "p90_" + name),
                      number_or_0(line, "p95_" + name),
                      number_or_0(line, "p99_" + name),
                      number_or_0(line, "max_" + name),
                      histogram(line, name)};
}

std::optional<Distribution> lengths(const Json& line, const std::string& name) {
  Distribution d;
  d.histogram = histogram(line, name);
  if (d.histogram.edges.empty()) return std::nullopt;
  d.max = d.histogram.edges.back();
  return d;
}

void read_facts(const Json& line, RunData* run) {
  const auto add = [&](const char* name, const std::string& value) {
    if (!value.empty()) run->facts.emplace_back(name, value);
  };
  add("model", text(line, "model_id"));
  add("date", text(line, "date"));
  std::string inputs;
  for (const Json& input : member(line, "inputs"))
    if (input.is_string()) inputs += (inputs.empty() ? "" : ", ") + input.get<std::string>();
  add("inputs", inputs);
  add("output", text(line, "output"));
  add("machine", text(line, "machine"));
  for (const auto& [name, value] : member(line, "settings").items()) add(name.c_str(), text(member(line, "settings"), name));
  if (!line.contains("settings"))
    for (const char* name : {"max_num_seqs", "max_num_batched_tokens"}) add(name, text(line, name));
  add("exit code", text(line, "exit_code"));
  add("version", text(line, "version"));
}

void read_requests(const Json& line, RunData* run) {
  for (const Json& r : member(member(line, "requests"), "sample")) {
    if (!r.is_array() || r.size() != 4) continue;
    const auto value = [&](int i) { return r[i].is_number() ? r[i].get<double>() : 0; };
    run->sample.push_back({"", "", value(0), value(1), 0, value(2), value(3)});
  }
  for (const Json& r : member(member(line, "requests"), "slowest"))
    if (r.is_object())
      run->slowest.push_back({text(r, "line"), text(r, "id"), number_or_0(r, "input_tokens"),
                              number_or_0(r, "output_tokens"), number_or_0(r, "queue_ms"), number_or_0(r, "ttft_ms"),
                              number_or_0(r, "e2el_ms")});
  for (const Json& e : member(line, "errors"))
    if (e.is_object())
      run->errors.push_back({text(e, "code"), text(e, "message"), text(e, "first_at"),
                             static_cast<int64_t>(number_or_0(e, "count"))});
}

void read_times(const Json& line, RunData* run) {
  if (line.contains("time")) {
    const Json& t = member(line, "time");
    run->times = {number_or_0(t, "prefill_s"), number_or_0(t, "decode_s"), number_or_0(t, "recomputed_s"),
                  number_or_0(t, "tail_s"), number_or_0(t, "gap_s")};
  }
  const Json& ranks = member(line, "ranks");
  run->ranks = {number_or_0(ranks, "step_s"), numbers(ranks, "idle_s")};
  const Json& t = member(line, "timeline");
  RunTimeline timeline = {number_or_0(t, "bin_s"),   numbers(t, "input_tokens"), numbers(t, "output_tokens"),
                          numbers(t, "running"), numbers(t, "waiting"),      numbers(t, "kv_use")};
  const size_t n = timeline.output_tokens.size();
  const bool is_whole = timeline.input_tokens.size() == n && timeline.running.size() == n &&
                        timeline.waiting.size() == n && timeline.kv_use.size() == n;
  if (timeline.bin_s > 0 && n > 0 && is_whole) run->timeline = std::move(timeline);
}

void read_savings(const Json& line, RunData* run) {
  run->prompt_tokens_asked = number(line, "prompt_tokens_asked");
  run->prompt_tokens_saved = number(line, "prompt_tokens_saved");
  run->equal_rows = number(line, "num_equal_rows");
  run->recomputed_tokens = number(line, "recomputed_tokens");
  for (const auto& [name, kind] : member(line, "speculation").items())
    run->drafters.push_back({name, number_or_0(kind, "drafted_tokens"), number_or_0(kind, "accepted_tokens")});
  run->speculation_saved_s = number(line, "speculation_saved_s");
}

void read_machine(const Json& line, RunData* run) {
  run->mfu = number(line, "mfu");
  run->mbu = number(line, "mbu");
  run->peak_flops = number(line, "peak_flops");
  run->peak_bandwidth = number(line, "peak_bandwidth");
  run->limits_were_given = text(line, "machine_limits") == "given";
  run->kv_use_mean = number(line, "kv_cache_usage_mean");
  run->kv_use_peak = number(line, "kv_cache_usage_peak");
  for (const Json& e : member(line, "energy"))
    if (e.is_object()) run->energy.push_back({text(e, "source"), text(e, "absent"), number(e, "joules")});
}

}  // namespace

Result<RunData> read_metrics_line(std::string_view bytes) {
  const Json line = Json::parse(bytes, nullptr, /*allow_exceptions=*/false);
  if (!line.is_object() || !line.contains("completed") || !line.contains("duration"))
    return invalid_argument("not a line of a metrics file");
  RunData run;
  read_facts(line, &run);
  run.completed = static_cast<int64_t>(number_or_0(line, "completed"));
  run.failed = static_cast<int64_t>(number_or_0(line, "failed"));
  run.unanswered = static_cast<int64_t>(number_or_0(line, "unanswered"));
  run.duration_s = number(line, "duration");
  run.input_tokens = number_or_0(line, "total_input_tokens");
  run.output_tokens = number_or_0(line, "total_output_tokens");
  run.mean_batch = number(line, "mean_batch_size");
  run.num_preemptions = number(line, "num_preemptions");
  if (run.completed > 0) {
    run.ttft_ms = distribution(line, "ttft_ms");
    run.tpot_ms = distribution(line, "tpot_ms");
    run.itl_ms = distribution(line, "itl_ms");
    run.e2e_ms = distribution(line, "e2el_ms");
    run.queue_ms = distribution(line, "queue_ms");
    run.input_lengths = lengths(line, "input_tokens");
    run.output_lengths = lengths(line, "output_tokens");
  }
  read_requests(line, &run);
  read_times(line, &run);
  read_savings(line, &run);
  read_machine(line, &run);
  return run;
}

}  // namespace llmb
