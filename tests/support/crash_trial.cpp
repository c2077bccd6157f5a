#include "tests/support/crash_trial.h"

#include <signal.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <random>
#include <set>
#include <sstream>
#include <stdexcept>

#include "tests/support/killed_process.h"
#include "tests/support/process.h"
#include "tests/support/records.h"

namespace llmb::test {

namespace {

namespace fs = std::filesystem;
using Random = std::mt19937_64;

constexpr int kJobsPerScenario = 12;
constexpr int kMaxStops = 6;

int64_t uniform(Random& random, int64_t low, int64_t high) {
  return std::uniform_int_distribution<int64_t>(low, high)(random);
}
double fraction(Random& random) { return std::uniform_real_distribution<double>(0, 1)(random); }
bool chance(Random& random, double probability) { return fraction(random) < probability; }

struct Broken : std::runtime_error {
  using std::runtime_error::runtime_error;
};

void require(bool holds, const std::string& what) {
  if (!holds) throw Broken(what);
}

std::string random_tokens(Random& random) {
  std::string text = "[";
  const int64_t count = uniform(random, 1, 12);
  for (int64_t i = 0; i < count; ++i) text += (i > 0 ? "," : "") + std::to_string(uniform(random, 0, 300));
  return text + "]";
}

std::string bad_line(Random& random) {
  switch (uniform(random, 0, 3)) {
    case 0:
      return R"({"prompt":5})";
    case 1:
      return R"({"prompt_token_ids":[1],"max_tokens":0})";
    case 2:
      return "no JSON";
    default:
      return R"({"prompt_token_ids":[99999999]})";
  }
}

std::string random_line(Random& random, bool openai, double bad, int64_t number) {
  if (chance(random, bad)) return bad_line(random);
  const std::string max_tokens = std::to_string(uniform(random, 1, 25));
  if (openai && chance(random, 0.5))
    return R"({"custom_id":")" + std::to_string(number) +
           R"(","method":"POST","url":"/v1/completions","body":{"model":"m","prompt":)" + random_tokens(random) +
           R"(,"max_tokens":)" + max_tokens + "}}";
  return R"({"id":)" + std::to_string(number) + R"(,"prompt_token_ids":)" + random_tokens(random) +
         R"(,"max_tokens":)" + max_tokens + "}";
}

using Records = std::vector<std::pair<int64_t, std::string>>;

// (line index, record without the time of its job), as they stand there.
Records records_in(const std::string& text) {
  Records records;
  size_t begin = 0;
  while (begin < text.size()) {
    const size_t end = text.find('\n', begin);
    require(end != std::string::npos, "the last record has no newline");
    const std::string line = text.substr(begin, end - begin);
    const auto json = nlohmann::json::parse(line, nullptr, false);
    require(json.is_object() && json.contains("index"), "a torn record: " + line);
    records.emplace_back(json["index"].get<int64_t>(), without_created(line));
    begin = end + 1;
  }
  return records;
}

// By line index.
Records sorted_records(const std::string& text) {
  Records records = records_in(text);
  std::sort(records.begin(), records.end());
  return records;
}

bool is_torn(const std::string& path) {
  const std::string text = read_file(path);
  return !text.empty() && text.back() != '\n';
}

std::set<std::string> names_in(const std::string& directory) {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(directory)) names.insert(entry.path().filename().string());
  return names;
}

// Inputs, flags, and what an uninterrupted run makes of them.
class Scenario {
 public:
  Scenario(const CrashOptions& options, const std::string& directory, Random& random, CrashCounts* counts)
      : options_(options), directory_(directory), random_(random), counts_(*counts) {
    fs::remove_all(directory_);
    fs::create_directories(directory_);
    make_inputs();
    make_reference();
  }

  void run_job(int number);
  const std::string& history() const { return history_; }

 private:
  void make_inputs();
  void make_swapping();
  void make_reference();
  StoppedProcess run(const std::string& out, const StopPlan& plan, const std::string& metrics = "none");
  StopPlan random_plan(bool is_recovery);
  void count(const StopPlan& plan, const StoppedProcess& result);
  bool check_stopped(const StoppedProcess& result, const StopPlan& plan, const std::string& out, bool was_torn);
  void check_complete(const std::string& directory);

