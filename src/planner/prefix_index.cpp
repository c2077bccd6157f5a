#include "planner/prefix_index.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "base/check.h"

namespace llmb {

namespace {

constexpr size_t kFirstCapacity = 64;
constexpr int kLevelBits = 6;

uint64_t extend(uint64_t hash, TokenId token) {
  hash = (hash + static_cast<uint32_t>(token) + 1) * 0x9E3779B97F4A7C15u;
  return hash ^ (hash >> 29);
}

}  // namespace

PrefixIndex::PrefixIndex(size_t max_bytes)
    : max_capacity_(std::bit_floor(max_bytes / (sizeof(Key) + sizeof(int32_t)))),
      keys_(std::min(kFirstCapacity, max_capacity_)),
      prompts_(keys_.size()) {
  LLMB_CHECK(max_bytes >= 1024);
}

PrefixIndex::Key PrefixIndex::key_of(uint64_t hash, int32_t num_tokens) {
  hash *= 0xff51afd7ed558ccdu;
  const Key key = (hash ^ (hash >> 32)) << kLevelBits | static_cast<Key>(std::countr_zero(static_cast<uint32_t>(num_tokens)));
  return key == 0 ? Key{1} << kLevelBits : key;
}

size_t PrefixIndex::slot_of(Key key) const {
  const size_t mask = keys_.size() - 1;
  size_t slot = static_cast<size_t>((key >> kLevelBits) * 0x9E3779B97F4A7C15u >> 20) & mask;
  while (keys_[slot] != 0 && keys_[slot] != key) slot = (slot + 1) & mask;
  return slot;
}

void PrefixIndex::rebuild(size_t capacity) {
  const std::vector<Key> keys = std::exchange(keys_, std::vector<Key>(capacity));
  const std::vector<int32_t> prompts = std::exchange(prompts_, std::vector<int32_t>(capacity));
  num_keys_ = 0;
  for (size_t i = 0; i < keys.size(); ++i) {
    if (keys[i] == 0 || static_cast<int32_t>(keys[i] & ((1 << kLevelBits) - 1)) < level_) continue;
    const size_t slot = slot_of(keys[i]);
    keys_[slot] = keys[i];
    prompts_[slot] = prompts[i];
    ++num_keys_;
  }
}

void PrefixIndex::insert(Key key, int32_t prompt) {
  if (4 * (num_keys_ + 1) > 3 * keys_.size()) {
    if (keys_.size() == max_capacity_) ++level_;
    rebuild(std::min(2 * keys_.size(), max_capacity_));
    return insert(key, prompt);
  }
  if (static_cast<int32_t>(key & ((1 << kLevelBits) - 1)) < level_) return;
  const size_t slot = slot_of(key);
  if (keys_[slot] == key) return;
  keys_[slot] = key;
  prompts_[slot] = prompt;
  ++num_keys_;
}

PrefixIndex::Shared PrefixIndex::add(std::span<const TokenId> prompt) {
  const auto num_tokens = static_cast<int32_t>(prompt.size());
  hashes_.resize(prompt.size() + 1);
  hashes_[0] = 0;
  for (size_t i = 0; i < prompt.size(); ++i) hashes_[i + 1] = extend(hashes_[i], prompt[i]);
  Shared shared;
  for (int32_t low = 0, high = num_tokens >> level_; low < high;) {
    const int32_t middle = low + (high - low + 1) / 2, length = middle << level_;
    const Key key = key_of(hashes_[length], length);
    const size_t slot = slot_of(key);
    if (keys_[slot] != key) {
      high = middle - 1;
      continue;
    }
    low = middle;
    shared = {length, prompts_[slot]};
  }
  for (int32_t length = shared.num_tokens + 1; length <= num_tokens; ++length)
    if (std::countr_zero(static_cast<uint32_t>(length)) >= level_)
      insert(key_of(hashes_[length], length), num_prompts_);
  ++num_prompts_;
  return shared;
}

}  // namespace llmb
