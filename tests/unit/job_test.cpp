// A job without a command line: plain options in, a plain ending out. On the ledger device with the bundled model.
#include "job/job.h"

#include <doctest/doctest.h>

#include "backend/ledger/ledger_backend.h"
#include "tests/support/process.h"
#include "tests/support/source_dir.h"

namespace llmb::test {

namespace {

class SilentObserver final : public JobObserver {
 public:
  void on_loaded(const JobOptions&, const ModelFiles&, const BackendInfo&) override { ++num_loaded; }
  void on_forecast(const Forecast&, const BackendInfo&) override {}
  void on_progress(const JobProgress& progress) override { last = progress; }
  void on_computed() override { ++num_computed; }

  int num_loaded = 0, num_computed = 0;
  JobProgress last;
};

// Lines and an output in a directory of their own.
struct Place {
  Place() {
    options.build = "test";
    options.model.model = options.model.tokenizer = source_dir() + "/data/model";
    options.device = "ledger";
    options.inputs = {dir.file("in.jsonl")};
    options.output.path = dir.file("out.jsonl");
    options.generation.max_tokens = 5;
    write_lines(7);
  }

  // `bad` of them are errors.
  void write_lines(int good, int bad = 0) const {
    std::string text;
    for (int i = 0; i < good; ++i) text += "{\"prompt\":\"Tale " + std::to_string(i) + "\"}\n";
    for (int i = 0; i < bad; ++i) text += "{\"prompt\":5}\n";
    write_file(options.inputs[0], text);
  }

  JobEnding run() {
    observer = {};
    Job job(options, {make, interrupted, observer});
    const JobEnding ending = job.run();
    CHECK_FALSE(job.must_end_process());
    // A job knows no command line.
    CHECK_MESSAGE(ending.message.find("--") == std::string::npos, ending.message);
    CHECK(job.snapshot().report.done == ending.report.done);
    return ending;
  }