  const CrashOptions& options_;
  const std::string directory_;
  Random& random_;
  CrashCounts& counts_;
  std::vector<std::string> inputs_, flags_;
  std::string stdin_path_ = "/dev/null";
  int64_t num_lines_ = 0;
  std::vector<std::pair<int64_t, std::string>> expected_;
  int reference_code_ = 0;
  double reference_ms_ = 0;
  int64_t reference_calls_ = 0;
  std::string history_;  // of the current job
};

void Scenario::make_inputs() {
  const bool openai = chance(random_, 0.3);
  const double bad = chance(random_, 0.3) ? 0.05 : 0;
  const int64_t form = uniform(random_, 0, 3);  // two files, stdin, else one file
  num_lines_ = uniform(random_, 1, 300);
  std::string text[2];
  for (int64_t i = 0; i < num_lines_; ++i)
    text[form == 0 && i >= num_lines_ / 2] += random_line(random_, openai, bad, i) + "\n";
  if (chance(random_, 0.2)) text[form == 0 && num_lines_ > 1].pop_back();  // no newline at the end
  inputs_.push_back(directory_ + "/in0.jsonl");
  write_file(inputs_[0], text[0]);
  if (form == 0) {
    inputs_.push_back(directory_ + "/in1.jsonl");
    write_file(inputs_[1], text[1]);
  } else if (form == 1) {
    stdin_path_ = inputs_[0];
    inputs_[0] = "-";
  }
  if (chance(random_, 0.3)) flags_ = {"--order", "input"};
  // The ledger's times are virtual: they too must be as without interruption.
  if (chance(random_, 0.3)) return make_swapping();
  if (chance(random_, 0.3)) flags_.push_back("--no-metrics");
  if (chance(random_, 0.5)) flags_.insert(flags_.end(), {"--max-num-seqs", std::to_string(uniform(random_, 1, 16))});
  if (chance(random_, 0.3)) flags_.insert(flags_.end(), {"--temperature", "0.8"});
}

// A pool for two or three requests and seats for more: blocks of preempted ones lie in the host's memory most of the
// time. How often a request is preempted depends on what was there when the run was continued.
void Scenario::make_swapping() {
  flags_.insert(flags_.end(), {"--preemption", "swap", "--block-size", "8", "--max-model-len", "48", "--no-metrics",
                               "--num-gpu-blocks-override", std::to_string(uniform(random_, 6, 10)), "--max-num-seqs",
                               std::to_string(uniform(random_, 4, 16))});
}

StoppedProcess Scenario::run(const std::string& out, const StopPlan& plan, const std::string& metrics) {
  std::vector<std::string> argv = {
      options_.program, "-m", options_.model_dir, "--device", "ledger", "--metrics", metrics, "--progress", "none",
      "--threads",      "1",  "--grace",          "5",        "-o",     out};
  argv.insert(argv.end(), flags_.begin(), flags_.end());
  argv.insert(argv.end(), inputs_.begin(), inputs_.end());
  ++counts_.num_runs;
  return run_and_stop(argv, stdin_path_, directory_ + "/err", plan);
}

void Scenario::make_reference() {
  const std::string directory = directory_ + "/reference";
  fs::create_directories(directory);
  StopPlan plan;
  plan.count_calls = can_count_file_calls();
  reference_calls_ = run(directory + "/out.jsonl", plan).num_file_calls;
  fs::remove_all(directory);
  fs::create_directories(directory);
  const std::string metrics = directory_ + "/metrics.jsonl";
  const StoppedProcess result = run(directory + "/out.jsonl", {}, metrics);
  require(result.exit_code == 0 || result.exit_code == 3,
          "the uninterrupted run ends with " + std::to_string(result.exit_code) + ": " + result.err);
  reference_code_ = result.exit_code;
  reference_ms_ = result.wall_ms;
  expected_ = sorted_records(read_file(directory + "/out.jsonl"));
  require(static_cast<int64_t>(expected_.size()) == num_lines_,
          "the uninterrupted run has " + std::to_string(expected_.size()) + " records");
  counts_.num_swapping += nlohmann::json::parse(read_file(metrics))["kv_blocks_swapped_in"] > 0;
}

