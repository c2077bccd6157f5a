// The seam between a coordinator and its workers: two queues of values, so that it does not matter how many there are.
#include "job/worker.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "backend/ledger/ledger_backend.h"
#include "job/coordinator.h"
#include "tests/support/process.h"
#include "tests/support/tiny_model.h"

namespace llmb::test {

namespace {

constexpr int kNumLines = 300;

WorkerOptions worker_options() {
  WorkerOptions options;
  options.device = "ledger";
  options.model = tiny_config();
  options.load.num_blocks_override = 64;
  options.load.max_num_seqs = options.scheduler.max_num_seqs = 8;
  options.load.max_num_batched_tokens = options.scheduler.max_num_batched_tokens = 32;
  options.load.max_model_len = options.scheduler.max_model_len = 64;
  return options;
}

// The records of lines that `num_workers` share, in input order.
std::string answer(const TemporaryDirectory& dir, int num_workers) {
  const WorkerOptions options = worker_options();
  const auto clock = std::make_shared<SteadyClock>();
  auto model = std::make_shared<ModelContext>();
  model->vocab_size = options.model.vocab_size;
  model->max_model_len = options.scheduler.max_model_len;
  RequestLimits limits;
  limits.vocab_size = options.model.vocab_size;
  auto intake = std::make_unique<RequestIntake>(std::make_unique<LineReader>(std::vector<std::string>{dir.file("in")}),
                                                std::make_unique<RequestParser>(GenerationParams(), limits), model,
                                                clock, IntakeOptions());
  CoordinatorOptions coordinator_options;
  coordinator_options.window = 16;
  coordinator_options.order = OutputOrder::kInput;
  coordinator_options.format.metrics = false;
  Coordinator coordinator(std::move(intake), coordinator_options);
  const std::string out = dir.file("out" + std::to_string(num_workers));
  auto sink = OutputSink::open({.path = out}, *clock);
  REQUIRE(sink.ok());
  coordinator.begin_output(**sink, nullptr);

  const std::atomic<int> interrupted{0};
  std::vector<std::unique_ptr<Worker>> workers;
  std::vector<Status> statuses(static_cast<size_t>(num_workers));
  std::vector<std::thread> threads;
  for (int i = 0; i < num_workers; ++i) {
    workers.push_back(std::make_unique<Worker>(options));
    const auto stop = workers.back()->load(
        [](std::string_view) { return Result<std::unique_ptr<Backend>>(make_ledger_backend({})); });
    REQUIRE_MESSAGE(!stop, stop->message);
  }
  for (size_t i = 0; i < workers.size(); ++i)
    threads.emplace_back(
        [&, i] { statuses[i] = workers[i]->run(coordinator, coordinator, nullptr, *clock, interrupted, nullptr); });
  for (std::thread& thread : threads) thread.join();
  for (const Status& status : statuses) CHECK_MESSAGE(status.ok(), status.message());
  for (const auto& worker : workers) CHECK(worker->num_left() == 0);
  CHECK(coordinator.input_status().ok());
  REQUIRE(coordinator.results().drain().ok());
  REQUIRE((*sink)->finish().ok());
  return read_file(out);
}

}  // namespace

TEST_CASE("lines that several workers share are answered once each, with the bytes that one worker gives") {
  const TemporaryDirectory dir;
  std::string text;
  for (int i = 0; i < kNumLines; ++i) {
    const std::string prompt = std::to_string(1 + i % 7) + "," + std::to_string(1 + i % 11);
    text += i % 10 == 9 ? "{\"prompt\":5}\n"
                        : "{\"prompt_token_ids\":[" + prompt + "],\"max_tokens\":" + std::to_string(1 + i % 13) +
                              ",\"return_token_ids\":true,\"ignore_eos\":true}\n";
  }
  write_file(dir.file("in"), text);
  const std::string expected = answer(dir, 1);
  CHECK(std::count(expected.begin(), expected.end(), '\n') == kNumLines);
  CHECK(answer(dir, 2) == expected);
  CHECK(answer(dir, 5) == expected);
}

}  // namespace llmb::test
