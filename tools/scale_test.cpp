// Very many lines, very many records to resume from, very long lines: FAULTS rows 16 and 17 in full, on the ledger
// device. Prints each figure beside its limit; exit code 1 where one is missed. Needs some GB in --dir and a few
// minutes.
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
#include <CLI/CLI.hpp>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace fs = std::filesystem;

namespace {

struct Run {
  int exit_code = -1;
  double seconds = 0, cpu_seconds = 0, peak_mib = 0;
};

// stdout and stderr go to files beside `dir`.
Run run(std::vector<std::string> argv, const fs::path& dir) {
  const auto start = std::chrono::steady_clock::now();
  const pid_t child = fork();
  if (child == 0) {
    dup2(open((dir / "stdout").c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0666), 1);
    dup2(open((dir / "stderr").c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0666), 2);
    std::vector<char*> arguments;
    for (std::string& a : argv) arguments.push_back(a.data());
    arguments.push_back(nullptr);
    execv(arguments[0], arguments.data());
    _exit(127);
  }
  int status = 0;
  rusage usage{};
  wait4(child, &status, 0, &usage);
  Run result;
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  result.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  for (const timeval& time : {usage.ru_utime, usage.ru_stime})
    result.cpu_seconds += static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  result.peak_mib = static_cast<double>(usage.ru_maxrss) / 1024;
  return result;
}

// Lines whose answers have from one to `max_tokens` tokens.
void append_lines(const fs::path& path, int64_t count, int max_tokens = 1) {
  std::ofstream file(path, std::ios::app | std::ios::binary);
  for (int64_t i = 0; i < count; ++i)
    file << R"({"prompt_token_ids":[1,2,3],"ignore_eos":true,"max_tokens":)" << 1 + i * 7 % max_tokens << "}\n";
}

bool is_in_input_order(const fs::path& path) {
  std::ifstream out(path);
  int64_t last = -1, index = 0;
  for (std::string line; std::getline(out, line); last = index) {
    index = std::stoll(line.substr(line.find(':') + 1));
    if (index <= last) return false;
  }
  return true;
}

class Report {
 public:
  void exit_code(const char* what, const Run& run, int expected) {
    if (run.exit_code == expected) return;
    std::printf("FAILED: %s: exit code %d, not %d\n", what, run.exit_code, expected);
    failed_ = true;
  }
  void figure(const char* what, double value, const char* unit, double limit, bool at_least = false) {
    const bool holds = at_least ? value >= limit : value <= limit;
    std::printf("%s %-58s %10.1f %-6s (%s %.0f)\n", holds ? "ok    " : "FAILED", what, value, unit,
                at_least ? "at least" : "at most", limit);
    std::fflush(stdout);
    failed_ = failed_ || !holds;
  }
  bool failed() const { return failed_; }

