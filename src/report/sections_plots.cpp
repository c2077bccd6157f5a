// The parts of a report that are plots.
#include <algorithm>
#include <string>

#include "report/html.h"
#include "report/sections.h"
#include "report/svg.h"

namespace llmb {

namespace {

using Values = std::vector<double> RunTimeline::*;

// Bins are put together until there are few enough to see each.
constexpr size_t kMaxPoints = 80;

struct Stretch {
  double begin = 0, end = 0, sum = 0, num_busy = 0;  // bins with a sequence
};

std::vector<Stretch> stretches_of(const RunData& run, Values values) {
  const RunTimeline& t = *run.timeline;
  const size_t num_bins = (t.*values).size(), step = (num_bins + kMaxPoints - 1) / kMaxPoints;
  std::vector<Stretch> all;
  for (size_t bin = 0; bin < num_bins; ++bin) {
    if (bin % step == 0) all.push_back({t.bin_s * static_cast<double>(bin), 0, 0, 0});
    all.back().end = t.bin_s * static_cast<double>(bin + 1);
    all.back().sum += (t.*values)[bin];
    all.back().num_busy += t.running[bin] > 0;
  }
  // The run may have ended in the middle of the last bin.
  if (Stretch& last = all.back(); run.duration_s && *run.duration_s > last.begin) last.end = std::min(last.end, *run.duration_s);
  return all;
}

// One series for every run with a timeline: rates per second, or means while something ran.
std::vector<Series> over_time(const Runs& runs, Values values, SeriesLook look, bool is_rate, const char* name,
                              int colour_step) {
  std::vector<Series> all;
  for (size_t i = 0; i < runs.size(); ++i) {
    if (!runs[i].timeline) continue;
    Series s = {runs[i].name + (runs[i].name.empty() ? "" : ": ") + name, static_cast<int>(i) + colour_step, look, {}};
    for (const Stretch& stretch : stretches_of(runs[i], values)) {
      if (!is_rate && stretch.num_busy == 0) continue;
      s.points.emplace_back((stretch.begin + stretch.end) / 2,
                            stretch.sum / (is_rate ? stretch.end - stretch.begin : stretch.num_busy));
    }
    all.push_back(std::move(s));
  }
  return all;
}

std::string time_plot(const char* title, Unit unit, const std::vector<Series>& series,
                      const std::string& note) {
  return figure(title, note, draw_plot(title, {"since the first step", Unit::kSeconds}, {"", unit}, series));
}

using Latency = std::optional<Distribution> RunData::*;

std::string histogram_figure(const Runs& runs, const char* title, const char* note, const Axis& x, Latency latency) {
  std::vector<HistogramSeries> series;
  std::vector<Mark> marks;
  for (size_t i = 0; i < runs.size(); ++i) {
    const std::optional<Distribution>& d = runs[i].*latency;
    if (d && !d->histogram.counts.empty()) series.push_back({runs[i].name, static_cast<int>(i), &d->histogram});
  }
  if (series.empty()) return "";
  if (const std::optional<Distribution>& d = runs[0].*latency; runs.size() == 1 && d && d->p50 > 0)
    marks = {{"p50", d->p50}, {"p90", d->p90}, {"p99", d->p99}};
  return figure(title, note, draw_histograms(title, x, series, marks));
}

}  // namespace

std::string draw_over_time(const Runs& runs) {
  if (std::none_of(runs.begin(), runs.end(), [](const RunData& r) { return r.timeline.has_value(); })) return "";
  const bool is_one = runs.size() == 1;
  std::vector<std::string> figures;
  const SeriesLook look = is_one ? SeriesLook::kArea : SeriesLook::kLine;
  figures.push_back(time_plot("Output tokens per second", Unit::kCount,
                              over_time(runs, &RunTimeline::output_tokens, look, true, "output", 0), ""));
  figures.push_back(time_plot("Prompt tokens computed per second", Unit::kCount,
                              over_time(runs, &RunTimeline::input_tokens, look, true, "input", is_one ? 2 : 0), ""));
  std::vector<Series> batch = over_time(runs, &RunTimeline::running, look, false, "running", 0);
  for (Series& s : over_time(runs, &RunTimeline::waiting, SeriesLook::kDashed, false, "queue", is_one ? 1 : 0))
    batch.push_back(std::move(s));
  figures.push_back(time_plot("Batch and queue", Unit::kCount, batch, "sequences; dashed: admitted and waiting"));
  figures.push_back(time_plot("KV cache in use", Unit::kPercent,
                              over_time(runs, &RunTimeline::kv_use, look, false, "KV", is_one ? 3 : 0), "share of the pool"));
  return section("Over time", "", plots(figures));
}

std::string draw_latencies(const Runs& runs) {
  const Axis x = {"", Unit::kMilliseconds, true};
  std::vector<std::string> figures;
  const auto add = [&](const char* title, const char* note, Latency latency) {
    std::string f = histogram_figure(runs, title, note, x, latency);
    if (!f.empty()) figures.push_back(std::move(f));
  };
  add("TTFT", "time to the first token, queue included", &RunData::ttft_ms);
  add("TPOT", "mean time per later token", &RunData::tpot_ms);
  add("ITL", "time between two tokens", &RunData::itl_ms);
  add("E2E", "arrival to the last token", &RunData::e2e_ms);
  std::vector<TableRow> rows;
  for (const auto& [name, latency] : std::initializer_list<std::pair<const char*, Latency>>{
           {"TTFT", &RunData::ttft_ms}, {"TPOT", &RunData::tpot_ms}, {"ITL", &RunData::itl_ms},
           {"E2E", &RunData::e2e_ms}, {"queue", &RunData::queue_ms}})
    for (const RunData& run : runs) {
      if (!(run.*latency)) continue;
      const Distribution& d = *(run.*latency);
      TableRow row = {{text_cell(run.name.empty() ? name : std::string(name) + " · " + run.name)}};
      for (const double value : {d.mean, d.p50, d.p90, d.p95, d.p99, d.max}) row.cells.push_back(number_cell(format_ms(value)));
      rows.push_back(std::move(row));
    }
  if (rows.empty()) return "";
  const std::vector<Cell> columns = {text_cell(""),      number_cell("mean"), number_cell("p50"), number_cell("p90"),
                                     number_cell("p95"), number_cell("p99"),  number_cell("max")};
  return section("Latency", "Offline, all requests arrive at once: TTFT and E2E hold the wait for a place in the batch. " +
                     std::string(runs.size() > 1 ? "Curves: the share that took at most so long" : "Bars are shares of all") +
                     "; the time axis is logarithmic.",
                 (figures.empty() ? "" : plots(figures)) + table(columns, rows));
}

std::string draw_lengths(const Runs& runs) {
  std::vector<std::string> figures;
  std::vector<Series> dots;
  for (size_t i = 0; i < runs.size(); ++i) {
    Series s = {runs[i].name, static_cast<int>(i), SeriesLook::kDots, {}};
    for (const RunRequest& r : runs[i].sample) s.points.emplace_back(r.input_tokens, r.ttft_ms);
    if (!s.points.empty()) dots.push_back(std::move(s));
  }
  if (!dots.empty())
    figures.push_back(figure("TTFT against input length", "requests drawn at random",
                             draw_plot("TTFT against input length", {"prompt tokens", Unit::kCount},
                                       {"", Unit::kMilliseconds}, dots)));
  for (const auto& [title, latency] : std::initializer_list<std::pair<const char*, Latency>>{
           {"Output lengths", &RunData::output_lengths}, {"Input lengths", &RunData::input_lengths}}) {
    std::string f = histogram_figure(runs, title, "share of requests", {"tokens", Unit::kCount}, latency);
    if (!f.empty()) figures.push_back(std::move(f));
  }
  return figures.empty() ? "" : section("Lengths", "", plots(figures));
}

namespace {

// The bubbles of ranks that compute one model together: stages of a pipeline, or parts of layers.
std::string idle_ranks(const RunRanks& ranks) {
  if (!(ranks.step_s > 0) || ranks.idle_s.empty()) return "";
  std::string text = "<p class=\"about\">Of the steps' time, ranks were idle: ";
  for (size_t rank = 0; rank < ranks.idle_s.size(); ++rank)
    text += (rank == 0 ? "rank " : ", rank ") + std::to_string(rank) + " <b>" +
            escape_html(format_percent(ranks.idle_s[rank] / ranks.step_s)) + "</b>";
  return text + ".</p>\n";
}

}  // namespace

std::string draw_time_spent(const Runs& runs) {
  std::string body;
  for (const RunData& run : runs) {
    if (!run.times || !run.duration_s || !(*run.duration_s > 0)) continue;
    const RunTimes& t = *run.times;
    const double known = t.prefill + t.decode + t.recomputed + t.tail + t.gap;
    const std::pair<const char*, double> parts[] = {{"prefill", t.prefill},
                                                    {"decode", t.decode},
                                                    {"tail: few rows left", t.tail},
                                                    {"computed again", t.recomputed},
                                                    {"bubbles between steps", t.gap},
                                                    {"rest: waiting for input, writing", std::max(0.0, *run.duration_s - known)}};
    const double total = std::max(known, *run.duration_s);
    std::string bar = "<svg class=\"shares\" viewBox=\"0 0 1000 22\" preserveAspectRatio=\"none\" role=\"img\" aria-label=\"where the time went\">";
    std::string keys;
    double x = 0;
    for (size_t i = 0; i < std::size(parts); ++i) {
      const double share = parts[i].second / total;
      const std::string colour = i == 5 ? "rest" : "c" + std::to_string(i);
      char rect[128];
      std::snprintf(rect, sizeof rect, "<rect class=\"%s\" x=\"%.2f\" y=\"0\" width=\"%.2f\" height=\"22\"/>", colour.c_str(), 1000 * x, 1000 * share);
      bar += rect;
      x += share;
      keys += "<li class=\"key " + colour + "\">" + escape_html(parts[i].first) + " <b>" + escape_html(format_percent(share)) +
              "</b> <small class=\"none\">" + escape_html(format_ms(1000 * parts[i].second)) + "</small></li>";
    }
    if (!run.name.empty()) body += "<p class=\"about\"><bdi>" + escape_html(run.name) + "</bdi></p>";
    body += bar + "</svg><ul class=\"keys\">" + keys + "</ul>\n" + idle_ranks(run.ranks);
  }
  if (body.empty()) return "";
  return section("Where the time went",
                 "A step's time is divided among its rows. Tail: steps with less than half of the batch, when nothing waits any more.",
                 body);
}

}  // namespace llmb
