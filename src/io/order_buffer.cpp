#include "io/order_buffer.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace llmb {

void OrderBuffer::expect(int64_t index) {
  LLMB_CHECK(has_room());
  LLMB_CHECK(index > last_index_);
  last_index_ = index;
  slots_.push_back({index, std::nullopt});
}

void OrderBuffer::put(int64_t index, std::string record, std::string& out) {
  const auto slot = std::lower_bound(slots_.begin(), slots_.end(), index,
                                     [](const Slot& s, int64_t wanted) { return s.index < wanted; });
  LLMB_CHECK(slot != slots_.end() && slot->index == index && !slot->record);
  slot->record = std::move(record);
  for (; !slots_.empty() && slots_.front().record; slots_.pop_front()) out += *slots_.front().record;
}

}  // namespace llmb
