#include "scheduler/proposer.h"

#include <algorithm>

namespace llmb {

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
