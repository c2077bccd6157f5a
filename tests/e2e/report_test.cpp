// `llm-batch report`, --report, and how the page looks to a browser.
#include <doctest/doctest.h>

#include <filesystem>

#include "cli/energy_meter.h"
#include "tests/e2e/has_program.h"
#include "tests/e2e/ledger_job.h"
#include "tests/e2e/run.h"
#include "tests/support/skip.h"

namespace llmb::test {

namespace {

bool is_page(const std::string& text) {
  return text.starts_with("<!DOCTYPE html>") && text.ends_with("</html>\n") && text.size() < (1 << 20);
}

// A job with an error, and its report.
struct ReportedJob : Job {
  ReportedJob() {
    write_file(in, make_input(0, 60, 12, /*every_bad=*/20));
    const ProcessResult result = run({"--report", page, "--price-per-hour", "2"});
    CHECK_MESSAGE(result.exit_code == 3, result.err);
  }
  const std::string page = dir.file("page.html");
};

ProcessResult report_of(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), {kProgram, "report"});
  return run_process(arguments);
}

const std::string kBrowser = "chromium";

// The page as the browser has it, after `script` has run in it.
std::string run_in_browser(const TemporaryDirectory& dir, std::string page, int width, const std::string& script) {
  const size_t policy = page.find("<meta http-equiv=\"Content-Security-Policy\"");
  page.erase(policy, page.find('\n', policy) - policy);
  write_file(dir.file("scripted.html"), page + "<script>" + script + "</script>");
  return run_process({kBrowser, "--headless=new", "--no-sandbox", "--disable-gpu", "--user-data-dir=" + dir.file("browser"),
                      "--window-size=" + std::to_string(width) + ",900", "--dump-dom", "file://" + dir.file("scripted.html")})
      .out;
}

}  // namespace

TEST_CASE("a run draws its report, the same that its metrics file gives later") {
  const ReportedJob job;
  const std::string page = read_file(job.page);
  REQUIRE(is_page(page));
  CHECK(contains(page, "missing_field") == false);
  CHECK(contains(page, "invalid_"));
  CHECK(contains(page, "cost of 1 M output tokens"));
  const ProcessResult later = report_of({job.dir.file("out.metrics.jsonl"), "--price-per-hour", "2"});
  CHECK(later.exit_code == 0);
  CHECK(later.err == "");
  CHECK(later.out == page);
}

TEST_CASE("an output gives a report of its records, with the metrics beside it or without") {
  const ReportedJob job;
  const std::string out = job.dir.file("again.html");
  CHECK(report_of({job.out, "-o", out}).exit_code == 0);
  REQUIRE(is_page(read_file(out)));
  CHECK(contains(read_file(out), "Over time"));
  std::filesystem::remove(job.dir.file("out.metrics.jsonl"));
  const ProcessResult alone = report_of({job.out});
  CHECK(alone.exit_code == 0);
  REQUIRE(is_page(alone.out));
  CHECK_FALSE(contains(alone.out, "Over time"));
  CHECK(contains(alone.out, "57"));
  CHECK(contains(alone.out, "invalid_"));
}

TEST_CASE("several runs stand side by side, in one file of metrics or in several files") {
  const ReportedJob job;
  CHECK(job.run({"--restart", "--batching", "static"}).exit_code == 3);
  for (const auto& arguments : {std::vector<std::string>{job.dir.file("out.metrics.jsonl")},
                                std::vector<std::string>{job.dir.file("out.metrics.jsonl"), job.out}}) {
    const ProcessResult result = report_of(arguments);
    CHECK(result.exit_code == 0);
    CHECK(is_page(result.out));
    CHECK(contains(result.out, "out.jsonl 2"));
    CHECK(contains(result.out, "tr class=\"differs\""));  // batching
  }
}

TEST_CASE("what cannot be reported on is refused in words") {
  const TemporaryDirectory dir;
  write_file(dir.file("strange"), "{\"a\":1}\n");
  write_file(dir.file("empty"), "");
  const auto refused = [](const std::vector<std::string>& arguments, int exit_code, const std::string& message) {
    const ProcessResult result = report_of(arguments);
    CHECK(result.exit_code == exit_code);
    CHECK_MESSAGE(contains(result.err, message), result.err);
    CHECK(result.out == "");
  };
  refused({}, 2, "report needs files");
  refused({"-"}, 2, "report needs files");
  refused({dir.file("strange"), "--threads", "2"}, 2, "report does not read --threads");
  refused({dir.file("nowhere")}, 5, "nowhere");
  refused({dir.file("strange")}, 5, "neither a metrics file nor an output");
  refused({dir.file("empty")}, 5, "no line in it");
}

