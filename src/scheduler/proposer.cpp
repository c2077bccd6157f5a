#include "scheduler/proposer.h"

#include <algorithm>

namespace llmb {

bool Drafts::is_valid() const {
  if (!parents.empty() && parents.size() != tokens.size()) return false;
  for (int32_t draft = 0; draft < size(); ++draft)
    if (parent(draft) < -1 || parent(draft) >= draft) return false;
  return true;
}

void Drafts::keep_first(int32_t count) {
  tokens.resize(std::min<size_t>(tokens.size(), count));
  parents.resize(std::min<size_t>(parents.size(), count));
}

void Drafts::keep_chain() {
  int32_t count = 0;
  while (count < size() && parent(count) == count - 1) ++count;
  keep_first(count);
  parents.clear();
}

}  // namespace llmb
