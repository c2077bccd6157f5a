#include "job/row_dealer.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/check.h"

namespace llmb {

namespace {

constexpr size_t kMinLookahead = 256;                 // rows, for each worker
constexpr size_t kMaxStreamBytes = size_t{64} << 20;  // of rows taken ahead

size_t waiting_bytes(const WorkItem& row) {
  return row.packed_input.size() + row.request->prompt_tokens.size() * sizeof(TokenId);
}

// Tokens at the beginning that both prompts have.
size_t num_shared(const WorkItem& a, const WorkItem& b) {
  if (a.request->adapter != b.request->adapter) return 0;
  const std::vector<TokenId>&x = a.request->prompt_tokens, &y = b.request->prompt_tokens;
  const size_t size = std::min(x.size(), y.size());
  return static_cast<size_t>(std::mismatch(x.begin(), x.begin() + static_cast<std::ptrdiff_t>(size), y.begin()).first -
                             x.begin());
}

// A prompt's tokens, those aside that the row before it has, are computed many at a time.
int64_t cost_of(const WorkItem& row, size_t num_shared_tokens) {
  constexpr int64_t kPromptTokensOfOne = 8;
  const auto& params = row.request->params;
  const auto num_computed = static_cast<int64_t>(row.request->prompt_tokens.size() - num_shared_tokens);
  return 1 + num_computed / kPromptTokensOfOne + int64_t{*params.stop.max_tokens} * params.sampling.num_choices;
}

}  // namespace

RowDealer::RowDealer(int num_workers, int num_slots)
    : max_in_hand_(static_cast<size_t>(num_slots) + std::max<size_t>(2, static_cast<size_t>(num_slots) / 8)),
      workers_(static_cast<size_t>(num_workers)) {}

bool RowDealer::wants_rows() const {
  if (stream_.empty()) return true;
  return stream_.size() < workers_.size() * std::max(kMinLookahead, 2 * max_in_hand_) &&
         num_stream_bytes_ < kMaxStreamBytes;
}

void RowDealer::add(WorkItem row) {
  num_stream_bytes_ += waiting_bytes(row);
  const int64_t cost = cost_of(row, stream_.empty() ? 0 : num_shared(stream_.back().work, row));
  cost_left_ += cost;
  stream_.push_back({std::move(row), cost});
}

size_t RowDealer::num_expected() const {
  const auto is_expected = [](const Worker& worker) { return !worker.is_given_up; };
  return std::max<size_t>(1, static_cast<size_t>(std::count_if(workers_.begin(), workers_.end(), is_expected)));
}

size_t RowDealer::num_waiting() const {
  size_t count = stream_.size() + returned_.size() + suspects_.size();
  for (const Worker& worker : workers_) count += worker.portion.size();
  return count;
}

size_t RowDealer::drop_waiting() {
  const size_t count = num_waiting();
  stream_.clear(), returned_.clear(), suspects_.clear();
  num_stream_bytes_ = 0;
  cost_left_ = 0;
  for (Worker& worker : workers_) {
    worker.portion.clear();
    cost_left_ += worker.cost_in_hand;
  }
  return count;
}

// Whether others are to have what is left.
bool RowDealer::has_its_part(const Worker& worker) const {
  const auto num_workers = static_cast<int64_t>(num_expected());
  return worker.in_hand.size() >= max_in_hand_ || worker.cost_in_hand >= (cost_left_ + num_workers - 1) / num_workers;
}

// The cut is in the second half of an even part, in front of the row that shares least with the one before it.
void RowDealer::cut_portion(Worker& worker) {
  if (stream_.empty()) return;
  const size_t part = std::max<size_t>(1, stream_.size() / (2 * num_expected()));
  size_t cut = part, least = SIZE_MAX;
  for (size_t i = part; i > part / 2 && i < stream_.size(); --i) {
    const size_t shared = num_shared(stream_[i - 1].work, stream_[i].work);
    if (shared < least) cut = i, least = shared;
  }
  const auto end = stream_.begin() + static_cast<std::ptrdiff_t>(cut);
  for (auto at = stream_.begin(); at != end; ++at) {
    num_stream_bytes_ -= waiting_bytes(at->work);
    worker.portion.push_back(std::move(*at));
  }
  stream_.erase(stream_.begin(), end);
}

void RowDealer::take_over(Worker& worker) {
  Worker& richest = *std::max_element(workers_.begin(), workers_.end(), [](const Worker& a, const Worker& b) {
    return a.portion.size() < b.portion.size();
  });
  const auto first = richest.portion.begin() + static_cast<std::ptrdiff_t>(richest.portion.size() / 2);
  std::move(first, richest.portion.end(), std::back_inserter(worker.portion));
  richest.portion.erase(first, richest.portion.end());
}

std::optional<RowDealer::Row> RowDealer::next_row(Worker& worker) {
  std::deque<Row>* from = &returned_;
  if (from->empty()) {
    from = &worker.portion;
    if (from->empty()) cut_portion(worker);
    if (from->empty()) take_over(worker);
  }
  if (from->empty()) return std::nullopt;
  Row row = std::move(from->front());
  from->pop_front();
  return row;
}

const WorkItem* RowDealer::deal(int index) {
  Worker& worker = workers_[static_cast<size_t>(index)];
  LLMB_CHECK(worker.is_alive);
  if (worker.is_alone) return nullptr;
  std::optional<Row> row;
  if (!suspects_.empty() && worker.in_hand.empty()) {
    row = std::move(suspects_.front());
    suspects_.pop_front();
    worker.is_alone = true;
  } else if (!has_its_part(worker)) {
    row = next_row(worker);
  }
  if (!row) return nullptr;
  ++num_in_hand_;
  worker.cost_in_hand += row->cost;
  const int64_t ordinal = row->work.ordinal;
  return &worker.in_hand.emplace(ordinal, std::move(*row)).first->second.work;
}

std::optional<WorkItem> RowDealer::finish(int index, int64_t ordinal) {
  Worker& worker = workers_[static_cast<size_t>(index)];
  const auto at = worker.in_hand.find(ordinal);
  if (at == worker.in_hand.end()) return std::nullopt;
  WorkItem item = std::move(at->second.work);
  worker.cost_in_hand -= at->second.cost;
  cost_left_ -= at->second.cost;
  worker.in_hand.erase(at);
  worker.is_alone = false;
  --num_in_hand_;
  ++num_finished_;
  return item;
}

std::vector<WorkItem> RowDealer::lose(int index) {
  Worker& worker = workers_[static_cast<size_t>(index)];
  std::vector<WorkItem> guilty;
  std::vector<Row> rows;
  for (auto& [ordinal, row] : worker.in_hand) rows.push_back(std::move(row));
  std::sort(rows.begin(), rows.end(), [](const Row& a, const Row& b) { return a.work.ordinal < b.work.ordinal; });
  for (Row& row : rows) {
    if (row.num_deaths++ == 0) row.num_finished_before = num_finished_;
    row.num_lonely_deaths += worker.is_alone;
    if (row.num_lonely_deaths >= kGuiltyDeaths && num_finished_ > row.num_finished_before) {
      cost_left_ -= row.cost;
      guilty.push_back(std::move(row.work));
    } else if (row.num_deaths >= kSuspectDeaths) {
      suspects_.push_back(std::move(row));
    } else {
      returned_.push_back(std::move(row));
    }
  }
  // In front of the stream, where they stood.
  for (const Row& row : worker.portion) num_stream_bytes_ += waiting_bytes(row.work);
  std::move(worker.portion.rbegin(), worker.portion.rend(), std::front_inserter(stream_));
  num_in_hand_ -= worker.in_hand.size();
  worker = Worker();
  return guilty;
}

}  // namespace llmb
