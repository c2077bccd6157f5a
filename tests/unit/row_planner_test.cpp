// Windows of rows on their way to the engine, with this test in the place of reader and engine.
#include "job/row_planner.h"

#include <doctest/doctest.h>

#include <atomic>
#include <chrono>

#include "tests/support/workload.h"

namespace llmb::test {

namespace {

using Clock = std::chrono::steady_clock;

double ms_since(Clock::time_point begin) {
  return std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
}

struct Run {
  explicit Run(size_t max_bytes = 1 << 20, size_t window = 256, Schedule schedule = Schedule::kLongestFirst) : work(window) {
    planner.emplace(RowPlannerOptions{schedule, max_bytes, 4}, work);
  }
  // A row whose answer has so many tokens at most.
  bool add(int32_t max_tokens, double arrival_ms = 0, bool is_pipe = false, int32_t adapter = kNoAdapter) {
    const auto ordinal = static_cast<int64_t>(num_added++);
    return planner->add({ordinal, make_request(10, max_tokens), arrival_ms, is_pipe},
                        {static_cast<int32_t>(ordinal), {}, 0, adapter});
  }
  std::vector<int32_t> take_all() {
    std::vector<int32_t> lengths;
    while (const auto item = work.pop_for(20000)) lengths.push_back(*item->request->params.stop.max_tokens);
    CHECK(work.drained());
    return lengths;
  }

  BoundedQueue<WorkItem> work;
  size_t num_added = 0;
  std::optional<RowPlanner> planner;
};

}  // namespace

TEST_CASE("at the end of the input all rows are handed on in the planned order, each once") {
  Run run;
  for (const int32_t length : {3, 1, 4, 1, 5, 9, 2, 6}) CHECK(run.add(length));
  CHECK_FALSE(run.work.pop_for(30));  // the engine has not begun
  run.planner->end();
  CHECK(run.take_all() == std::vector<int32_t>{9, 6, 5, 4, 3, 2, 1, 1});
  CHECK(run.planner->status().ok());
}

TEST_CASE("where memory is full a window closes, and the reader goes on when half of it is free") {
  Run run(/*max_bytes=*/20000, /*window=*/4);
  std::atomic<int> num_added{0};
  std::thread reader([&] {
    for (int32_t i = 0; i < 500; ++i, ++num_added) CHECK(run.add(1 + i));
    run.planner->end();
  });
  for (int last = -1; num_added.load() != last || last == 0;) {
    last = num_added.load();
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
  }
  CHECK(num_added.load() < 100);
  const std::vector<int32_t> lengths = run.take_all();
  reader.join();
  CHECK(lengths.size() == 500);
  CHECK(lengths[0] > 10);  // the last of the first window
  CHECK_FALSE(std::is_sorted(lengths.rbegin(), lengths.rend()));
}

TEST_CASE("computing starts two seconds after the engine is ready, at once behind a pipe, and whenever it would idle") {
  Run run;
  run.add(1);
  CHECK_FALSE(run.work.pop_for(50));
  const auto begin = Clock::now();
  run.planner->begin_engine();
  CHECK(run.work.pop_for(20000));
  CHECK(ms_since(begin) >= 1900);
  run.add(2);
  CHECK(run.work.pop_for(20000));  // nobody says that the window ends
  run.planner->end();
  CHECK(run.take_all().empty());

  Run pipe;
  pipe.planner->begin_engine();
  const auto piped = Clock::now();
  pipe.add(1, 1.0, /*is_pipe=*/true);
  CHECK(pipe.work.pop_for(20000));
  CHECK(ms_since(piped) < 1500);
}

TEST_CASE("rows of several adapters of a file are gathered to its end, however long that takes; others are not") {
  const auto begun = [](bool is_pipe, int32_t second_adapter) {
    auto run = std::make_unique<Run>(1 << 20, 256, Schedule::kAuto);
    run->planner->begin_engine();
    for (int32_t i = 0; i < 4; ++i) CHECK(run->add(1 + i % 2, is_pipe, is_pipe, i % 2 == 0 ? 3 : second_adapter));
    return run;
  };
  const auto file = begun(false, 7), one = begun(false, 3), pipe = begun(true, 7);
  CHECK(pipe->work.pop_for(20000));
  CHECK(one->work.pop_for(20000));
  CHECK_FALSE(file->work.pop_for(100));  // that of one adapter has closed
  file->planner->end();
  CHECK(file->take_all() == std::vector<int32_t>{2, 2, 1, 1});
}

TEST_CASE("rows with simulated arrivals stay in order") {
  Run run;
  for (const int32_t length : {1, 3, 2}) run.add(length, 10.0 * length);
  run.planner->end();
  CHECK(run.take_all() == std::vector<int32_t>{1, 3, 2});
}

TEST_CASE("stopped, it hands no more on, and a reader that waits for room goes on") {
  Run run(/*max_bytes=*/5000, /*window=*/1);
  std::thread reader([&] {
    while (run.add(1)) {
    }
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  run.planner->stop();
  run.work.close();
  reader.join();
  CHECK_FALSE(run.add(1));
}

}  // namespace llmb::test
