// The report's pieces: escaping, ticks, numbers, data that is missing or hostile, and what is kept of many requests.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "core/request_sample.h"
#include "report/page.h"
#include "report/read_metrics.h"
#include "report/read_records.h"
#include "report/sections.h"
#include "report/svg.h"

namespace llmb::test {

namespace {

int count_of(const std::string& text, const std::string& part) {
  int count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

const std::string kHostile = "</svg><script>alert(1)</script>\"'&\x01\xff\u202e";

const std::string kLine =
    R"({"model_id":"/m/tiny","date":"today","inputs":["in.jsonl"],"output":"out.jsonl","completed":3,"failed":1,)"
    R"("duration":2.0,"total_input_tokens":300,"total_output_tokens":100,"mean_ttft_ms":5,"p50_ttft_ms":4,)"
    R"("p99_ttft_ms":9,"max_ttft_ms":9,"histograms":{"ttft_ms":{"edges":[1,3,9],"counts":[1,2]}},)"
    R"("time":{"prefill_s":0.5,"decode_s":1.0,"tail_s":0.5,"recomputed_s":0,"gap_s":0},)"
    R"("ranks":{"step_s":1.0,"idle_s":[0.25,0.5]},)"
    R"("timeline":{"bin_s":1,"input_tokens":[300,0],"output_tokens":[40,60],"running":[3,1],"waiting":[1,0],"kv_use":[0.5,0.1]},)"
    R"("requests":{"sample":[[100,30,4,50]],"slowest":[{"line":"in.jsonl:2","id":"\"a\"","e2el_ms":50}]},)"
    R"("energy":[{"source":"RAPL","absent":"not here"}],"errors":[{"code":"invalid_json","count":1,"message":"m","first_at":"in.jsonl:4"}]})";

RunData run_of(const std::string& line) {
  auto run = read_metrics_line(line);
  REQUIRE(run.ok());
  return std::move(*run);
}

}  // namespace

TEST_CASE("text is escaped for HTML, whatever its bytes") {
  CHECK(escape_html("a<b>&\"'") == "a&lt;b&gt;&amp;&quot;&#39;");
  CHECK(escape_html("é日\n") == "é日\n");
  CHECK(escape_html(std::string("\0\x7f", 2)) == "\uFFFD\uFFFD");
  CHECK(escape_html("\xff\xc3") == "\uFFFD\uFFFD");
}

TEST_CASE("ticks are round numbers within their range, few of them") {
  CHECK(linear_ticks(0, 10, 5) == std::vector<double>{0, 2, 4, 6, 8, 10});
  CHECK(logarithmic_ticks(1, 100) == std::vector<double>{1, 2, 5, 10, 20, 50, 100});
  std::mt19937 random(1);
  for (int i = 0; i < 2000; ++i) {
    const double low = std::exp(std::uniform_real_distribution<>(-10, 20)(random));
    const double high = low * (1 + std::exp(std::uniform_real_distribution<>(-5, 15)(random)));
    for (const auto& ticks : {linear_ticks(low, high, 5), logarithmic_ticks(low, high)}) {
      CHECK(ticks.size() <= 30);
      CHECK(std::is_sorted(ticks.begin(), ticks.end()));
      for (const double tick : ticks) CHECK((tick >= low * 0.998 && tick <= high * 1.002));
    }
  }
}

TEST_CASE("numbers are short and have units") {
  CHECK(format_count(0) == "0");
  CHECK(format_count(0.5) == "0.50");
  CHECK(format_count(999) == "999");
  CHECK(format_count(1234) == "1,234");
  CHECK(format_count(12345) == "12.3 k");
  CHECK(format_count(4.5e6) == "4.50 M");
  CHECK(format_ms(0.05) == "50 µs");
  CHECK(format_ms(999) == "999 ms");
  CHECK(format_ms(2500) == "2.50 s");
  CHECK(format_ms(7.2e6) == "2 h");
  CHECK(format_percent(0.123) == "12 %");
  CHECK(format_percent(0.005) == "0.50 %");
}

