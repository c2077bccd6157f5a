#include "grammar/walk_memory.h"

#include <algorithm>

namespace llmb::grammar {

void WalkMemory::add(Forgetful* who) {
  const std::lock_guard lock(mutex_);
  entries_.push_front({who, 0});
}

void WalkMemory::remove(Forgetful* who) {
  const std::lock_guard lock(mutex_);
  const auto at =
      std::find_if(entries_.begin(), entries_.end(), [who](const Entry& entry) { return entry.who == who; });
  num_bytes_ -= at->num_bytes;
  entries_.erase(at);
}

bool WalkMemory::grew(Forgetful* who, size_t num_bytes) {
  const std::lock_guard lock(mutex_);
  const auto at =
      std::find_if(entries_.begin(), entries_.end(), [who](const Entry& entry) { return entry.who == who; });
  entries_.splice(entries_.begin(), entries_, at);
  num_bytes_ += num_bytes - at->num_bytes;
  at->num_bytes = num_bytes;
  for (auto entry = entries_.rbegin(); num_bytes_ > max_bytes_ && entry->who != who; ++entry) {
    if (entry->num_bytes == 0 || !entry->who->try_forget()) continue;
    num_bytes_ -= entry->num_bytes;
    entry->num_bytes = 0;
  }
  if (num_bytes_ <= max_bytes_) return false;
  num_bytes_ -= at->num_bytes;
  at->num_bytes = 0;
  return true;
}

size_t WalkMemory::num_bytes() const {
  const std::lock_guard lock(mutex_);
  return num_bytes_;
}

}  // namespace llmb::grammar
