// A job with a durable output in this process, as job/output_stage.cpp does it (OutputJob, OutputSink, the walk over
// the input), but without a model: small enough to run it once for every call that may fail, from everything that it
// may start from.
#pragma once

#include <doctest/doctest.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "io/line_reader.h"
#include "io/result_writer.h"
#include "job/completed_lines.h"
#include "job/job_options.h"
#include "job/output_job.h"
#include "job/output_sink.h"
#include "job/row_files.h"
#include "tests/support/faulty_file_ops.h"
#include "tests/support/power_loss.h"
#include "tests/support/process.h"

namespace llmb::test {

constexpr int kErrorEvery = 4;  // every fourth line is answered with an error record

// is_vectors: one vector, or two, in place of a text.
inline Completion answer_to(const LineRef& line, bool is_vectors) {
  Completion completion;
  completion.line = line;
  if (line.index % kErrorEvery == kErrorEvery - 1) {
    completion.error = RequestError{"invalid_value", "for the test", std::nullopt};
  } else if (is_vectors) {
    completion.task = Task::kEmbed;
    completion.choices.resize(1 + static_cast<size_t>(line.index % 2));
    for (Choice& choice : completion.choices)
      choice.embedding = {0.5f, static_cast<float>(line.index),
                          static_cast<float>(&choice - completion.choices.data())};
  } else {
    completion.choices.emplace_back();
    completion.choices[0].text = "answer " + std::to_string(line.index);
  }
  return completion;
}

class JobDirectory {
 public:
  const std::string& path() const { return dir_.path(); }
  std::string in() const { return dir_.file("in.jsonl"); }
  std::string out() const { return dir_.file("out.jsonl"); }
  std::string partial() const { return out() + ".partial"; }
  std::string manifest() const { return out() + ".manifest.json"; }
  std::string index() const { return out() + ".index.jsonl"; }

  // Records of one of the output's files, a .npy file's with the vectors that its rows are.
  std::string records_of(const std::string& path) const {
    const std::string text = read_file(path);
    if (!text.starts_with(kNpyMagic)) return text;
    std::string records;
    const Result<RowFile> rows = RowFile::open(path, real_file_ops());
    REQUIRE_MESSAGE(rows.ok(), rows.status().message());
    const auto add = [&](const RecordSummary&, std::string_view record) {
      const RowRecord parsed = parse_row_record(record).value();
      std::string values;
      if (!parsed.first_row) records += record;
      if (!parsed.first_row) return Status();
      REQUIRE(rows->read(*parsed.first_row, parsed.num_rows, &values).ok());
      append_row_record(parsed, values, parsed.num_rows, &records);
      return Status();
    };
    const auto scanned = scan_row_index(path, index(), add, real_file_ops());
    CHECK_MESSAGE(scanned.ok(), scanned.status().message());
    return records;
  }

  void write_input(int num_lines) const {
    std::string text;
    for (int i = 0; i < num_lines; ++i) text += "{\"prompt\":\"line " + std::to_string(i) + "\"}\n";
    write_file(in(), text);
  }

  using Files = std::map<std::string, std::string>;
  Files files() const {
    Files files;
    for (const auto& entry : std::filesystem::directory_iterator(dir_.path()))
      files[entry.path().filename().string()] = read_file(entry.path().string());
    return files;
  }
  void restore(const Files& wanted) const {
    for (const auto& [name, content] : files())
      if (!wanted.count(name)) std::filesystem::remove(dir_.file(name));
    for (const auto& [name, content] : wanted) write_file(dir_.file(name), content);
  }

 private:
  TemporaryDirectory dir_{/*in_memory=*/true};
};

// Thousands of jobs warn of thousands of torn records.
class SilentStderr {
 public:
  SilentStderr() : kept_(dup(STDERR_FILENO)) {
    const int null = ::open("/dev/null", O_WRONLY | O_CLOEXEC);
    dup2(null, STDERR_FILENO);
    ::close(null);
  }
  ~SilentStderr() {
    dup2(kept_, STDERR_FILENO);
    ::close(kept_);
  }