  const TemporaryDirectory dir;
  JobOptions options;
  BackendFactory make = [](std::string_view) { return Result<std::unique_ptr<Backend>>(make_ledger_backend({})); };
  std::atomic<int> interrupted{0};
  SilentObserver observer;
};

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("a job that answers every line is complete; run again there is nothing to do; new lines continue it") {
  Place place;
  const JobEnding first = place.run();
  CHECK_MESSAGE(first.end == JobEnd::kComplete, first.message);
  CHECK(first.message == "");
  CHECK(first.report.done == 7);
  CHECK(first.report.left == 0);
  CHECK_FALSE(first.report.resumable);
  REQUIRE(first.metrics);
  CHECK(first.metrics->requests.num_completed == 7);
  CHECK(first.metrics->backend.kind == DeviceKind::kLedger);
  CHECK(place.observer.num_loaded == 1);
  CHECK(place.observer.num_computed == 1);
  CHECK(place.observer.last.num_done == 7);

  const std::string output = read_file(place.options.output.path);
  const JobEnding second = place.run();
  CHECK(second.end == JobEnd::kNothingToDo);
  CHECK(second.report.done == 7);
  CHECK(second.report.skipped == 7);
  CHECK_FALSE(second.metrics);
  CHECK(place.observer.num_loaded == 0);
  CHECK(read_file(place.options.output.path) == output);

  place.write_lines(9);
  const JobEnding third = place.run();
  CHECK(third.end == JobEnd::kComplete);
  CHECK(third.report.done == 9);
  CHECK(third.report.skipped == 7);
  CHECK(place.observer.last.num_lines == 2);
  CHECK(read_file(place.options.output.path).starts_with(output));
}

TEST_CASE("error records are an ending of their own, and more of them than allowed another") {
  Place place;
  place.write_lines(4, 3);
  place.options.output.max_errors = 2;
  const JobEnding stopped = place.run();
  CHECK(stopped.end == JobEnd::kTooManyErrors);
  CHECK(stopped.report.failed == 3);
  CHECK(stopped.report.resumable);
  place.options.output.max_errors = 3;
  const JobEnding ending = place.run();
  CHECK_MESSAGE(ending.end == JobEnd::kCompleteWithErrors, ending.message);
  CHECK(ending.report.done == 7);
  CHECK(ending.report.failed == 3);
}

TEST_CASE("what refuses a job is told by the end's reason, and options by their names") {
  SUBCASE("another job's output") {
    Place place;
    REQUIRE(place.run().end == JobEnd::kComplete);
    place.options.seed = 1;
    const JobEnding ending = place.run();
    CHECK(ending.end == JobEnd::kResumeRefused);
    CHECK(contains(ending.message, "seed was 0 and is 1"));
    CHECK(contains(ending.message, "start over with `restart`"));
    CHECK_FALSE(ending.report.resumable);
    place.options.output.restart = true;
    CHECK(place.run().end == JobEnd::kComplete);
  }
  SUBCASE("an edited line") {
    Place place;
    REQUIRE(place.run().end == JobEnd::kComplete);
    write_file(place.options.inputs[0], "{\"prompt\":\"another\"}\n");
    CHECK(place.run().end == JobEnd::kResumeRefused);
  }
  SUBCASE("an output that is held") {
    Place place;
    const auto target = resolve_output(place.options.output.path, {});
    REQUIRE(target.ok());
    const auto held = ManifestFile::lock(target->manifest(), target->path);
    REQUIRE(held.ok());
    CHECK(place.run().end == JobEnd::kOutputBusy);
  }
  SUBCASE("files") {
    Place place;
    place.options.inputs = {place.dir.file("missing.jsonl")};
    CHECK(place.run().end == JobEnd::kInputUnreadable);
    place.options.inputs = {place.dir.file("in.jsonl")};
    place.options.output.path = place.dir.file("missing/out.jsonl");
    CHECK(place.run().end == JobEnd::kOutputFailed);
    place.options.output.path = place.dir.file("out.jsonl");
    place.options.output.error_file = place.dir.path();
    const JobEnding directory = place.run();
    CHECK(directory.end == JobEnd::kOptionRefused);
    CHECK(directory.message.starts_with("`error_file`: "));
  }
  SUBCASE("the model and what is asked of it") {
    Place place;
    place.options.model.model = place.options.model.tokenizer = place.dir.file("nowhere");
    CHECK(place.run().end != JobEnd::kComplete);
    place.options.model.model = place.options.model.tokenizer = source_dir() + "/data/model";
    place.options.max_model_len = 1 << 20;
    const JobEnding longer = place.run();
    CHECK(longer.end == JobEnd::kOptionRefused);
    CHECK(longer.message.starts_with("`max_model_len` 1048576 is more than"));
    place.options.max_model_len.reset();
    place.options.generation.stop_token_ids = {1 << 24};
    const JobEnding token = place.run();
    CHECK(token.end == JobEnd::kOptionRefused);
    CHECK(token.message.starts_with("`stop_token_ids`: 16777216 is not in [0, "));
  }
  SUBCASE("the device") {
    Place place;
    place.make = [](std::string_view) -> Result<std::unique_ptr<Backend>> { return device_error("lost"); };
    CHECK(place.run().end == JobEnd::kDeviceFault);
    place.make = [](std::string_view) -> Result<std::unique_ptr<Backend>> { return resource_exhausted("full"); };
    const JobEnding full = place.run();
    CHECK(full.end == JobEnd::kOutOfMemory);
    CHECK(full.message == "full");
    CHECK(place.observer.num_loaded == 0);
  }
}

TEST_CASE("a job that is asked to end before it begins answers nothing and can be continued") {
  Place place;
  place.interrupted = 1;
  const JobEnding ending = place.run();
  CHECK(ending.end == JobEnd::kInterrupted);
  CHECK(ending.report.done == 0);
  place.interrupted = 0;
  CHECK(place.run().end == JobEnd::kComplete);
}

}  // namespace llmb::test