 private:
  bool failed_ = false;
};

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Memory and time of llm-batch over very many and very long lines");
  std::string program, model;
  fs::path dir;
  int64_t num_lines = 10'000'000;
  app.add_option("--program", program, "llm-batch")->required();
  app.add_option("--model", model, "model directory")->required();
  app.add_option("--lines", num_lines, "the larger number of lines; the smaller one is a tenth")->capture_default_str();
  app.add_option("--dir", dir, "where to work");
  CLI11_PARSE(app, argc, argv);
  if (dir.empty()) dir = fs::temp_directory_path() / "llm-batch-scale";
  fs::remove_all(dir);
  fs::create_directories(dir);
  const auto job = [&](const std::vector<std::string>& more) {
    std::vector<std::string> arguments = {program,
                                          "-m",
                                          model,
                                          "--device",
                                          "ledger",
                                          "--progress",
                                          "none",
                                          "--metrics",
                                          "none",
                                          "--no-metrics",
                                          "--max-num-seqs",
                                          "256",
                                          "--max-num-batched-tokens",
                                          "4096"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run(arguments, dir);
  };
  Report report;

  append_lines(dir / "one.jsonl", 1);
  append_lines(dir / "few.jsonl", num_lines / 10);
  append_lines(dir / "many.jsonl", num_lines);
  const Run one = job({dir / "one.jsonl", "-o", dir / "one.out"});
  const Run few = job({dir / "few.jsonl", "-o", dir / "few.out"});
  const Run many = job({dir / "many.jsonl", "-o", dir / "many.out"});
  report.exit_code("many lines", many, 0);
  report.figure("memory beyond that for a tenth of the lines", many.peak_mib - few.peak_mib, "MiB", 16);
  report.figure("lines read, scheduled and written", static_cast<double>(num_lines) / many.seconds, "1/s", 100'000,
                true);
  std::printf("       (%.1f s, of them %.1f s of a core a million lines)\n", many.seconds,
              1e6 * many.cpu_seconds / static_cast<double>(num_lines));

  append_lines(dir / "many.jsonl", 1);
  const Run resumed = job({dir / "many.jsonl", "-o", dir / "many.out"});
  report.exit_code("one more line", resumed, 0);
  report.figure("resume with one new line", resumed.seconds, "s", 60);
  std::printf("       (%.1f s of a core)\n", resumed.cpu_seconds);
  report.figure("memory beyond that for one line alone", resumed.peak_mib - one.peak_mib, "MiB", 64);
  const Run nothing = job({dir / "many.jsonl", "-o", dir / "many.out"});
  report.exit_code("nothing new", nothing, 0);
  job({dir / "many.jsonl", "-o", dir / "many.out"});  // by now the file is old enough to be known by its times
  report.figure("nothing new in files that were not touched", job({dir / "many.jsonl", "-o", dir / "many.out"}).seconds,
                "s", 1);
  for (const char* name : {"few.jsonl", "few.out", "many.jsonl", "many.out"}) fs::remove(dir / name);

  // Answers in the order in which they were done, put into the input's order by the run that goes on.
  append_lines(dir / "mixed.jsonl", num_lines / 10, 8);
  job({dir / "mixed.jsonl", "-o", dir / "mixed.out"});
  const bool was_in_order = is_in_input_order(dir / "mixed.out");
  append_lines(dir / "mixed.jsonl", 1);
  const Run ordered = job({dir / "mixed.jsonl", "-o", dir / "mixed.out", "--order", "input"});
  report.exit_code("one more line, in the input's order", ordered, 0);
  report.figure("a tenth of the lines, out of order", was_in_order ? 0 : 1, "", 1, true);
  report.figure("  in order after a resume with --order input", is_in_input_order(dir / "mixed.out") ? 1 : 0, "", 1, true);
  report.figure("  memory beyond that for one line alone", ordered.peak_mib - one.peak_mib, "MiB", 16);
  std::printf("       (%.1f s, %.1f s of a core)\n", ordered.seconds, ordered.cpu_seconds);
  for (const char* name : {"mixed.jsonl", "mixed.out"}) fs::remove(dir / name);

  // Sparse files: NULs that take no room on the disk.
  append_lines(dir / "long.jsonl", 1);
  fs::resize_file(dir / "long.jsonl", int64_t{1} << 30);
  append_lines(dir / "long.jsonl", 2);  // the first ends the long line
  append_lines(dir / "endless.jsonl", 1);
  fs::resize_file(dir / "endless.jsonl", int64_t{10} << 30);
  for (const char* name : {"long", "endless"}) {
    const Run run = job({dir / (std::string(name) + ".jsonl"), "-o", dir / (std::string(name) + ".out")});
    report.exit_code(name, run, 3);
    const bool is_long = std::string(name) == "long";
    report.figure(is_long ? "memory for a line of 1 GiB" : "memory for 10 GiB without a newline", run.peak_mib, "MiB",
                  128);
    std::ifstream out(dir / (std::string(name) + ".out"));
    int num_records = 0, num_too_long = 0;
    for (std::string line; std::getline(out, line); ++num_records)
      num_too_long += line.find("line_too_long") != line.npos;
    report.figure("  lines answered", num_records, "", is_long ? 3 : 2, true);
    report.figure("  of them line_too_long", num_too_long, "", 1, true);
  }
  fs::remove_all(dir);
  return report.failed() ? 1 : 0;
}