StopPlan Scenario::random_plan(bool is_recovery) {
  StopPlan plan;
  const bool at_call = can_count_file_calls() && chance(random_, 0.5);
  plan.when = at_call ? StopPlan::When::kAtFileCall : StopPlan::When::kAfterTime;
  plan.after_ms = reference_ms_ * 1.1 * fraction(random_);
  // Recovery happens in the first calls: half of its stops are among them.
  const int64_t last_call =
      is_recovery && chance(random_, 0.5) ? std::min<int64_t>(12, reference_calls_) : reference_calls_;
  plan.file_call = uniform(random_, 1, std::max<int64_t>(1, last_call));
  const double kind = fraction(random_);
  plan.signal = kind < 0.8 ? SIGKILL : kind < 0.9 ? SIGTERM : SIGINT;
  if (at_call && plan.signal == SIGKILL && chance(random_, 0.4)) plan.torn_part = fraction(random_);
  if (!at_call && plan.signal != SIGKILL && chance(random_, 0.3)) {
    plan.twice = true;
    plan.after_ms /= 2;
  }
  return plan;
}

std::string describe_stop(const StopPlan& plan, const StoppedProcess& result) {
  char text[160];
  if (plan.when == StopPlan::When::kAtFileCall)
    std::snprintf(text, sizeof text, "signal %d at file call %lld (part %.2f)", plan.signal,
                  static_cast<long long>(plan.file_call), plan.torn_part);
  else
    std::snprintf(text, sizeof text, "signal %d%s after %.1f ms", plan.signal, plan.twice ? " twice" : "",
                  plan.after_ms);
  return std::string(text) + ": exit code " + std::to_string(result.exit_code) + "\n";
}

void Scenario::count(const StopPlan& plan, const StoppedProcess& result) {
  const bool was_stopped = result.exit_code == 128 + plan.signal;
  counts_.num_stops += was_stopped;
  if (!was_stopped) return;
  if (plan.signal != SIGKILL) ++counts_.num_interrupted;
  else ++(plan.when == StopPlan::When::kAtFileCall ? counts_.num_killed_at_call : counts_.num_killed);
  counts_.num_torn += result.was_torn;
}

// Whether the job is still to be continued. was_torn: before the run; one that is stopped early repairs nothing.
bool Scenario::check_stopped(const StoppedProcess& result, const StopPlan& plan, const std::string& out,
                             bool was_torn) {
  const int code = result.exit_code;
  if (code == 128 + plan.signal && result.ended_by_signal) return true;  // SIGKILL, or no handler yet
  if (code == 128 + plan.signal) {
    const std::string partial = read_file(out + ".partial");
    require(was_torn || !is_torn(out + ".partial"), "an interrupted run left a torn record");
    const std::string text = result.err.substr(0, result.err.find_last_not_of('\n') + 1);
    const auto report = nlohmann::json::parse(text.substr(text.rfind('\n') + 1), nullptr, false);
    require(report.is_object() && report["exit_code"] == code,
            "an interrupted run ends without its report: " + result.err);
    const bool ran = result.err.find(" done, ") != std::string::npos;
    if (ran) {
      require(report["resumable"] == true, "an interrupted run is not resumable: " + result.err);
      require(result.err.find("run again to continue") != std::string::npos, "no advice: " + result.err);
      require(report["done"] == sorted_records(partial).size(), "done is not what is there: " + result.err);
      if (report["left"].is_number())
        require(report["done"].get<int64_t>() + report["left"].get<int64_t>() == num_lines_,
                "done + left: " + result.err);
    }
    return true;
  }
  require(code == reference_code_ || (code == 0 && fs::exists(out)),
          "exit code " + std::to_string(code) + ": " + result.err);
  return false;
}