TEST_CASE("a file named report is an input as ever") {
  const TemporaryDirectory dir;
  write_file(dir.file("report"), "{\"prompt\":\"Once\",\"max_tokens\":2}\n");
  const ProcessResult result = run_shell("cd " + dir.path() + " && " + kProgram + " ./report -m " + kModel +
                                         " --progress none --device ledger");
  CHECK(result.exit_code == 0);
  CHECK(parse_lines(result.out).size() == 1);
  CHECK(run_ledger({dir.file("report")}).exit_code == 0);
}

TEST_CASE("counters of packages are read, also where they wrap around; else the reason is told") {
  const TemporaryDirectory dir;
  EnergyMeter none(std::nullopt, dir.file("nowhere"));
  REQUIRE(none.readings().size() == 1);
  CHECK_FALSE(none.readings()[0].joules);
  CHECK(contains(none.readings()[0].reason, "no RAPL counters"));
  const std::string zone = dir.file("intel-rapl:0");
  std::filesystem::create_directory(zone);
  write_file(zone + "/name", "package-0\n");
  write_file(zone + "/max_energy_range_uj", "10000000\n");
  EnergyMeter unreadable(std::nullopt, dir.path());
  CHECK(contains(unreadable.readings()[0].reason, "only root"));
  write_file(zone + "/energy_uj", "4000000\n");
  EnergyMeter meter(std::nullopt, dir.path());
  CHECK(meter.readings()[0].joules == 0.0);
  write_file(zone + "/energy_uj", "9000000\n");
  meter.sample();
  write_file(zone + "/energy_uj", "1000000\n");
  meter.sample();
  CHECK(*meter.readings()[0].joules == doctest::Approx(7));
  std::filesystem::remove(zone + "/energy_uj");
  meter.sample();
  CHECK_FALSE(meter.readings()[0].joules);
}

TEST_CASE("a browser shows the page: plots with a size, no scrolling sideways on a phone, no complaint") {
  if (!has_program(kBrowser)) return skip(kBrowser + " is not installed");
  const ReportedJob job;
  for (const int width : {500, 1180}) {  // a window is not narrower than 500
    const std::string dom = run_in_browser(
        job.dir, read_file(job.page), width,
        "let small=0;document.querySelectorAll('svg').forEach(s=>{const b=s.getBoundingClientRect();"
        "if(b.width<300||b.height<20)small++});document.body.setAttribute('data-seen','"
        "plots '+document.querySelectorAll('svg').length+' small '+small+' wide '+"
        "(document.documentElement.scrollWidth>innerWidth))");
    const size_t at = dom.find("data-seen=\"");
    REQUIRE(at != std::string::npos);
    const std::string seen = dom.substr(at + 11, dom.find('"', at + 11) - at - 11);
    CHECK(contains(seen, " small 0 wide false"));
    CHECK(std::stoi(seen.substr(6)) >= 10);
  }
}

TEST_CASE("screenshots, light and dark, are pictures of something") {
  if (!has_program(kBrowser)) return skip(kBrowser + " is not installed");
  const ReportedJob job;
  std::string pictures[2];
  for (const bool is_dark : {false, true}) {
    const std::string picture = job.dir.file(is_dark ? "dark.png" : "light.png");
    std::vector<std::string> argv = {kBrowser, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
                                     "--user-data-dir=" + job.dir.file("browser"), "--window-size=1180,2400",
                                     "--screenshot=" + picture};
    if (is_dark) argv.push_back("--blink-settings=preferredColorScheme=0");
    argv.push_back("file://" + job.page);
    CHECK(run_process(argv).exit_code == 0);
    pictures[is_dark] = read_file(picture);
    CHECK(pictures[is_dark].starts_with("\x89PNG"));
    CHECK(pictures[is_dark].size() > 40000);  // an empty page takes 12 KB
  }
  CHECK(pictures[0] != pictures[1]);
}

}  // namespace llmb::test
