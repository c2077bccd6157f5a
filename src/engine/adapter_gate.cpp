#include "engine/adapter_gate.h"

#include <limits>

#include "core/adapter_names.h"

namespace llmb {

AdapterGate::~AdapterGate() {
  clear();
  on_step(std::numeric_limits<int64_t>::max());
}

bool AdapterGate::has_adapter(const Request& request) const {
  return store_ != nullptr && request.adapter != kNoAdapter;
}

void AdapterGate::put(WorkItem item) {
  if (has_adapter(*item.request)) store_->want(item.request->adapter);
  items_.push_back(std::move(item));
}

std::optional<WorkItem> AdapterGate::take() {
  int32_t absent = kNoAdapter;  // many in a row wait for the same
  for (auto it = items_.begin(); it != items_.end(); ++it) {
    const int32_t adapter = it->request->adapter;
    if (has_adapter(*it->request)) {
      if (adapter == absent) continue;
      if (store_->state(adapter) == AdapterState::kOnItsWay) {
        absent = adapter;
        continue;
      }
    }
    WorkItem item = std::move(*it);
    items_.erase(it);
    return item;
  }
  return std::nullopt;
}

Status AdapterGate::status_of(const WorkItem& item) const {
  if (!has_adapter(*item.request)) return {};
  const int32_t adapter = item.request->adapter;
  return store_->state(adapter) == AdapterState::kFailed ? store_->failure(adapter) : Status();
}

void AdapterGate::end(const Request& request, int64_t num_submitted) {
  if (has_adapter(request)) ended_.emplace_back(num_submitted, request.adapter);
}

void AdapterGate::on_step(int64_t num_finished) {
  for (; !ended_.empty() && ended_.front().first <= num_finished; ended_.pop_front())
    store_->release(ended_.front().second);
}

int64_t AdapterGate::clear() {
  const int64_t count = num_held();
  for (const WorkItem& item : items_)
    if (has_adapter(*item.request)) store_->release(item.request->adapter);
  items_.clear();
  return count;
}

}  // namespace llmb