TEST_CASE("a plot leaves out what cannot be drawn, and says when that is all") {
  const Axis linear = {"x", Unit::kCount, false}, logarithmic = {"x", Unit::kMilliseconds, true};
  CHECK(draw_plot("t", linear, linear, {}).find("no data") != std::string::npos);
  CHECK(draw_plot("t", logarithmic, linear, {{"", 0, SeriesLook::kDots, {{0, 1}, {-1, 1}, {NAN, 1}}}}).find("no data") !=
        std::string::npos);
  const std::string one = draw_plot("t", linear, linear, {{"", 0, SeriesLook::kDots, {{5, 5}, {INFINITY, 1}}}});
  CHECK(count_of(one, "<circle") == 1);
  CHECK(one.find("nan") == std::string::npos);
  const std::string same = draw_plot("t", linear, linear, {{"", 0, SeriesLook::kArea, {{0, 0}, {1, 0}}}});
  CHECK(same.find("nan") == std::string::npos);
  CHECK(same.find("-0") == std::string::npos);
}

TEST_CASE("a histogram draws a bar for each bin that holds something; several are curves of shares") {
  const Axis x = {"", Unit::kMilliseconds, true};
  const Histogram h = {{1, 2, 4, 8}, {3, 0, 1}}, equal = {{5, 5}, {7}}, none;
  CHECK(count_of(draw_histograms("t", x, {{"", 0, &h}}, {{"p50", 2}}), "class=\"bar\"") == 2);
  CHECK(count_of(draw_histograms("t", x, {{"", 0, &equal}}, {}), "class=\"bar\"") == 1);
  CHECK(draw_histograms("t", x, {{"", 0, &none}}, {}).find("no data") != std::string::npos);
  const std::string two = draw_histograms("t", x, {{"a", 0, &h}, {"b", 1, &equal}}, {});
  CHECK(count_of(two, "class=\"bar\"") == 0);
  CHECK(count_of(two, "class=\"line\"") == 2);
}

TEST_CASE("a page holds what a metrics line tells, and the reason of what it does not") {
  const std::string page = draw_report({run_of(kLine)}, {3.6});
  for (const char* text : {"tiny", "Errors", "invalid_json", "in.jsonl:4", "Over time", "Where the time went", "TTFT",
                           "RAPL: absent, not here", "in.jsonl:2", "prefers-color-scheme: dark", "cost of 1 M input tokens"})
    CHECK_MESSAGE(page.find(text) != std::string::npos, text);
  CHECK(page.find("http://") == std::string::npos);
  CHECK(page.find("https://") == std::string::npos);
  CHECK(page.find("0 J") == std::string::npos);
}

TEST_CASE("a run's cost is divided by the time of its tokens") {
  const auto cost = cost_of(run_of(kLine), {3.6});  // 0.002 in all, a quarter of it for prompts
  REQUIRE(cost);
  CHECK(cost->whole_run == doctest::Approx(0.002));
  CHECK(cost->thousand_requests == doctest::Approx(0.002 / 3 * 1000));
  CHECK(cost->input_million == doctest::Approx(0.0005 / 300 * 1e6));
  CHECK(cost->output_million == doctest::Approx(0.0015 / 100 * 1e6));
  CHECK_FALSE(cost_of(run_of(kLine), {}));
}

TEST_CASE("lines of other versions and with members of other types are read as far as they go") {
  CHECK_FALSE(read_metrics_line("{nope").ok());
  CHECK_FALSE(read_metrics_line("[]").ok());
  CHECK_FALSE(read_metrics_line(R"({"index":0,"text":""})").ok());
  for (const char* line :
       {R"({"completed":0,"duration":0})", R"({"completed":5,"duration":1,"mean_ttft_ms":1})",
        R"({"completed":"x","duration":null,"settings":[],"errors":{},"energy":"no","timeline":7,"inputs":"a"})",
        R"({"completed":1,"duration":1,"mean_ttft_ms":1,"histograms":{"ttft_ms":{"edges":[1],"counts":[1,2]}},"requests":{"sample":[[1],5,["a","b","c","d"]]}})",
        R"({"completed":1,"duration":1,"timeline":{"bin_s":1,"output_tokens":[1,2],"input_tokens":[1]}})",
        R"({"completed":1,"duration":1,"speculation":3,"time":[],"settings":{"a":{"b":1}},"errors":[3]})"}) {
    CAPTURE(line);
    const std::string page = draw_report({run_of(line)}, {1.0});
    CHECK(page.find("</html>") != std::string::npos);
    CHECK(page.find("nan") == std::string::npos);
  }
}

