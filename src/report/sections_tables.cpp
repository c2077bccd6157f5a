// The parts of a report that are figures in tables.
#include <algorithm>
#include <functional>
#include <set>

#include "report/html.h"
#include "report/sections.h"
#include "report/svg.h"

namespace llmb {

namespace {

using Value = std::function<std::optional<std::string>(const RunData&)>;

// A row for each value that some run has; a column for each run.
std::string value_table(const Runs& runs, const std::vector<std::pair<std::string, Value>>& values) {
  std::vector<TableRow> rows;
  for (const auto& [name, value] : values) {
    TableRow row = {{text_cell(name)}};
    bool is_known = false;
    for (const RunData& run : runs) {
      const std::optional<std::string> text = value(run);
      is_known |= text.has_value();
      row.cells.push_back(!text ? absent_cell() : runs.size() > 1 ? number_cell(*text) : text_cell(*text));
    }
    if (is_known) rows.push_back(std::move(row));
  }
  if (rows.empty()) return "";
  std::vector<Cell> columns;
  if (runs.size() > 1) {
    columns.push_back(text_cell(""));
    for (const RunData& run : runs) columns.push_back({text_cell(run.name).html, true});
  }
  return table(columns, rows);
}

std::optional<std::string> count(const std::optional<double>& value) {
  return value ? std::optional(format_count(*value)) : std::nullopt;
}

std::optional<double> per_second(const RunData& run, double tokens) {
  if (!run.duration_s || !(*run.duration_s > 0)) return std::nullopt;
  return tokens / *run.duration_s;
}

std::string money(double value) {
  char text[64];
  std::snprintf(text, sizeof text, value > 0 && value < 0.01 ? "%.2g" : "%.2f", value);
  return text;
}

std::optional<double> joules(const RunData& run) {
  std::optional<double> sum;
  for (const RunEnergy& e : run.energy)
    if (e.joules) sum = sum.value_or(0) + *e.joules;
  return sum;
}

std::string tile(const std::string& value, const std::string& name) {
  return "<div class=\"tile\"><b>" + escape_html(value) + "</b><span>" + escape_html(name) + "</span></div>\n";
}

}  // namespace

std::optional<RunCost> cost_of(const RunData& run, const ReportOptions& options) {
  if (!options.price_per_hour || !run.duration_s || run.completed == 0) return std::nullopt;
  RunCost cost;
  cost.whole_run = *options.price_per_hour * *run.duration_s / 3600;
  cost.thousand_requests = 1000 * cost.whole_run / static_cast<double>(run.completed);
  const double tokens = run.input_tokens + run.output_tokens;
  if (!(tokens > 0)) return std::nullopt;
  cost.input_million = cost.output_million = 1e6 * cost.whole_run / tokens;
  if (!run.times || !(run.input_tokens > 0) || !(run.output_tokens > 0)) return cost;
  const RunTimes& t = *run.times;
  const double input = t.prefill, output = t.decode + t.tail + t.recomputed;
  if (!(input + output > 0)) return cost;
  cost.is_divided = true;
  cost.input_million = 1e6 * cost.whole_run * input / (input + output) / run.input_tokens;
  cost.output_million = 1e6 * cost.whole_run * output / (input + output) / run.output_tokens;
  return cost;
}

std::string draw_tiles(const RunData& run, const ReportOptions& options) {
  std::string out = "<div class=\"tiles\">\n";
  out += tile(format_count(static_cast<double>(run.completed)),
              run.failed > 0 ? "requests answered, " + format_count(static_cast<double>(run.failed)) + " failed" : "requests answered");
  if (run.duration_s) out += tile(format_ms(1000 * *run.duration_s), "from the first step to the last record");
  if (const auto rate = per_second(run, run.output_tokens)) out += tile(format_count(*rate), "output tokens/s");
  if (const auto rate = per_second(run, run.input_tokens)) out += tile(format_count(*rate), "input tokens/s");
  if (run.ttft_ms) out += tile(format_ms(run.ttft_ms->p50), "median TTFT");
  if (run.tpot_ms && run.tpot_ms->p50 > 0) out += tile(format_ms(run.tpot_ms->p50), "median TPOT");
  if (const auto cost = cost_of(run, options))
    out += tile(money(cost->thousand_requests), "cost of 1,000 requests");
  return out + "</div>\n";
}

std::string draw_run_names(const Runs& runs) {
  if (runs.size() < 2) return "";
  std::string out = "<ul class=\"keys\">";
  for (size_t i = 0; i < runs.size(); ++i)
    out += "<li class=\"key c" + std::to_string(i) + "\"><bdi>" + escape_html(runs[i].name) + "</bdi></li>";
  return out + "</ul>\n";
}

std::string draw_comparison(const Runs& runs, const ReportOptions& options) {
  if (runs.size() < 2) return "";
  std::vector<std::pair<std::string, Value>> values = {
      {"requests answered", [](const RunData& r) { return count(static_cast<double>(r.completed)); }},
      {"failed", [](const RunData& r) { return count(static_cast<double>(r.failed)); }},
      {"duration", [](const RunData& r) { return r.duration_s ? std::optional(format_ms(1000 * *r.duration_s)) : std::nullopt; }},
      {"output tokens/s", [](const RunData& r) { return count(per_second(r, r.output_tokens)); }},
      {"input tokens/s", [](const RunData& r) { return count(per_second(r, r.input_tokens)); }},
      {"mean batch", [](const RunData& r) { return count(r.mean_batch); }},
      {"median TTFT", [](const RunData& r) { return r.ttft_ms ? std::optional(format_ms(r.ttft_ms->p50)) : std::nullopt; }},
      {"median TPOT", [](const RunData& r) { return r.tpot_ms ? std::optional(format_ms(r.tpot_ms->p50)) : std::nullopt; }},
      {"p99 E2E", [](const RunData& r) { return r.e2e_ms ? std::optional(format_ms(r.e2e_ms->p99)) : std::nullopt; }}};
  if (options.price_per_hour)
    values.emplace_back("cost of 1,000 requests", [&](const RunData& r) {
      const auto cost = cost_of(r, options);
      return cost ? std::optional(money(cost->thousand_requests)) : std::nullopt;
    });
  return value_table(runs, values);
}

std::string draw_facts(const Runs& runs) {
  std::vector<std::string> names;
  for (const RunData& run : runs)
    for (const auto& [name, value] : run.facts)
      if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
  std::vector<TableRow> rows;
  for (const std::string& name : names) {
    TableRow row = {{text_cell(name)}};
    std::set<std::string> different;
    for (const RunData& run : runs) {
      const auto at = std::find_if(run.facts.begin(), run.facts.end(), [&](const auto& f) { return f.first == name; });
      row.cells.push_back(at == run.facts.end() ? Cell{absent_cell().html, false} : text_cell(at->second));
      different.insert(at == run.facts.end() ? "" : at->second);
    }
    row.differs = different.size() > 1 && name != "date" && name != "output";
    rows.push_back(std::move(row));
  }
  if (rows.empty()) return "";
  std::vector<Cell> columns;
  if (runs.size() > 1) {
    columns.push_back(text_cell(""));
    for (const RunData& run : runs) columns.push_back(text_cell(run.name));
  }
  return section("What ran", "", table(columns, rows));
}

std::string draw_savings(const Runs& runs) {
  const auto share = [](double part, double whole) {
    return format_count(part) + (whole > 0 ? " (" + format_percent(part / whole) + ")" : "");
  };
  const std::vector<std::pair<std::string, Value>> values = {
      {"prompt tokens found in the prefix cache",
       [&](const RunData& r) -> std::optional<std::string> {
         if (!r.prompt_tokens_saved) return std::nullopt;
         return share(*r.prompt_tokens_saved, r.prompt_tokens_asked.value_or(0));
       }},
      {"rows answered with an equal one", [](const RunData& r) { return count(r.equal_rows); }},
      {"guessed tokens that were right",
       [&](const RunData& r) -> std::optional<std::string> {
         double drafted = 0, accepted = 0;
         for (const RunSpeculation& d : r.drafters) drafted += d.drafted, accepted += d.accepted;
         return r.drafters.empty() ? std::nullopt : std::optional(share(accepted, drafted));
       }},
      {"time saved by guessing",
       [](const RunData& r) {
         return r.speculation_saved_s ? std::optional(format_ms(1000 * *r.speculation_saved_s)) : std::nullopt;
       }},
      {"tokens computed again after a preemption", [](const RunData& r) { return count(r.recomputed_tokens); }},
      {"preemptions", [](const RunData& r) { return count(r.num_preemptions); }}};
  const std::string body = value_table(runs, values);
  return body.empty() ? "" : section("Saved, and lost", "", body);
}

std::string draw_efficiency(const Runs& runs, const ReportOptions& options) {
  const auto of_limit = [](const std::optional<double>& share, const std::optional<double>& peak, const char* unit,
                           bool is_given) -> std::optional<std::string> {
    if (!share || !peak) return std::nullopt;
    return format_percent(*share) + " of " + format_count(*peak) + unit + (is_given ? ", given" : ", measured");
  };
  std::vector<std::pair<std::string, Value>> values = {
      {"MFU (arithmetic)", [&](const RunData& r) { return of_limit(r.mfu, r.peak_flops, "FLOP/s", r.limits_were_given); }},
      {"MBU (memory)", [&](const RunData& r) { return of_limit(r.mbu, r.peak_bandwidth, "B/s", r.limits_were_given); }},
      {"mean batch", [](const RunData& r) { return count(r.mean_batch); }},
      {"KV cache, mean and peak",
       [](const RunData& r) -> std::optional<std::string> {
         if (!r.kv_use_mean || !r.kv_use_peak) return std::nullopt;
         return format_percent(*r.kv_use_mean) + ", " + format_percent(*r.kv_use_peak);
       }},
      {"energy per output token",
       [](const RunData& r) -> std::optional<std::string> {
         const std::optional<double> sum = joules(r);
         if (!sum || !(r.output_tokens > 0)) return std::nullopt;
         return format_count(*sum / r.output_tokens) + " J";
       }},
      {"energy counters", [](const RunData& r) -> std::optional<std::string> {
         std::string text;
         for (const RunEnergy& e : r.energy)
           text += (text.empty() ? "" : "; ") + e.source + ": " +
                   (e.joules ? format_count(*e.joules) + " J" : "absent, " + e.absent_because);
         return text.empty() ? std::nullopt : std::optional(text);
       }}};
  const auto cost = [&](const char* name, double RunCost::* member) {
    values.emplace_back(name, [&options, member](const RunData& r) {
      const auto known = cost_of(r, options);
      return known ? std::optional(money((*known).*member)) : std::nullopt;
    });
  };
  if (options.price_per_hour) {
    cost("cost of 1 M input tokens", &RunCost::input_million);
    cost("cost of 1 M output tokens", &RunCost::output_million);
    cost("cost of 1,000 requests", &RunCost::thousand_requests);
    cost("cost of the run", &RunCost::whole_run);
  }
  const std::string body = value_table(runs, values);
  if (body.empty()) return "";
  const std::string lead = !options.price_per_hour ? ""
                           : "At " + money(*options.price_per_hour) +
                                 " an hour; the run's cost is divided among tokens in and out by the time that they took.";
  return section("Efficiency", lead, body);
}

std::string draw_errors(const Runs& runs) {
  std::vector<TableRow> rows;
  for (const RunData& run : runs)
    for (const RunError& e : run.errors) {
      TableRow row = {{code_cell(e.code), number_cell(format_count(static_cast<double>(e.count))), text_cell(e.message),
                       code_cell(e.first_at)}};
      if (runs.size() > 1) row.cells.insert(row.cells.begin() + 1, text_cell(run.name));
      rows.push_back(std::move(row));
    }
  if (rows.empty()) return "";
  std::vector<Cell> columns = {text_cell("kind"), number_cell("lines"), text_cell("message of the first"), text_cell("first at")};
  if (runs.size() > 1) columns.insert(columns.begin() + 1, text_cell("run"));
  return section("Errors", "", table(columns, rows));
}

std::string draw_slowest(const Runs& runs) {
  std::vector<TableRow> rows;
  for (const RunData& run : runs)
    for (const RunRequest& r : run.slowest) {
      if (runs.size() > 1 && &r - run.slowest.data() >= 3) break;
      TableRow row = {{code_cell(r.line)}};
      if (runs.size() > 1) row.cells.push_back(text_cell(run.name));
      row.cells.push_back(code_cell(r.id));
      for (const double tokens : {r.input_tokens, r.output_tokens}) row.cells.push_back(number_cell(format_count(tokens)));
      for (const double ms : {r.queue_ms, r.ttft_ms, r.e2e_ms}) row.cells.push_back(number_cell(format_ms(ms)));
      rows.push_back(std::move(row));
    }
  if (rows.empty()) return "";
  std::vector<Cell> columns = {text_cell("line")};
  if (runs.size() > 1) columns.push_back(text_cell("run"));
  columns.push_back(text_cell("id"));
  for (const char* name : {"in", "out", "queue", "TTFT", "E2E"}) columns.push_back(number_cell(name));
  return section("Slowest rows", "By E2E, from arrival to the last token.", table(columns, rows));
}

}  // namespace llmb
