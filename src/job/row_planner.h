// Between the thread that reads and the engine: holds what is read ahead and hands it on in the order of the plan
// (planner/row_order.h), window by window.
//
// A window is what was read when it closes: at the end of the input, where memory is full, or where the engine has
// nothing left to take. The first one stays open for 2 s of that where the input is a file, whose lines come fast.
// Rows with simulated arrivals stay in the order of the file.
// Where rows of a file name several adapters, a window stays open to the end of the input, or until memory is full: each
// adapter is then read once, which saves more than the engine's first steps, as lines are read far faster than answered.
//
// Where requests would take more than half of the memory, later ones are not kept: of their rows the plan has places and
// lengths, and the requests are read again when their turn has come (row_reader.h). So a window of a file holds as many
// rows as there is memory for some 150 bytes of each.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/bounded_queue.h"
#include "base/status.h"
#include "engine/request_source.h"
#include "job/row_reader.h"
#include "planner/length_predictor.h"
#include "planner/row_order.h"

namespace llmb {

struct RowPlannerOptions {
  Schedule schedule = Schedule::kAuto;
  size_t max_bytes = 0;   // of rows that the engine has not taken; one row may be larger
  int32_t num_slots = 1;  // rows that run at one time
  RowReader* reader = nullptr;                       // of rows that are not kept; null: all are. Outlives the planner
  bool packs_input = false;                          // WorkItem::packed_input, also of rows that are read again
  const LengthPredictor* lengths = nullptr;  // learns while the run goes on: the order follows it. null: it does not
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
  // No row will come any more: `work` is closed once the last is handed on.
  void end();

  // From any thread. The engine is ready to take rows.
  void begin_engine();
  // Hands no more on; `work` is to be closed.
  void stop();
  Status status() const;  // of the planner's thread

 private:
  using Time = std::chrono::steady_clock::time_point;
  // Where a row was read. 40 bytes, as there may be very many.
  struct Place {
    int64_t index = 0, line_number = 0, byte_offset = 0;
    uint64_t content_hash = 0;
    int32_t source = 0;  // in sources_
  };
  struct Item {
    WorkItem work;  // its request null: to be read again
    Place place;
  };
  struct Window {
    std::vector<Item> items;
    std::vector<PlannedRow> rows;
    bool has_arrivals = false, has_pipe = false, has_several_adapters = false;
    int32_t adapter = kNoAdapter;  // of the first row that has one
  };

  void run();
  void hand_on_all();
  bool groups_rows(const Window& window) const;
  bool must_close(Time now) const;
  bool hand_on(Window window);
  Status complete(Item* item);
  Place place_of(const LineRef& line);
  static size_t bytes_of(const Item& item);

  const RowPlannerOptions options_;
  BoundedQueue<WorkItem>& work_;
  mutable std::mutex mutex_;
  std::condition_variable changed_, has_room_;
  Window window_;            // guarded by mutex_, as what follows
  std::vector<std::string> sources_;
  size_t num_bytes_ = 0;          // of rows added and not handed on
  size_t num_request_bytes_ = 0;  // of these, in requests
  size_t num_windows_ = 0;   // that have closed
  bool is_window_ended_ = false, has_ended_ = false, is_stopped_ = false;
  std::optional<Time> engine_began_;
  Status status_;
  std::thread thread_;
};

}  // namespace llmb
