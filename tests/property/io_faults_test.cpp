// The durable output under every fault at every file call: FAULTS rows 2, 4 and 5. A job here is what cli/run.cpp does
// with an output file (OutputJob, OutputSink, the walk over the input), without a model and in this process.
//
// A job that failed must say so with an I/O error, leave whole records that are a part of the right answer, and be
// completed by the next run; a job that says ok must be complete. A job that died must be completed by the next run,
// also where that one dies too, and where the power went with it.
#include <doctest/doctest.h>

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <map>
#include <set>
#include <sstream>

#include "cli/options.h"
#include "cli/output_job.h"
#include "io/completed_lines.h"
#include "io/durable_file.h"
#include "io/line_reader.h"
#include "io/output_sink.h"
#include "io/result_writer.h"
#include "tests/support/faulty_file_ops.h"
#include "tests/support/power_loss.h"
#include "tests/support/process.h"

namespace llmb::test {

namespace {

namespace fs = std::filesystem;

constexpr int kErrorEvery = 4;  // every fourth line is answered with an error record

Completion answer_to(const LineRef& line) {
  Completion completion;
  completion.line = line;
  completion.text = "answer " + std::to_string(line.index);
  if (line.index % kErrorEvery == kErrorEvery - 1) {
    completion.finish_reason = FinishReason::kError;
    completion.error = RequestError{"invalid_value", "for the test", std::nullopt};
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

  void write_input(int num_lines) const {
    std::string text;
    for (int i = 0; i < num_lines; ++i) text += "{\"prompt\":\"line " + std::to_string(i) + "\"}\n";
    write_file(in(), text);
  }

  using Files = std::map<std::string, std::string>;
  Files files() const {
    Files files;
    for (const auto& entry : fs::directory_iterator(dir_.path()))
      files[entry.path().filename().string()] = read_file(entry.path().string());
    return files;
  }
  void restore(const Files& wanted) const {
    for (const auto& [name, content] : files())
      if (!wanted.count(name)) fs::remove(dir_.file(name));
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

Status examine_silently(OutputJob& job, const Fingerprint& fingerprint) {
  const SilentStderr silent;
  return job.examine(fingerprint, [](std::string_view) { return Status(); });
}

// Answers every line that is new.
Status answer_lines(const Options& options, const CompletedLines& completed, OutputSink& sink, int64_t* num_failed) {
  LineReader reader(options.inputs);
  CompletedLineMatcher matcher(completed);
  const ResultFormatter formatter({.metrics = false});
  while (true) {
    const auto line = reader.next();
    if (!line.ok()) return line.status();
    if (!line->has_value()) return matcher.check_end();
    const Result<bool> done = matcher.is_done((*line)->line);
    if (!done.ok()) return done.status();
    if (*done) continue;
    const Completion completion = answer_to((*line)->line);
    *num_failed += completion.error.has_value();
    LLMB_RETURN_IF_ERROR(sink.append(formatter.format(completion)));
    LLMB_RETURN_IF_ERROR(sink.sync_if_due());
  }
}

Status run_job(const Options& options, FileOps& ops) {
  VirtualClock clock;
  const auto target = resolve_output(options.output, options.inputs, ops);
  if (!target.ok()) return target.status();
  auto job = OutputJob::open(options, *target, ops);
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
  LLMB_RETURN_IF_ERROR((*job)->put_in_order());
  LLMB_RETURN_IF_ERROR((*sink)->finish());
  return (*job)->complete(num_lines, num_failed);
}

std::set<std::string> lines_of(const std::string& text) {
  std::set<std::string> lines;
  std::stringstream stream(text);
  for (std::string line; std::getline(stream, line);) CHECK(lines.insert(line).second);
  return lines;
}

void reverse_lines(const std::string& path) {
  std::stringstream stream(read_file(path));
  std::string reversed;
  for (std::string line; std::getline(stream, line);) reversed = line + "\n" + reversed;
  write_file(path, reversed);
}

// What a job starts from.
struct Start {
  const char* name;
  int num_lines_before;  // of an earlier run; 0: none
  size_t torn_bytes;     // the earlier run was killed: so much is missing of what it wrote
  bool was_complete;
  Options options;
};

std::vector<Start> make_starts() {
  std::vector<Start> starts = {{"fresh", 0, 0, false, {}},
                               {"after a kill", 9, 17, false, {}},
                               {"everything written, not yet renamed", 10, 0, false, {}},
                               {"the input grew", 6, 0, true, {}},
                               {"retrying errors", 10, 0, true, {}},
                               {"restarting", 10, 0, true, {}},
                               {"in input order", 6, 0, true, {}}};
  starts[4].options.retry_errors = "*";
  starts[5].options.restart = true;
  starts[6].options.order = OutputOrder::kInput;
  return starts;
}

constexpr int kNumLines = 10;

class Matrix {
 public:
  explicit Matrix(const Start& start) : options_(start.options) {
    options_.inputs = {dir_.in()};
    options_.output = dir_.out();
    prepare(start);
    FaultyFileOps ops;
    REQUIRE(run_job(options_, ops).ok());
    num_calls_ = ops.num_calls();
    expected_ = lines_of(read_file(dir_.out()));
    REQUIRE(expected_.size() == kNumLines);
    check_complete();
    if (options_.restart) return;
    for (const char* name : {"out.jsonl", "out.jsonl.partial"})
      if (start_.count(name))
        for (const std::string& line : lines_of(start_.at(name)))
          if (expected_.count(line) && (options_.retry_errors.empty() || line.find("\"error\":{") == std::string::npos))
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

  // What an earlier run wrote is there, whatever became of this one.
  void check_kept() const {
    std::string text = read_file(dir_.out());
    text += read_file(dir_.partial());
    for (const std::string& line : kept_) CHECK_MESSAGE(text.find(line + "\n") != std::string::npos, line);
  }

  void check_intact() const {
    check_kept();
    for (const std::string& path : {dir_.out(), dir_.partial()}) {
      const std::string text = read_file(path);
      if (start_.count(fs::path(path).filename().string()) && text == start_.at(fs::path(path).filename().string()))
        continue;
      CHECK((text.empty() || text.back() == '\n'));
      for (const std::string& line : lines_of(text)) CHECK(expected_.count(line) == 1);
    }
  }

  void check_complete() const {
    const auto files = dir_.files();
    std::string names;
    for (const auto& [name, content] : files) names += name + " ";
    CHECK(names == "in.jsonl out.jsonl out.jsonl.manifest.json ");
    CHECK(lines_of(read_file(dir_.out())) == expected_);
    if (options_.order == OutputOrder::kInput) check_order();
    CHECK(read_file(dir_.manifest()).find("\"complete\"") != std::string::npos);
  }

  void check_order() const {
    std::stringstream stream(read_file(dir_.out()));
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
  void prepare(const Start& start) {
    if (start.num_lines_before > 0) {
      Options before = options_;
      before.retry_errors.clear();
      before.restart = false;
      dir_.write_input(start.num_lines_before);
      REQUIRE(run_job(before, real_file_ops()).ok());
    }
    if (start.num_lines_before > 0 && !start.was_complete) {
      const std::string whole = read_file(dir_.out());
      fs::remove(dir_.out());
      write_file(dir_.partial(), whole.substr(0, whole.size() - start.torn_bytes));
      std::string manifest = read_file(dir_.manifest());
      const size_t at = manifest.find("\"complete\"");
      REQUIRE(at != std::string::npos);
      write_file(dir_.manifest(), manifest.replace(at, 10, "\"running\""));
    }
    dir_.write_input(kNumLines);
    if (options_.order == OutputOrder::kInput) reverse_lines(dir_.out());
    start_ = dir_.files();
  }

  JobDirectory dir_;
  Options options_;
  JobDirectory::Files start_;
  std::set<std::string> expected_, kept_;
  int64_t num_calls_ = 0;
};

// Calls whose failure the job may survive, because nothing depends on them.
bool may_be_survived(FileCall call) {
  return call == FileCall::kClose || call == FileCall::kStat || call == FileCall::kUnlink || call == FileCall::kFstat;
}

}  // namespace

TEST_CASE(
    "FAULTS 4, 5: every errno at every file call, once and for ever: an I/O error, intact, and the next run "
    "completes") {
  int64_t num_faults = 0;
  for (const Start& start : make_starts()) {
    CAPTURE(start.name);
    const Matrix matrix(start);
    for (const int error : {EIO, ENOSPC, EDQUOT, EROFS, EACCES, EFBIG, ENOMEM, EMFILE})
      for (const bool forever : {false, true})
        for (int64_t at = 1; at <= matrix.num_calls(); ++at) {
          FaultyFileOps ops;
          ops.any_fault = {.at = at, .error = error, .forever = forever};
          const Status status = matrix.run(ops);
          ++num_faults;
          REQUIRE(ops.failed_call());
          CAPTURE(at);
          CAPTURE(error);
          CAPTURE(forever);
          CAPTURE(static_cast<int>(*ops.failed_call()));
          CAPTURE(status.message());
          if (status.ok()) {
            CHECK(may_be_survived(*ops.failed_call()));
            matrix.check_complete();
          } else {
            CHECK(status.code() == StatusCode::kIoError);
            matrix.check_intact();
            matrix.check_recovers();
          }
        }
  }
  MESSAGE(num_faults << " faults");
}

TEST_CASE("FAULTS 4: two calls that fail in one run never cost what an earlier run wrote") {
  const Matrix matrix(make_starts()[1]);
  const FileCall calls[] = {FileCall::kOpen,  FileCall::kRead, FileCall::kFlock,
                            FileCall::kFstat, FileCall::kStat, FileCall::kUnlink};
  const auto last_call = [](FileCall call) { return call == FileCall::kStat ? 16 : 4; };
  for (const FileCall first : calls)
    for (const FileCall second : calls)
      for (int64_t first_at = 1; first_at <= last_call(first); ++first_at)
        for (int64_t second_at = 1; second_at <= last_call(second); ++second_at) {
          CAPTURE(static_cast<int>(first));
          CAPTURE(first_at);
          CAPTURE(static_cast<int>(second));
          CAPTURE(second_at);
          FaultyFileOps ops;
          ops.faults = {{first, first_at, EIO}, {second, second_at, EIO}};
          if (const Status status = matrix.run(ops); !status.ok()) CHECK(status.code() == StatusCode::kIoError);
          matrix.check_intact();
          matrix.check_recovers();
        }
}

TEST_CASE("FAULTS 3: a tail torn at every byte of the last three records, also one of NULs, is all that is dropped") {
  const Matrix matrix(make_starts()[2]);
  const std::string whole = matrix.start_file("out.jsonl.partial");
  size_t third = whole.size();
  for (int i = 0; i < 3; ++i) third = whole.rfind('\n', third - 2) + 1;
  REQUIRE(third > 0);
  for (size_t size = third; size <= whole.size(); ++size)
    for (const size_t num_nuls : {0, 1, 5000}) {
      CAPTURE(size);
      CAPTURE(num_nuls);
      const size_t num_whole = size == 0 ? 0 : whole.rfind('\n', size - 1) + 1;
      matrix.resume_from(whole.substr(0, size) + std::string(num_nuls, '\0'));
      CHECK(read_file(matrix.output()).starts_with(whole.substr(0, num_whole)));
    }
}

TEST_CASE("FAULTS 4: a disk that fills up at any byte cuts no record") {
  const Matrix matrix(make_starts()[0]);
  for (int64_t bytes = 0;; bytes += 7) {
    FaultyFileOps ops;
    ops.disk_bytes = bytes;
    const Status status = matrix.run(ops);
    if (status.ok()) break;
    CAPTURE(bytes);
    CHECK(status.code() == StatusCode::kIoError);
    matrix.check_intact();
    matrix.check_recovers();
  }
}

TEST_CASE("FAULTS 4: short reads and writes and storms of EINTR are invisible") {
  for (const Start& start : make_starts()) {
    CAPTURE(start.name);
    const Matrix matrix(start);
    for (const size_t max_io_bytes : {size_t{1}, size_t{7}, SIZE_MAX})
      for (const int num_interrupts : {0, 1, 5}) {
        FaultyFileOps ops;
        ops.max_io_bytes = max_io_bytes;
        ops.num_interrupts = num_interrupts;
        const Status status = matrix.run(ops);
        CHECK_MESSAGE(status.ok(), status.message());
        matrix.check_complete();
      }
  }
}

TEST_CASE("FAULTS 2: killed at every file call, and again during recovery, and again during that") {
  // All pairs of calls would be their number squared, all triples cubed: each first death meets every kStride-th second
  // one, shifted from one first death to the next.
  constexpr int64_t kStride = 5;
  int64_t num_deaths = 0;
  for (const Start& start : make_starts()) {
    CAPTURE(start.name);
    const Matrix matrix(start);
    for (int64_t first = 1; first <= matrix.num_calls(); ++first) {
      bool second_died = true;
      for (int64_t second = 1 + first % kStride; second_died; second += kStride) {
        CAPTURE(first);
        CAPTURE(second);
        const size_t torn_bytes = 40 * (first % 4);
        FaultyFileOps dying, recovering, recovering_again;
        dying.any_fault = {.at = first, .torn_bytes = torn_bytes};
        (void)matrix.run(dying);
        recovering.any_fault = {.at = second, .torn_bytes = torn_bytes};
        (void)matrix.run_again(recovering);
        second_died = recovering.failed_call().has_value();
        recovering_again.any_fault = {.at = 1 + (7 * first + 3 * second) % matrix.num_calls(), .torn_bytes = 1};
        (void)matrix.run_again(recovering_again);
        matrix.check_kept();
        num_deaths += 1 + second_died + recovering_again.failed_call().has_value();
        matrix.check_recovers();
      }
    }
  }
  MESSAGE(num_deaths << " deaths");
}

TEST_CASE("the disk that loses power keeps names and bytes only where they were synced") {
  const TemporaryDirectory dir(/*in_memory=*/true);
  write_file(dir.file("old"), "was there");
  PowerLossFileOps disk(dir.path(), real_file_ops());
  using Files = PowerLossFileOps::Files;
  const int fd = disk.open(dir.file("new").c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
  REQUIRE(disk.write(fd, "abc", 3) == 3);
  CHECK(disk.after(PowerLoss::kNothingUnsynced) == Files{{"old", "was there"}});
  CHECK(disk.after(PowerLoss::kNamesOnly) == Files{{"new", ""}, {"old", "was there"}});
  CHECK(disk.after(PowerLoss::kSizesOnly) == Files{{"new", std::string(3, '\0')}, {"old", "was there"}});
  REQUIRE(disk.fdatasync(fd) == 0);
  REQUIRE(disk.write(fd, "d", 1) == 1);
  CHECK(disk.after(PowerLoss::kNothingUnsynced) == Files{{"old", "was there"}});
  CHECK(disk.after(PowerLoss::kNamesOnly) == Files{{"new", "abc"}, {"old", "was there"}});
  REQUIRE(disk.rename(dir.file("new").c_str(), dir.file("old").c_str()) == 0);
  CHECK(disk.after(PowerLoss::kNothingUnsynced) == Files{{"old", "was there"}});
  CHECK(disk.after(PowerLoss::kSizesOnly) == Files{{"old", std::string("abc\0", 4)}});
  REQUIRE(sync_directory_of(disk, dir.file("old")).ok());
  CHECK(disk.after(PowerLoss::kNothingUnsynced) == Files{{"old", "abc"}});
  disk.close(fd);
}

TEST_CASE(
    "FAULTS 2, 5: power that goes at any file call costs at most what was not synced, and never a job that said ok") {
  int64_t num_losses = 0;
  for (const Start& start : make_starts()) {
    CAPTURE(start.name);
    const Matrix matrix(start);
    for (const PowerLoss kind : {PowerLoss::kNothingUnsynced, PowerLoss::kNamesOnly, PowerLoss::kSizesOnly})
      for (int64_t at = 1; at <= matrix.num_calls() + 1; ++at) {
        CAPTURE(static_cast<int>(kind));
        CAPTURE(at);
        FaultyFileOps dying;
        dying.any_fault = {.at = at, .torn_bytes = static_cast<size_t>(40 * (at % 4))};
        Status status;
        matrix.directory().restore(matrix.run_into_power_loss(dying, kind, &status));
        ++num_losses;
        matrix.check_kept();
        if (at > matrix.num_calls()) {
          CHECK_MESSAGE(status.ok(), status.message());
          matrix.check_complete();
        }
        matrix.check_recovers();
      }
  }
  MESSAGE(num_losses << " losses");
}

}  // namespace llmb::test
