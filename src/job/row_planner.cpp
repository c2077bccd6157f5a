#include "job/row_planner.h"

#include <exception>
#include <new>
#include <string>
#include <utility>

namespace llmb {

namespace {

constexpr std::chrono::milliseconds kFirstWindow{2000};
// How often a window that is open looks whether the engine has anything left to take.
constexpr std::chrono::milliseconds kTick{5};

size_t bytes_of(const WorkItem& item) {
  const Request& r = *item.request;
  return sizeof item + sizeof r + sizeof(PlannedRow) + r.prompt_tokens.size() * sizeof(TokenId) +
         r.line.source.size() + r.id_json.size() + r.model_name.size() + r.input_json.size();
}

}  // namespace

RowPlanner::RowPlanner(const RowPlannerOptions& options, BoundedQueue<WorkItem>& work)
    : options_(options), work_(work), thread_([this] { run(); }) {}

RowPlanner::~RowPlanner() {
  stop();
  work_.close();
  thread_.join();
}

bool RowPlanner::add(WorkItem item, PlannedRow row) {
  const size_t size = bytes_of(item);
  const GenerationParams& params = item.request->params;
  row.num_output_tokens = int64_t{params.stop.max_tokens.value_or(1)} * params.sampling.num_choices;
  std::unique_lock lock(mutex_);
  if (num_bytes_ + size > options_.max_bytes && num_bytes_ > 0) {
    is_window_ended_ = true;
    changed_.notify_all();
    // Woken once for many places.
    has_room_.wait(lock, [&] { return is_stopped_ || num_bytes_ <= options_.max_bytes / 2; });
  }
  if (is_stopped_) return false;
  num_bytes_ += size;
  window_.has_arrivals |= item.arrival_ms > 0 && !item.arrival_is_clock_time;
  window_.has_pipe |= item.arrival_is_clock_time;
  window_.items.push_back(std::move(item));
  window_.rows.push_back(row);
  if (window_.items.size() == 1) changed_.notify_all();
  return true;
}

void RowPlanner::end_window() {
  std::lock_guard lock(mutex_);
  is_window_ended_ = true;
  changed_.notify_all();
}

void RowPlanner::end() {
  std::lock_guard lock(mutex_);
  has_ended_ = true;
  changed_.notify_all();
}

void RowPlanner::begin_engine() {
  std::lock_guard lock(mutex_);
  if (engine_began_) return;
  engine_began_ = std::chrono::steady_clock::now();
  changed_.notify_all();
}

void RowPlanner::stop() {
  std::lock_guard lock(mutex_);
  is_stopped_ = true;
  changed_.notify_all();
  has_room_.notify_all();
}

Status RowPlanner::status() const {
  std::lock_guard lock(mutex_);
  return status_;
}

void RowPlanner::run() {
  Status status;
  try {
    hand_on_all();
  } catch (const std::bad_alloc&) {
    status = resource_exhausted("out of memory while planning; try a smaller `plan_memory`");
  } catch (const std::exception& e) {
    status = internal_error(std::string("while planning: ") + e.what());
  }
  stop();
  {
    std::lock_guard lock(mutex_);
    status_ = std::move(status);
  }
  work_.close();
}

bool RowPlanner::must_close(Time now) const {
  if (has_ended_ || is_window_ended_) return true;
  if (!engine_began_ || work_.size() > 0) return false;
  return num_windows_ > 0 || window_.has_pipe || now >= *engine_began_ + kFirstWindow;
}

void RowPlanner::hand_on_all() {
  std::unique_lock lock(mutex_);
  while (!is_stopped_) {
    if (window_.items.empty()) {
      if (has_ended_) return;
      is_window_ended_ = false;
      changed_.wait(lock);
      continue;
    }
    if (!must_close(std::chrono::steady_clock::now())) {
      changed_.wait_for(lock, kTick);
      continue;
    }
    is_window_ended_ = false;
    ++num_windows_;
    Window window = std::exchange(window_, Window());
    lock.unlock();
    if (!hand_on(std::move(window))) return;
    lock.lock();
  }
}

bool RowPlanner::hand_on(Window window) {
  const Schedule schedule = window.has_arrivals ? Schedule::kFile : options_.schedule;
  for (const int32_t row : order_rows(schedule, window.rows, options_.num_slots)) {
    WorkItem& item = window.items[row];
    const size_t size = bytes_of(item);
    if (!work_.push(std::move(item))) return false;
    std::lock_guard lock(mutex_);
    num_bytes_ -= size;
    if (num_bytes_ <= options_.max_bytes / 2) has_room_.notify_all();
  }
  return true;
}

}  // namespace llmb
