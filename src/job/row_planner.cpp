#include "job/row_planner.h"

#include <algorithm>
#include <exception>
#include <new>
#include <string>
#include <utility>

#include "planner/row_queue.h"

namespace llmb {

namespace {

constexpr std::chrono::milliseconds kFirstWindow{2000};
// How often a window that is open looks whether the engine has anything left to take.
constexpr std::chrono::milliseconds kTick{5};

size_t bytes_of(const Request& r) {
  size_t parts = 0;
  for (const auto& part : r.parts) parts += sizeof part + bytes_of(*part);
  return sizeof r + r.prompt_tokens.size() * sizeof(TokenId) + r.line.source.size() + r.id_json.size() +
         r.model_name.size() + r.input_json.size() + r.constraint_bytes + parts;
}

size_t bytes_of(const WorkItem& item) {
  return item.packed_input.size() + (item.request ? bytes_of(*item.request) : 0);
}

}  // namespace

RowPlanner::RowPlanner(const RowPlannerOptions& options, BoundedQueue<WorkItem>& work)
    : options_(options), work_(work), thread_([this] { run(); }) {}

RowPlanner::~RowPlanner() {
  stop();
  work_.close();
  thread_.join();
}

// Includes the memory that putting them in order takes.
size_t RowPlanner::bytes_of(const Item& item) {
  constexpr size_t kOrderBytes = 32;
  return sizeof item + sizeof(PlannedRow) + kOrderBytes + llmb::bytes_of(item.work);
}

RowPlanner::Place RowPlanner::place_of(const LineRef& line) {
  if (sources_.empty() || sources_.back() != line.source) sources_.push_back(line.source);
  return {line.index, line.line_number, line.byte_offset, line.content_hash, static_cast<int32_t>(sources_.size()) - 1};
}

bool RowPlanner::add(WorkItem work, PlannedRow row) {
  const GenerationParams& params = work.request->params;
  row.num_output_tokens = int64_t{params.stop.max_tokens.value_or(1)} * params.sampling.num_choices;
  const bool can_read_again = options_.reader != nullptr && options_.reader->can_read(work.request->line.source);
  std::unique_lock lock(mutex_);
  Item item;
  item.place = place_of(work.request->line);
  item.work = std::move(work);
  const size_t request_bytes = llmb::bytes_of(item.work);
  if (can_read_again && num_request_bytes_ + request_bytes > options_.max_bytes / 2) {
    item.work.request.reset();
    item.work.packed_input = {};
  }
  const size_t size = bytes_of(item);
  if (num_bytes_ + size > options_.max_bytes && num_bytes_ > 0) {
    is_window_ended_ = true;
    changed_.notify_all();
    // Woken once for many places.
    has_room_.wait(lock, [&] { return is_stopped_ || num_bytes_ <= options_.max_bytes / 2; });
  }
  if (is_stopped_) return false;
  num_bytes_ += size;
  if (item.work.request) num_request_bytes_ += request_bytes;
  window_.has_arrivals |= item.work.arrival_ms > 0 && !item.work.arrival_is_clock_time;
  window_.has_pipe |= item.work.arrival_is_clock_time;
  if (window_.adapter == kNoAdapter) window_.adapter = row.adapter;
  window_.has_several_adapters |= row.adapter != kNoAdapter && row.adapter != window_.adapter;
  window_.items.push_back(std::move(item));
  window_.rows.push_back(row);
  if (window_.items.size() == 1) changed_.notify_all();
  return true;
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
    std::lock_guard lock(mutex_);
    status = status_;
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

// By adapter.
bool RowPlanner::groups_rows(const Window& window) const {
  const bool follows_trie = options_.schedule == Schedule::kAuto || options_.schedule == Schedule::kPrefix;
  return follows_trie && window.has_several_adapters && !window.has_arrivals && !window.has_pipe;
}

bool RowPlanner::must_close(Time now) const {
  if (has_ended_ || is_window_ended_) return true;
  if (groups_rows(window_)) return false;
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

// The request of a row that is read again is that of its first reading.
Status RowPlanner::complete(Item* item) {
  if (item->work.request) return {};
  const Place& place = item->place;
  LineRef line = {place.index, "", place.line_number, place.byte_offset, place.content_hash};
  {
    std::lock_guard lock(mutex_);
    line.source = sources_[place.source];
  }
  std::string* const packed_input = options_.packs_input ? &item->work.packed_input : nullptr;
  LLMB_ASSIGN_OR_RETURN(item->work.request, options_.reader->read(line, packed_input));
  return {};
}

bool RowPlanner::hand_on(Window window) {
  const bool is_in_order = window.has_arrivals || options_.schedule == Schedule::kFile;
  RowQueue queue(is_in_order ? Schedule::kFile : options_.schedule, std::move(window.rows), options_.num_slots);
  // The first to end are the shortest of those that run.
  int64_t reorder_at = std::max<int64_t>(LengthPredictor::kEnough, options_.num_slots);
  while (const std::optional<int32_t> row = queue.next()) {
    Item& item = window.items[*row];
    const size_t size = bytes_of(item), request_bytes = llmb::bytes_of(item.work);
    if (Status status = complete(&item); !status.ok()) {
      std::lock_guard lock(mutex_);
      status_ = std::move(status);
      return false;
    }
    if (!work_.push(std::move(item.work))) return false;
    {
      std::lock_guard lock(mutex_);
      num_bytes_ -= size;
      num_request_bytes_ -= request_bytes;
      if (num_bytes_ <= options_.max_bytes / 2) has_room_.notify_all();
    }
    if (is_in_order || options_.lengths == nullptr || options_.lengths->num_learned() < reorder_at) continue;
    reorder_at = 2 * options_.lengths->num_learned();
    queue.reorder([&](int32_t left) { return options_.lengths->expected_tokens(window.items[left].place.index); });
  }
  return true;
}

}  // namespace llmb
