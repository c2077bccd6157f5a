// The side of a run that reads lines and writes records, with this test in the place of the engine.
#include "job/coordinator.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/engine_job.h"
#include "tests/support/faulty_file_ops.h"
#include "tests/support/process.h"

namespace llmb::test {

namespace {

std::string good_lines(int count) {
  std::string text;
  for (int i = 0; i < count; ++i)
    text += R"({"prompt_token_ids":[1,2,3]})"
            "\n";
  return text;
}

std::string bad_lines(int count) {
  std::string text;
  for (int i = 0; i < count; ++i)
    text += R"({"prompt":5})"
            "\n";
  return text;
}

struct Run {
  explicit Run(const std::string& input, CoordinatorOptions options = {}, FileOps& ops = real_file_ops()) {
    write_file(dir.file("in"), input);
    auto model = std::make_shared<ModelContext>();
    model->vocab_size = model->max_model_len = 100;
    options.reader = std::make_shared<RowReader>(
        std::make_unique<RequestParser>(GenerationParams(), RequestLimits()), model, /*seed=*/0, std::nullopt);
    auto intake = std::make_unique<RequestIntake>(
        std::make_unique<LineReader>(std::vector<std::string>{dir.file("in")}),
        std::make_unique<RequestParser>(GenerationParams(), RequestLimits()), model, clock, IntakeOptions());
    options.format.metrics = false;
    coordinator = std::make_unique<Coordinator>(std::move(intake), options);
    auto opened = OutputSink::open({.path = dir.file("out")}, *clock, ops);
    REQUIRE(opened.ok());
    sink = std::move(*opened);
  }

  // The completion of one request.
  void answer(const WorkItem& item, bool with_error = false) {
    FinishedItem finished;
    finished.completion.choices.emplace_back();
    finished.ordinal = item.ordinal;
    finished.completion.line = item.request->line;
    if (with_error) finished.completion.error = RequestError{"numeric_error", "for the test", std::nullopt};
    coordinator->put(std::move(finished));
  }

  std::map<int64_t, std::string> records() {
    REQUIRE(coordinator->results().drain().ok());
    REQUIRE(sink->sync_all().ok());
    return records_by_index(read_file(dir.file("out.partial")));
  }

