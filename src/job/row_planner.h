// Between the thread that reads and the engine: holds what is read ahead and hands it on in the order of the plan
// (planner/row_order.h), window by window.
//
// A window is what was read when it closes: at the end of the input, where memory is full, or where the engine has
// nothing left to take. The first one stays open for 2 s of that where the input is a file, whose lines come fast.
// Rows with simulated arrivals stay in the order of the file.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "base/bounded_queue.h"
#include "base/status.h"
#include "engine/request_source.h"
#include "planner/row_order.h"

namespace llmb {

struct RowPlannerOptions {
  Schedule schedule = Schedule::kAuto;
  size_t max_bytes = 0;   // of rows that the engine has not taken; one row may be larger
  int32_t num_slots = 1;  // rows that run at one time
};

// A thread of its own hands the rows of a closed window on while the next one is read.
class RowPlanner {
 public:
  // `work`, which the engine reads, outlives the planner.
  RowPlanner(const RowPlannerOptions& options, BoundedQueue<WorkItem>& work);
  ~RowPlanner();
  RowPlanner(const RowPlanner&) = delete;
  RowPlanner& operator=(const RowPlanner&) = delete;

  // For the thread that reads. Blocks while memory is full. False: stopped. `row`: but for its output tokens.
  bool add(WorkItem item, PlannedRow row);
  // What was added so far waits for nothing more.
  void end_window();
  // No row will come any more: `work` is closed once the last is handed on.
  void end();

  // From any thread. The engine is ready to take rows.
  void begin_engine();
  // Hands no more on; `work` is to be closed.
  void stop();
  Status status() const;  // of the planner's thread

 private:
  using Time = std::chrono::steady_clock::time_point;
  struct Window {
    std::vector<WorkItem> items;
    std::vector<PlannedRow> rows;
    bool has_arrivals = false, has_pipe = false;
  };

  void run();
  void hand_on_all();
  bool must_close(Time now) const;
  bool hand_on(Window window);

  const RowPlannerOptions options_;
  BoundedQueue<WorkItem>& work_;
  mutable std::mutex mutex_;
  std::condition_variable changed_, has_room_;
  Window window_;            // guarded by mutex_, as what follows
  size_t num_bytes_ = 0;     // of rows added and not handed on
  size_t num_windows_ = 0;   // that have closed
  bool is_window_ended_ = false, has_ended_ = false, is_stopped_ = false;
  std::optional<Time> engine_began_;
  Status status_;
  std::thread thread_;
};

}  // namespace llmb
