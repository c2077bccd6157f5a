#include "cache/state_snapshots.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace llmb {

int32_t StateSnapshots::find(NodeId node, uint32_t serial) const {
  const auto at = snapshots_.find(node);
  return at == snapshots_.end() || at->second.serial != serial ? -1 : at->second.slot;
}

void StateSnapshots::use(NodeId node) {
  const auto at = snapshots_.find(node);
  LLMB_CHECK(at != snapshots_.end());
  at->second.last_use = ++num_uses_;
}

int32_t StateSnapshots::add(NodeId node, uint32_t serial, int32_t slot) {
  if (find(node, serial) >= 0) {
    use(node);
    return slot;
  }
  if (!has_room()) return slot;
  int32_t given_up = -1;
  if (const auto at = snapshots_.find(node); at != snapshots_.end()) {  // of a node that is gone
    given_up = at->second.slot;
    snapshots_.erase(at);
  } else {
    given_up = make_room();
  }
  snapshots_[node] = {serial, slot, ++num_uses_};
  return given_up;
}

bool StateSnapshots::has_room() const {
  return static_cast<int32_t>(snapshots_.size()) < max_count_ ||
         std::any_of(snapshots_.begin(), snapshots_.end(), [](const auto& s) { return s.second.num_wanted == 0; });
}

int32_t StateSnapshots::make_room() {
  if (static_cast<int32_t>(snapshots_.size()) < max_count_) return -1;
  const auto gives_way_before = [](const auto& a, const auto& b) {
    return std::pair(a.second.num_wanted > 0, a.second.last_use) < std::pair(b.second.num_wanted > 0, b.second.last_use);
  };
  const auto oldest = std::min_element(snapshots_.begin(), snapshots_.end(), gives_way_before);
  LLMB_CHECK(oldest != snapshots_.end() && oldest->second.num_wanted == 0);
  const int32_t slot = oldest->second.slot;
  snapshots_.erase(oldest);
  return slot;
}

std::vector<int32_t> StateSnapshots::slots() const {
  std::vector<int32_t> slots;
  for (const auto& [node, snapshot] : snapshots_) slots.push_back(snapshot.slot);
  return slots;
}

}  // namespace llmb