void Scenario::check_complete(const std::string& directory) {
  Records records = records_in(read_file(directory + "/out.jsonl"));
  const bool in_order = std::find(flags_.begin(), flags_.end(), "--order") != flags_.end();
  require(!in_order || std::is_sorted(records.begin(), records.end()), "not in input order");
  std::sort(records.begin(), records.end());
  for (size_t i = 1; i < records.size(); ++i)
    require(records[i].first != records[i - 1].first, "twice: line index " + std::to_string(records[i].first));
  std::set<int64_t> found;
  for (const auto& [index, record] : records) found.insert(index);
  for (const auto& [index, record] : expected_)
    require(found.count(index) > 0, "lost: line index " + std::to_string(index));
  for (size_t i = 0; i < std::min(records.size(), expected_.size()); ++i)
    require(records[i].second == expected_[i].second,
            "another record than without interruption:\n" + records[i].second + "\n" + expected_[i].second);
  require(records.size() == expected_.size(), "records of no line");
  const auto names = names_in(directory);
  std::string listed;
  for (const std::string& name : names) listed += name + " ";
  require(names == std::set<std::string>{"out.jsonl", "out.jsonl.manifest.json"}, "stray files: " + listed);
  const auto manifest = nlohmann::json::parse(read_file(directory + "/out.jsonl.manifest.json"), nullptr, false);
  require(manifest.is_object() && manifest["state"] == "complete", "the manifest does not say complete");
}

void Scenario::run_job(int number) {
  history_.clear();
  ++counts_.num_jobs;
  const std::string directory = directory_ + "/job" + std::to_string(number), out = directory + "/out.jsonl";
  fs::create_directories(directory);
  const int64_t num_stops = uniform(random_, 1, kMaxStops);
  bool was_complete = false;
  for (int64_t i = 0; i < num_stops; ++i) {
    const StopPlan plan = random_plan(i > 0);
    const bool was_torn = is_torn(out + ".partial");
    const StoppedProcess result = run(out, plan);
    history_ += describe_stop(plan, result);
    count(plan, result);
    was_complete = fs::exists(out);
    if (!check_stopped(result, plan, out, was_torn)) break;
  }
  const StoppedProcess last = run(out, {});
  history_ += "run to the end: exit code " + std::to_string(last.exit_code) + "\n";
  // Where only the last word was missing, or not even that, the records may be found complete: 0 as for "nothing to
  // do".
  require(last.exit_code == reference_code_ || (was_complete && last.exit_code == 0),
          "exit code " + std::to_string(last.exit_code) + ": " + last.err);
  check_complete(directory);
  fs::remove_all(directory);
}

}  // namespace

std::string describe(const CrashCounts& c) {
  char text[360];
  std::snprintf(
      text, sizeof text,
      "%lld stops (%lld killed after a time, %lld killed at a file call, %lld of them in mid-write, %lld "
      "interrupted) in %lld jobs of %lld scenarios, %lld of them with swapped blocks, %lld runs, %.1f s, %.1f "
      "runs/s",
      static_cast<long long>(c.num_stops), static_cast<long long>(c.num_killed),
      static_cast<long long>(c.num_killed_at_call), static_cast<long long>(c.num_torn),
      static_cast<long long>(c.num_interrupted), static_cast<long long>(c.num_jobs),
      static_cast<long long>(c.num_scenarios), static_cast<long long>(c.num_swapping),
      static_cast<long long>(c.num_runs), c.seconds, static_cast<double>(c.num_runs) / std::max(c.seconds, 1e-3));
  return text;
}

CrashResult run_crash_trials(const CrashOptions& options) {
  CrashResult result;
  CrashCounts& counts = result.counts;
  const auto start = std::chrono::steady_clock::now();
  double next_report_s = 10;
  for (int64_t number = options.first_scenario;
       counts.num_stops < options.num_stops && counts.seconds < options.budget_s; ++number) {
    std::seed_seq seed = {options.seed, static_cast<uint64_t>(number)};
    Random random(seed);
    const std::string directory = options.directory + "/scenario" + std::to_string(number);
    std::string history;
    try {
      Scenario scenario(options, directory, random, &counts);
      ++counts.num_scenarios;
      for (int job = 0;
           job < kJobsPerScenario && counts.num_stops < options.num_stops && counts.seconds < options.budget_s; ++job) {
        try {
          scenario.run_job(job);
        } catch (const Broken&) {
          history = "job " + std::to_string(job) + ":\n" + scenario.history();
          throw;
        }
        counts.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
        if (options.report && counts.seconds >= next_report_s) {
          options.report(describe(counts));
          next_report_s = counts.seconds + 10;
        }
      }
    } catch (const Broken& e) {
      result.failure = std::string(e.what()) + "\nseed " + std::to_string(options.seed) + ", scenario " +
                       std::to_string(number) + ", files in " + directory + "\n" + history;
      return result;
    }
    fs::remove_all(directory);
  }
  return result;
}

}  // namespace llmb::test