TEST_CASE("hostile ids, names and messages stay text") {
  RunData run = run_of(kLine);
  run.name = kHostile;
  for (auto& [name, value] : run.facts) name += kHostile, value = kHostile;
  run.errors = {{kHostile, kHostile, kHostile, 1}};
  run.slowest = {{kHostile, kHostile, 1, 1, 1, 1, 1}};
  run.energy = {{kHostile, kHostile, std::nullopt}};
  for (const size_t num_runs : {1, 2, 6}) {
    const std::string page = draw_report(std::vector<RunData>(num_runs, run), {});
    CHECK(page.find("<script") == std::string::npos);
    CHECK(page.find('\x01') == std::string::npos);
    CHECK(page.find('\xff') == std::string::npos);
    CHECK(count_of(page, "<svg") == count_of(page, "</svg>"));
  }
}

TEST_CASE("records give the figures that they hold, in either form") {
  RecordFigures figures;
  for (int i = 0; i < 1000; ++i) {
    const std::string ms = std::to_string(i + 1);
    CHECK(figures.add(R"({"index":)" + std::to_string(i) + R"(,"id":)" + ms + R"(,"text":"t","usage":{"prompt_tokens":10,"completion_tokens":)" + ms +
                      R"(},"hash":"0","metrics":{"queue_ms":1,"ttft_ms":)" + ms + R"(,"tpot_ms":2,"e2e_ms":)" + ms + R"(}})"));
  }
  CHECK(figures.add(R"({"index":1000,"id":null,"error":{"code":"bad","message":"m","line":"in:5"},"hash":"0"})"));
  CHECK(figures.add(R"({"id":"b","custom_id":"c","response":{"status_code":400,"body":{"error":{"code":"bad"}}},"error":null,"hash":"0"})"));
  CHECK(figures.add(R"({"id":"b","custom_id":"c","response":{"status_code":200,"body":{"usage":{"prompt_tokens":1,"completion_tokens":1}}},"error":null,"hash":"0"})"));
  CHECK_FALSE(figures.add("{}"));
  CHECK_FALSE(figures.add("{nope"));
  RunData run;
  figures.put_into(&run);
  CHECK(run.completed == 1001);
  CHECK(run.failed == 2);
  CHECK(run.input_tokens == 10001);
  CHECK(run.output_tokens == 500501);
  REQUIRE(run.errors.size() == 1);
  CHECK(run.errors[0].count == 2);
  CHECK(run.errors[0].first_at == "in:5");
  CHECK(run.ttft_ms->p50 == doctest::Approx(500).epsilon(0.01));
  CHECK(run.ttft_ms->max == 1000);
  REQUIRE(run.slowest.size() == RequestSample::kMaxSlowest);
  CHECK(run.slowest[0].e2e_ms == 1000);
  CHECK(run.slowest[9].e2e_ms == 991);
  CHECK(run.slowest[0].id == "1000");
}

TEST_CASE("a sample is bounded, the same each time, and drawn from all") {
  const auto drawn = [] {
    RequestSample sample;
    for (int i = 0; i < 100000; ++i) {
      RequestFigures r;
      r.num_input_tokens = i;
      r.id_json = std::string(1000, 'x');
      sample.add(r);
    }
    return sample.drawn();
  };
  const auto a = drawn(), b = drawn();
  REQUIRE(a.size() == RequestSample::kMaxDrawn);
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    CHECK(a[i].num_input_tokens == b[i].num_input_tokens);
    CHECK(a[i].id_json.size() < 300);
    sum += static_cast<double>(a[i].num_input_tokens);
  }
  CHECK(sum / 400 == doctest::Approx(50000).epsilon(0.1));  // 2.9 % is one standard deviation
}

TEST_CASE("a sketch's histogram holds every value once, between the smallest and the largest") {
  for (const Spacing spacing : {Spacing::kLinear, Spacing::kLogarithmic})
    for (const std::vector<double>& values : {std::vector<double>{}, {0}, {5}, {5, 5}, {0, 1e-9}, {1, 1000}, {0, 3, 1e9}}) {
      QuantileSketch sketch;
      for (const double value : values) sketch.add(value);
      const Histogram h = sketch.histogram(40, spacing);
      int64_t sum = 0;
      for (const int64_t count : h.counts) sum += count;
      CHECK(sum == static_cast<int64_t>(values.size()));
      CHECK(h.edges.size() == (values.empty() ? 0 : h.counts.size() + 1));
      CHECK(std::is_sorted(h.edges.begin(), h.edges.end()));
    }
}

}  // namespace llmb::test