 private:
  const int kept_;
};

inline Status examine_silently(OutputJob& job, const Fingerprint& fingerprint) {
  const SilentStderr silent;
  return job.examine(fingerprint, [](std::string_view) { return Status(); });
}

// Answers every line that is new; where records are to stand in input order at the end, the last line first.
inline Status answer_lines(const JobOptions& options, const CompletedLines& completed, OutputSink& sink,
                           int64_t* num_failed) {
  LineReader reader(options.inputs);
  CompletedLineMatcher matcher(completed);
  const bool has_rows = options.output.format == OutputFormat::kNpy;
  const ResultFormatter formatter({.metrics = false, .rows = has_rows});
  std::vector<std::string> records;
  while (true) {
    const auto line = reader.next();
    if (!line.ok()) return line.status();
    if (!line->has_value()) break;
    const Result<bool> done = matcher.is_done((*line)->line);
    if (!done.ok()) return done.status();
    if (*done) continue;
    const Completion completion = answer_to((*line)->line, has_rows);
    *num_failed += completion.error.has_value();
    records.push_back(formatter.format(completion));
  }
  if (options.output.order == OutputOrder::kInput) std::reverse(records.begin(), records.end());
  for (const std::string& record : records) {
    LLMB_RETURN_IF_ERROR(sink.append(record));
    LLMB_RETURN_IF_ERROR(sink.sync_if_due());
  }
  return matcher.check_end();
}

inline Status run_job(const JobOptions& options, FileOps& ops) {
  VirtualClock clock;
  const auto target = resolve_output(options.output.path, options.inputs, ops);
  if (!target.ok()) return target.status();
  auto job = OutputJob::open(
      options, *target, [] { return true; }, ops);
  if (!job.ok()) return job.status();
  const Fingerprint fingerprint{.settings = {{"temperature", "0"}}, .files = {}};
  LLMB_RETURN_IF_ERROR(examine_silently(**job, fingerprint));
  int64_t num_lines = 0, num_failed = (*job)->num_failed();
  LineReader reader(options.inputs);
  for (auto line = reader.next(); line.ok() && line->has_value(); line = reader.next()) ++num_lines;
  if ((*job)->is_continued() && num_lines == (*job)->num_done())
    return (*job)->complete_as_found(fingerprint, clock).status();
  auto sink = (*job)->begin(fingerprint, clock);
  if (!sink.ok()) return sink.status();
  LLMB_RETURN_IF_ERROR(answer_lines(options, (*job)->completed(), **sink, &num_failed));
  return (*job)->complete(**sink, num_lines, num_failed, options.output.order != OutputOrder::kInput);
}

inline std::set<std::string> lines_of(const std::string& text) {
  std::set<std::string> lines;
  std::stringstream stream(text);
  for (std::string line; std::getline(stream, line);) CHECK(lines.insert(line).second);
  return lines;
}

inline void reverse_lines(const std::string& path, const std::string& text) {
  std::stringstream stream(text);
  std::string reversed;
  for (std::string line; std::getline(stream, line);) reversed = line + "\n" + reversed;
  write_file(path, reversed);
}

// The state that a job starts from.
struct Start {
  const char* name;
  int num_lines_before;  // of an earlier run; 0: none
  size_t torn_bytes;     // the earlier run was killed: so much is missing of what it wrote
  bool was_complete;
  JobOptions options;
};

constexpr size_t kFirstOfRows = 8;  // of the starts below, those of outputs whose vectors become rows

inline std::vector<Start> make_starts() {
  std::vector<Start> starts = {{"fresh", 0, 0, false, {}},
                               {"after a kill", 9, 17, false, {}},
                               {"everything written, not yet renamed", 10, 0, false, {}},
                               {"the input grew", 6, 0, true, {}},
                               {"retrying errors", 10, 0, true, {}},
                               {"restarting", 10, 0, true, {}},
                               {"in input order", 6, 0, true, {}},
                               {"fresh, in input order", 0, 0, false, {}},
                               {"fresh, of rows", 0, 0, false, {}},
                               {"of rows, after a kill", 9, 17, false, {}},
                               {"of rows, all there, not yet packed", 10, 0, false, {}},
                               {"of rows, the input grew", 6, 0, true, {}},
                               {"of rows, retrying errors", 10, 0, true, {}},
                               {"of rows, restarting", 10, 0, true, {}},
                               {"of rows, in input order", 6, 0, true, {}}};
  starts[4].options.output.retry_errors = starts[12].options.output.retry_errors = "*";
  starts[5].options.output.restart = starts[13].options.output.restart = true;
  for (const size_t i : {6, 7, 14}) starts[i].options.output.order = OutputOrder::kInput;
  for (size_t i = kFirstOfRows; i < starts.size(); ++i) starts[i].options.output.format = OutputFormat::kNpy;
  return starts;
}

constexpr int kNumLines = 10;

// A job from one start, run again and again from the same files.
class Matrix {
 public:
  explicit Matrix(const Start& start) : options_(start.options) {
    options_.inputs = {dir_.in()};
    options_.output.path = dir_.out();
    prepare(start);
    FaultyFileOps ops;
    REQUIRE(run_job(options_, ops).ok());
    num_calls_ = ops.num_calls();
    expected_ = lines_of(dir_.records_of(dir_.out()));
    REQUIRE(expected_.size() == kNumLines);
    check_complete();
    if (options_.output.restart) return;
    for (const char* name : {"out.jsonl", "out.jsonl.partial"})
      if (start_records_.count(name))
        for (const std::string& line : lines_of(start_records_.at(name)))
          if (expected_.count(line) &&
              (options_.output.retry_errors.empty() || line.find("\"error\":{") == std::string::npos))
            kept_.insert(line);
  }