  TemporaryDirectory dir;
  std::shared_ptr<const Clock> clock = std::make_shared<SteadyClock>();
  std::unique_ptr<OutputSink> sink;
  std::unique_ptr<Coordinator> coordinator;
};

void wait_until(const std::function<bool()>& condition) {
  for (int i = 0; i < 20000 && !condition(); ++i) std::this_thread::sleep_for(std::chrono::microseconds(500));
  CHECK(condition());
}

}  // namespace

TEST_CASE("ordinals count the lines that need an answer; a line that is an error is answered without the engine") {
  Run run(good_lines(1) + bad_lines(1) + "\n" + good_lines(1) + bad_lines(2));
  run.coordinator->begin_output(*run.sink, nullptr);
  CHECK(run.coordinator->wait_for_line(10000));
  for (const int64_t ordinal : {0, 2}) {
    const auto item = run.coordinator->next(10000);
    REQUIRE(item);
    CHECK(item->ordinal == ordinal);
    CHECK(item->request->line.index == (ordinal == 0 ? 0 : 3));  // line 2 is blank
    run.answer(*item);
  }
  CHECK_FALSE(run.coordinator->next(10000));
  CHECK(run.coordinator->at_end());
  wait_until([&] { return run.coordinator->has_read_all(); });  // known a moment after the end
  CHECK(run.coordinator->input_status().ok());
  CHECK(run.coordinator->num_read() == 5);
  CHECK(run.records().size() == 5);
  CHECK(run.coordinator->num_done() == 5);
  CHECK(run.coordinator->num_failed() == 3);
  CHECK(run.coordinator->results().metrics().num_completed == 2);
  CHECK(run.coordinator->results().metrics().num_failed == 3);
}

TEST_CASE("an input without a line that needs an answer ends the wait for one") {
  Run run("\n  \n");
  while (!run.coordinator->has_read_all()) CHECK_FALSE(run.coordinator->wait_for_line(10));
  CHECK_FALSE(run.coordinator->wait_for_line(0));
  CHECK(run.coordinator->at_end());
}

TEST_CASE(
    "one error record more than allowed closes the sink, whichever threads put them, and none beyond it is written") {
  for (const int64_t max_errors : {0, 1, 20}) {
    CAPTURE(max_errors);
    Run run(good_lines(40) + bad_lines(40), {.max_errors = max_errors});
    run.coordinator->begin_output(*run.sink, nullptr);
    std::vector<std::thread> workers;
    for (int i = 0; i < 4; ++i)
      workers.emplace_back([&] {
        while (!run.coordinator->is_closed())
          if (const auto item = run.coordinator->next(1)) run.answer(*item, /*with_error=*/true);
      });
    for (std::thread& worker : workers) worker.join();
    CHECK(run.coordinator->has_too_many_errors());
    run.coordinator->stop();
    wait_until([&] { return run.coordinator->has_read_all(); });
    CHECK(run.records().size() == static_cast<size_t>(max_errors) + 1);
  }
}

TEST_CASE("a budget that earlier runs used up allows no error record") {
  Run run(bad_lines(3), {.max_errors = -1});
  run.coordinator->begin_output(*run.sink, nullptr);
  CHECK(run.coordinator->is_closed());
  wait_until([&] { return run.coordinator->has_read_all(); });
  CHECK(run.records().empty());
}

namespace {

std::vector<int64_t> indices(const Run& run) {
  std::vector<int64_t> indices;
  std::stringstream lines(read_file(run.dir.file("out.partial")));
  for (std::string line; std::getline(lines, line);) indices.push_back(nlohmann::json::parse(line).at("index"));
  return indices;
}

}  // namespace

TEST_CASE("in input order records of a file wait for earlier ones, as many as a crash may cost; then they go as they come") {
  constexpr auto kHeld = static_cast<int>(ResultStream::kMaxHeld);
  for (const bool is_too_many : {false, true}) {
    CAPTURE(is_too_many);
    const int num_lines = kHeld + 1 + is_too_many;
    Run run(good_lines(num_lines), {.window = 2 * kHeld, .order = OutputOrder::kInput});
    run.coordinator->begin_output(*run.sink, nullptr);
    std::vector<WorkItem> items;
    while (auto item = run.coordinator->next(10000)) items.push_back(std::move(*item));
    REQUIRE(items.size() == static_cast<size_t>(num_lines));
    for (size_t i = 1; i < items.size(); ++i) run.answer(items[i]);
    if (is_too_many) wait_until([&] { return run.coordinator->results().num_written() == num_lines - 1; });
    else CHECK(run.coordinator->results().num_written() == 0);
    run.answer(items[0]);
    CHECK(run.records().size() == static_cast<size_t>(num_lines));
    CHECK(run.coordinator->results().is_in_order() == !is_too_many);
    const std::vector<int64_t> found = indices(run);
    CHECK(std::is_sorted(found.begin(), found.end()) == !is_too_many);
    CHECK(found[is_too_many ? num_lines - 1 : 0] == 0);
  }
}

TEST_CASE("in input order, planned in another one, records of a file are written as they come, to be sorted at the end") {
  Run run(good_lines(3), {.schedule = Schedule::kLongestFirst, .plan_bytes = 1 << 20, .order = OutputOrder::kInput});
  run.coordinator->begin_output(*run.sink, nullptr);
  std::vector<WorkItem> items;
  while (auto item = run.coordinator->next(10000)) items.push_back(std::move(*item));
  REQUIRE(items.size() == 3);
  for (size_t i = 3; i-- > 0;) {
    run.answer(items[i]);
    wait_until([&] { return run.coordinator->results().num_written() == static_cast<int64_t>(3 - i); });
  }
  CHECK(run.records().size() == 3);
  CHECK_FALSE(run.coordinator->results().is_in_order());
}

TEST_CASE("stop() ends a reader that waits for the engine, and drops what the engine has not taken") {
  Run run(good_lines(4000), {.window = 10});
  wait_until([&] { return run.coordinator->num_read() >= 10; });
  run.coordinator->stop();
  wait_until([&] { return run.coordinator->has_read_all(); });
  CHECK(run.coordinator->input_status().ok());
  CHECK(run.coordinator->at_end());
  CHECK_FALSE(run.coordinator->next(0));
}

TEST_CASE("a coordinator that never began to write ends at once, also where its queues are full") {
  const Run run(bad_lines(3000) + good_lines(3000));
  CHECK(run.coordinator->wait_for_line(10000));
}

TEST_CASE("a sink that cannot be written closes; what is put afterwards is dropped, and the reader ends") {
  FaultyFileOps ops;
  ops.disk_bytes = 100;
  Run run(good_lines(3000), {.order = OutputOrder::kInput}, ops);
  run.coordinator->begin_output(*run.sink, nullptr);
  for (int i = 0; i < 3000 && !run.coordinator->at_end(); ++i)
    if (const auto item = run.coordinator->next(10)) run.answer(*item);
  wait_until([&] { return run.coordinator->is_closed() && run.coordinator->has_read_all(); });
  CHECK_FALSE(run.coordinator->has_too_many_errors());
  CHECK(run.coordinator->results().drain().code() == StatusCode::kIoError);
}

namespace {

// Row i asks for 1 + i % 50 tokens, after a prompt of its own.
std::string lines_of_lengths(int count) {
  std::string text;
  for (int i = 0; i < count; ++i)
    text += R"({"prompt_token_ids":[)" + std::to_string(i % 97) + "," + std::to_string(i / 97) + R"(],"max_tokens":)" +
            std::to_string(1 + i % 50) + "}\n";
  return text;
}

CoordinatorOptions planned(size_t plan_bytes) {
  CoordinatorOptions options;
  options.schedule = Schedule::kLongestFirst;
  options.plan_bytes = plan_bytes;
  return options;
}

void wait_until_read(const Run& run) {
  while (!run.coordinator->has_read_all()) run.coordinator->wait_for_line(10);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
}

}  // namespace

TEST_CASE("a file of which memory holds a part only is planned whole, and each row is what it was") {
  constexpr int kRows = 3000;
  // A request takes more than 400 bytes, the place of a row 170.
  Run run(lines_of_lengths(kRows), planned(size_t{2} << 20));
  run.coordinator->begin_output(*run.sink, nullptr);
  wait_until_read(run);
  std::vector<bool> is_there(kRows);
  int32_t last = INT32_MAX;
  for (int i = 0; i < kRows; ++i) {
    const auto item = run.coordinator->next(10000);
    REQUIRE(item.has_value());
    const Request& request = *item->request;
    const auto row = static_cast<int>(item->ordinal);
    CHECK(request.prompt_tokens == std::vector<TokenId>{row % 97, row / 97});
    CHECK(*request.params.stop.max_tokens == 1 + row % 50);
    CHECK(*request.params.stop.max_tokens <= last);
    CHECK(request.line.index == row);
    CHECK(request.line.line_number == row + 1);
    CHECK_FALSE(is_there[row]);
    is_there[row] = true;
    last = *request.params.stop.max_tokens;
    run.answer(*item);
  }
  CHECK_FALSE(run.coordinator->next(10000).has_value());
  CHECK(run.coordinator->input_status().ok());
}

TEST_CASE("a row that has changed when its turn comes ends the run, naming the line") {
  constexpr int kRows = 3000;
  Run run(lines_of_lengths(kRows), planned(size_t{2} << 20));
  run.coordinator->begin_output(*run.sink, nullptr);
  wait_until_read(run);
  std::string changed = lines_of_lengths(kRows);
  const size_t at = changed.rfind("max_tokens\":50");  // of the last row that comes first in the plan
  const auto line = 1 + std::count(changed.begin(), changed.begin() + static_cast<std::ptrdiff_t>(at), '\n');
  changed[at + 12] = '4';
  write_file(run.dir.file("in"), changed);
  while (const auto item = run.coordinator->next(10000)) run.answer(*item);
  const Status status = run.coordinator->input_status();
  CHECK(status.code() == StatusCode::kDataLoss);
  CHECK(status.message().find("in:" + std::to_string(line) + ": the line has changed") != std::string::npos);
}

}  // namespace llmb::test
