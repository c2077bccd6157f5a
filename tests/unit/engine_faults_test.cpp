// A backend that fails in the middle of a job, or computes NaN: FAULTS rows 24 (errors of the device) and 27, over the
// engine, the result stream and a file, on the ledger backend.
#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include <map>
#include <sstream>

#include "backend/ledger/ledger_backend.h"
#include "engine/engine.h"
#include "engine/request_intake.h"
#include "engine/result_stream.h"
#include "engine/run_metrics.h"
#include "io/completed_lines.h"
#include "io/resume_scan.h"
#include "tests/support/process.h"
#include "tests/support/scripted_backend.h"
#include "tests/support/tiny_model.h"

namespace llmb::test {

namespace {

constexpr int kNumLines = 40;

struct Job {
  TemporaryDirectory dir;
  std::string in = dir.file("in.jsonl"), out = dir.file("out.jsonl"), partial = out + ".partial";

  Job() {
    std::string text;
    for (int i = 0; i < kNumLines; ++i)
      text += R"({"prompt_token_ids":[1,2,)" + std::to_string(3 + i) + R"(],"ignore_eos":true,"max_tokens":)" +
              std::to_string(1 + i % 9) + "}\n";
    write_file(in, text);
  }

  // Continues whatever is in the partial file. The engine's status; finishes the output where it is ok.
  Status run(BackendScript script) const {
    const auto clock = std::make_shared<SteadyClock>();
    ScriptedBackend backend(make_ledger_backend({}), std::move(script));
    const ModelConfig config = tiny_config();
    SchedulerConfig scheduler;
    scheduler.max_num_seqs = 4;
    scheduler.max_model_len = 64;
    LoadOptions load;
    load.block_size = scheduler.block_size;
    load.num_blocks_override = scheduler.num_blocks = 64;
    load.max_num_seqs = scheduler.max_num_seqs;
    load.max_num_batched_tokens = scheduler.max_num_batched_tokens;
    load.max_model_len = scheduler.max_model_len;
    LLMB_RETURN_IF_ERROR(backend.load(config, load));

    CompletedLines completed;
    OutputSinkOptions sink_options;
    sink_options.path = out;
    if (!read_file(partial).empty()) {
      const auto scanned = scan_records(partial, [&](const RecordSummary& record, std::string_view) {
        CHECK(completed.add(record.index, record.content_hash));
        return Status();
      });
      REQUIRE(scanned.ok());
      CHECK(scanned->torn_bytes == 0);
      sink_options.keep_bytes = scanned->whole_bytes;
    }
    auto sink = OutputSink::open(sink_options, *clock);
    REQUIRE(sink.ok());
    auto model = std::make_shared<ModelContext>();
    model->vocab_size = config.vocab_size;
    model->max_model_len = scheduler.max_model_len;
    RequestLimits limits;
    limits.vocab_size = config.vocab_size;
    IntakeOptions intake_options;
    intake_options.completed = &completed;
    RequestIntake intake(std::make_unique<LineReader>(std::vector<std::string>{in}),
                         std::make_unique<RequestParser>(GenerationParams(), limits), model, clock, intake_options);
    ResultStream results(**sink, nullptr, ResultFormatter({.metrics = false}), OutputOrder::kCompletion);
    RunMetrics metrics(config, {});
    const std::atomic<int> interrupted{0};
    Engine engine({.scheduler = scheduler}, backend, nullptr, *clock, intake, results, metrics, interrupted, nullptr);
    const Status status = engine.run();
    const Status drained = results.drain();
    CHECK_MESSAGE(drained.ok(), drained.message());
    if (status.ok()) CHECK((*sink)->finish().ok());
    return status;
  }
};

std::map<int64_t, std::string> records(const std::string& text) {
  CHECK((text.empty() || text.back() == '\n'));
  std::map<int64_t, std::string> found;
  std::stringstream lines(text);
  for (std::string line; std::getline(lines, line);)
    CHECK(found.emplace(nlohmann::json::parse(line)["index"].get<int64_t>(), line).second);
  return found;
}

}  // namespace

TEST_CASE(
    "FAULTS 24: a device error at any step ends the run with it, what was done is kept, and the next run completes") {
  const Job reference;
  REQUIRE(reference.run({}).ok());
  const auto expected = records(read_file(reference.out));
  REQUIRE(expected.size() == kNumLines);
  for (const int64_t step : {0, 1, 7, 20})
    for (const bool at_submit : {false, true}) {
      CAPTURE(step);
      CAPTURE(at_submit);
      const Job job;
      BackendScript script;
      (at_submit ? script.submit_errors : script.wait_errors)[step] = device_error("illegal address");
      const Status status = job.run(script);
      CHECK(status.code() == StatusCode::kDeviceError);
      CHECK(status.message().find("illegal address") != std::string::npos);
      for (const auto& [index, record] : records(read_file(job.partial))) CHECK(record == expected.at(index));
      CHECK(job.run({}).ok());
      CHECK(records(read_file(job.out)) == expected);
    }
}

TEST_CASE("FAULTS 27: a row of NaN is that line's numeric_error, all others are as without it") {
  const Job reference, job;
  REQUIRE(reference.run({}).ok());
  const auto expected = records(read_file(reference.out));
  BackendScript script;
  script.nan_rows = {{3, 0}, {9, 1}};
  CHECK(job.run(script).ok());
  int num_errors = 0;
  const auto found = records(read_file(job.out));
  REQUIRE(found.size() == kNumLines);
  for (const auto& [index, record] : found) {
    if (record == expected.at(index)) continue;
    ++num_errors;
    CHECK(nlohmann::json::parse(record)["error"]["code"] == "numeric_error");
  }
  CHECK(num_errors == 2);
}

}  // namespace llmb::test
