#include "report/page.h"

#include <algorithm>

#include "base/check.h"
#include "report/page_style.h"
#include "report/sections.h"
#include "report/svg.h"

namespace llmb {

namespace {

std::string fact(const RunData& run, const std::string& name) {
  const auto at = std::find_if(run.facts.begin(), run.facts.end(), [&](const auto& f) { return f.first == name; });
  return at == run.facts.end() ? "" : at->second;
}

// "/models/Qwen2.5-0.5B/" → "Qwen2.5-0.5B"
std::string last_part(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  return path.substr(path.rfind('/') + 1);
}

std::string title_of(const Runs& runs) {
  std::string model = last_part(fact(runs[0], "model"));
  if (model.empty()) model = runs[0].facts.empty() ? "llm-batch" : last_part(runs[0].facts[0].second);
  return runs.size() == 1 ? model : model + ": " + std::to_string(runs.size()) + " runs";
}

std::string about(const RunData& run) {
  std::string text;
  for (const char* name : {"date", "device", "machine", "inputs"})
    if (const std::string value = fact(run, name); !value.empty()) text += (text.empty() ? "" : " · ") + value;
  return text;
}

}  // namespace

std::string draw_report(const Runs& runs, const ReportOptions& options) {
  LLMB_CHECK(!runs.empty() && runs.size() <= kMaxReportRuns);
  const std::string title = title_of(runs);
  std::string out =
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n<title>" +
      escape_html(title) + " – llm-batch</title>\n<style>" + kPageStyle + "</style>\n</head>\n<body>\n<main>\n";
  out += "<header><p class=\"kind\">llm-batch report</p><h1><bdi>" + escape_html(title) + "</bdi></h1>\n<p class=\"about\"><bdi>" +
         escape_html(about(runs[0])) + "</bdi></p>" + draw_run_names(runs) + "</header>\n";
  if (runs.size() == 1) out += draw_tiles(runs[0], options);
  else out += draw_comparison(runs, options);
  out += draw_errors(runs) + draw_over_time(runs) + draw_time_spent(runs) + draw_latencies(runs) + draw_lengths(runs) +
         draw_savings(runs) + draw_efficiency(runs, options) + draw_slowest(runs) + draw_facts(runs);
  return out + "<footer>Made by llm-batch" + (fact(runs[0], "version").empty() ? "" : " " + escape_html(fact(runs[0], "version"))) +
         ". The file needs no network.</footer>\n</main>\n</body>\n</html>\n";
}

}  // namespace llmb