  int64_t num_calls() const { return num_calls_; }
  const JobDirectory& directory() const { return dir_; }
  // One run from the start.
  Status run(FaultyFileOps& ops) const {
    dir_.restore(start_);
    return run_job(options_, ops);
  }
  // The same on a disk that loses power where the run dies or ends. What is there then.
  JobDirectory::Files run_into_power_loss(FaultyFileOps& ops, PowerLoss kind, Status* status) const {
    dir_.restore(start_);
    PowerLossFileOps disk(dir_.path(), ops);
    *status = run_job(options_, disk);
    return disk.after(kind);
  }
  Status run_again(FaultyFileOps& ops) const { return run_job(options_, ops); }

  // The records of an earlier run are there, whatever became of this one. Starting over keeps none: rows that it is about
  // to write over may have lost their index.
  void check_kept() const {
    if (options_.output.restart) return;
    std::string text = dir_.records_of(dir_.out());
    text += dir_.records_of(dir_.partial());
    for (const std::string& line : kept_) CHECK_MESSAGE(text.find(line + "\n") != std::string::npos, line);
  }

  void check_intact() const {
    check_kept();
    for (const std::string& path : {dir_.out(), dir_.partial()}) {
      const std::string text = dir_.records_of(path);
      if (start_.count(std::filesystem::path(path).filename().string()) &&
          read_file(path) == start_.at(std::filesystem::path(path).filename().string()))
        continue;
      CHECK((text.empty() || text.back() == '\n'));
      for (const std::string& line : lines_of(text)) CHECK(expected_.count(line) == 1);
    }
  }

  void check_complete() const {
    const auto files = dir_.files();
    std::string names;
    for (const auto& [name, content] : files) names += name + " ";
    const bool has_rows = options_.output.format == OutputFormat::kNpy;
    CHECK(names == std::string("in.jsonl out.jsonl ") + (has_rows ? "out.jsonl.index.jsonl " : "") +
                       "out.jsonl.manifest.json ");
    CHECK(lines_of(dir_.records_of(dir_.out())) == expected_);
    if (options_.output.order == OutputOrder::kInput) check_order();
    CHECK(read_file(dir_.manifest()).find("\"complete\"") != std::string::npos);
  }

  void check_order() const {
    std::stringstream stream(dir_.records_of(dir_.out()));
    int64_t index = 0;
    for (std::string line; std::getline(stream, line); ++index)
      CHECK(line.starts_with("{\"index\":" + std::to_string(index) + ","));
  }

  std::string start_file(const std::string& name) const { return start_.at(name); }
  std::string output() const { return dir_.out(); }

  void resume_from(const std::string& partial) const {
    dir_.restore(start_);
    write_file(dir_.partial(), partial);
    check_recovers();
  }

  void check_recovers() const {
    const Status status = run_job(options_, real_file_ops());
    CHECK_MESSAGE(status.ok(), status.message());
    check_complete();
  }

 private:
  // The output of the earlier run, as if its answers had come in another order.
  void reverse_lines() const {
    const std::string records = dir_.records_of(dir_.out());
    test::reverse_lines(dir_.out(), records);
    if (options_.output.format != OutputFormat::kNpy) return;
    std::filesystem::remove(dir_.index());
    REQUIRE(pack_rows(dir_.out(), dir_.index(), dir_.out() + ".tmp", static_cast<int64_t>(lines_of(records).size()), 0,
                      real_file_ops())
                .ok());
  }

  void prepare(const Start& start) {
    if (start.num_lines_before > 0) {
      JobOptions before = options_;
      before.output.retry_errors.clear();
      before.output.restart = false;
      dir_.write_input(start.num_lines_before);
      REQUIRE(run_job(before, real_file_ops()).ok());
    }
    if (start.num_lines_before > 0 && !start.was_complete) {
      const std::string whole = dir_.records_of(dir_.out());
      std::filesystem::remove(dir_.out());
      std::filesystem::remove(dir_.index());
      write_file(dir_.partial(), whole.substr(0, whole.size() - start.torn_bytes));
      std::string manifest = read_file(dir_.manifest());
      const size_t at = manifest.find("\"complete\"");
      REQUIRE(at != std::string::npos);
      write_file(dir_.manifest(), manifest.replace(at, 10, "\"running\""));
    }
    dir_.write_input(kNumLines);
    if (start.num_lines_before > 0 && options_.output.order == OutputOrder::kInput) reverse_lines();
    start_ = dir_.files();
    for (const auto& [name, content] : start_)
      if (name.starts_with("out.jsonl") && !name.ends_with(".json"))
        start_records_[name] = dir_.records_of(dir_.path() + "/" + name);
  }

  JobDirectory dir_;
  JobOptions options_;
  JobDirectory::Files start_, start_records_;
  std::set<std::string> expected_, kept_;
  int64_t num_calls_ = 0;
};

}  // namespace llmb::test
