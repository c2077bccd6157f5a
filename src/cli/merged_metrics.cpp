#include "cli/merged_metrics.h"

#include <algorithm>
#include <cmath>
#include <ctime>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/whole_file.h"
#include "cli/version.h"
#include "io/line_reader.h"

namespace llmb {

namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kSummed[] = {"completed",
                                   "failed",
                                   "model_load_time_s",
                                   "total_input_tokens",
                                   "total_output_tokens",
                                   "num_steps",
                                   "num_preemptions",
                                   "prompt_tokens_asked",
                                   "prompt_tokens_computed",
                                   "prompt_tokens_saved",
                                   "num_equal_rows",
                                   "prompt_tokens_repeated",
                                   "prefix_cache_evictions",
                                   "kv_block_copies",
                                   "kv_blocks_swapped_out",
                                   "kv_blocks_swapped_in",
                                   "kv_swapped_bytes",
                                   "adapter_reads",
                                   "speculation_steps",
                                   "speculation_tree_steps",
                                   "speculation_saved_s",
                                   "speculation_kv_blocks_taken_back",
                                   "recomputed_tokens",
                                   "scored_tokens",
                                   "scored_logprob"};

double number(const Json& object, const char* name) {
  const auto at = object.find(name);
  return at != object.end() && at->is_number() ? at->get<double>() : 0;
}

void add_number(const Json& from, const char* name, Json* to) {
  const auto at = from.find(name);
  if (at == from.end() || !at->is_number()) return;
  auto& sum = (*to)[name];
  if (at->is_number_integer() && (sum.is_null() || sum.is_number_integer()))
    sum = (sum.is_null() ? 0 : sum.get<int64_t>()) + at->get<int64_t>();
  else sum = (sum.is_null() ? 0 : sum.get<double>()) + at->get<double>();
}

struct Sums {
  Json line = Json::object(), time = Json::object(), ranks = Json::object(), adapters = Json::object();
  double duration = 0, longest = 0;
  int64_t num_runs = 0;

  // The seconds that the run computed.
  double add(const Json& run) {
    ++num_runs;
    for (const char* name : kSummed) add_number(run, name, &line);
    if (const auto at = run.find("time"); at != run.end() && at->is_object())
      for (const auto& [name, value] : at->items()) add_number(*at, name.c_str(), &time);
    if (const auto at = run.find("ranks"); at != run.end() && at->is_object()) add_ranks(*at);
    if (const auto at = run.find("adapters"); at != run.end() && at->is_object())
      for (const auto& [name, totals] : at->items())
        if (totals.is_object())
          for (const auto& [total, value] : totals.items()) add_number(totals, total.c_str(), &adapters[name]);
    return number(run, "duration");
  }

 private:
  // Rank by rank; a shard may have had fewer than another one.
  void add_ranks(const Json& of_run) {
    add_number(of_run, "step_s", &ranks);
    const auto at = of_run.find("idle_s");
    if (at == of_run.end() || !at->is_array()) return;
    Json& idle_s = ranks["idle_s"];
    for (size_t rank = 0; rank < at->size(); ++rank) {
      if (rank == idle_s.size()) idle_s.push_back(0.0);
      if ((*at)[rank].is_number()) idle_s[rank] = idle_s[rank].get<double>() + (*at)[rank].get<double>();
    }
  }
};

Status add_file(const std::string& path, Sums* sums) {
  if (path.empty() || !file_exists(path)) return {};
  LineReader lines({path}, kDefaultMaxLineBytes, real_file_ops(), InputFormat::kJsonLines);
  double seconds = 0;
  while (true) {
    LLMB_ASSIGN_OR_RETURN(const auto line, lines.next());
    if (!line) break;
    const Json run = Json::parse(line->bytes, nullptr, /*allow_exceptions=*/false);
    if (run.is_object()) seconds += sums->add(run);
  }
  sums->duration += seconds;
  sums->longest = std::max(sums->longest, seconds);
  return {};
}

std::string date_now() {
  char date[32];
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&now, &utc);
  std::strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%SZ", &utc);
  return date;
}

}  // namespace

Result<std::string> merged_metrics(const std::vector<std::string>& files, const MergedOutput& merged) {
  Sums sums;
  for (const std::string& path : files) LLMB_RETURN_IF_ERROR(add_file(path, &sums));
  Json j;
  j["date"] = date_now();
  j["version"] = kVersion;
  j["inputs"] = merged.shards;
  j["output"] = merged.output;
  j["exit_code"] = merged.exit_code;
  j["num_shards"] = merged.shards.size();
  j["num_runs"] = sums.num_runs;
  j["num_records"] = merged.num_records;
  j["num_failed_records"] = merged.num_failed;
  j["duration"] = sums.longest;
  j["shard_duration"] = sums.duration;
  for (const auto& [name, value] : sums.line.items()) j[name] = value;
  const double per_second = sums.longest > 0 ? 1 / sums.longest : 0;
  j["request_throughput"] = number(sums.line, "completed") * per_second;
  j["input_throughput"] = number(sums.line, "total_input_tokens") * per_second;
  j["output_throughput"] = number(sums.line, "total_output_tokens") * per_second;
  if (const double scored = number(sums.line, "scored_tokens"); scored > 0)
    j["perplexity"] = std::exp(-number(sums.line, "scored_logprob") / scored);
  if (!sums.time.empty()) j["time"] = sums.time;
  if (!sums.ranks.empty()) j["ranks"] = sums.ranks;
  if (!sums.adapters.empty()) j["adapters"] = sums.adapters;
  return j.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace llmb
