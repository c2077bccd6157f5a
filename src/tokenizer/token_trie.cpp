#include "tokenizer/token_trie.h"

#include <utility>

namespace llmb {

void TokenTrie::add(std::string_view token, TokenId id) {
  uint32_t node = kRoot;
  for (const char c : token) {
    if (ids_.size() * 2 > slots_.size()) grow();
    Slot& slot = slots_[find_slot(key_of(node, static_cast<uint8_t>(c)))];
    if (slot.node == kNone) {
      slot = {key_of(node, static_cast<uint8_t>(c)), static_cast<uint32_t>(ids_.size())};
      ids_.push_back(-1);
    }
    node = slot.node;
  }
  ids_[node] = id;
}

void TokenTrie::grow() {
  const std::vector<Slot> old = std::move(slots_);
  slots_.assign(old.empty() ? 1024 : old.size() * 2, Slot());
  for (const Slot& s : old) {
    if (s.node != kNone) slots_[find_slot(s.key)] = s;
  }
}

}  // namespace llmb
