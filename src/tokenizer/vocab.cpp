#include "tokenizer/vocab.h"

#include <cstring>

#include "base/log.h"
#include "text/unicode.h"

namespace llmb {

uint64_t hash_bytes(std::string_view bytes) {
  constexpr uint64_t kMultiplier = 0x9E3779B97F4A7C15u;
  uint64_t h = bytes.size() * kMultiplier;
  const char* p = bytes.data();
  size_t n = bytes.size();
  for (; n >= 8; p += 8, n -= 8) {
    uint64_t word;
    std::memcpy(&word, p, 8);
    h = (h ^ word) * kMultiplier;
    h ^= h >> 29;
  }
  uint64_t tail = 0;
  std::memcpy(&tail, p, n);
  h = (h ^ tail) * kMultiplier;
  return h ^ h >> 32;
}

Status Vocab::add(std::string_view token, int64_t id) {
  const auto quoted = [&] { return "\"" + escape_control(to_valid_utf8(token.substr(0, 80))) + "\""; };
  if (id < 0 || id >= static_cast<int64_t>(kMaxVocabEntries)) {
    return data_loss("vocabulary entry " + quoted() + " has id " + std::to_string(id) + ", expected 0 to " +
                     std::to_string(kMaxVocabEntries - 1));
  }
  if (token.size() > kMaxTokenBytes) {
    return data_loss("vocabulary entry " + quoted() + " has " + std::to_string(token.size()) + " bytes, at most " +
                     std::to_string(kMaxTokenBytes) + " are allowed");
  }
  if (!is_valid_utf8(token)) return data_loss("vocabulary entry " + quoted() + " is not valid UTF-8");
  if (num_entries_ * 2 >= slots_.size()) grow();
  const size_t slot = slot_of(token);
  if (slots_[slot] >= 0) return data_loss("vocabulary entry " + quoted() + " is given twice");
  if (id >= size()) entries_.resize(static_cast<size_t>(id) + 1);
  if (contains(static_cast<TokenId>(id))) {
    return data_loss("vocabulary entry " + quoted() + " has id " + std::to_string(id) + ", which is taken already");
  }
  entries_[static_cast<size_t>(id)] = {static_cast<uint32_t>(bytes_.size()), static_cast<uint32_t>(token.size())};
  bytes_ += token;
  slots_[slot] = static_cast<TokenId>(id);
  ++num_entries_;
  if (bytes_.size() >= (size_t{1} << 31)) return resource_exhausted("the vocabulary's strings exceed 2 GiB");
  return {};
}

std::optional<TokenId> Vocab::find(std::string_view token) const {
  if (slots_.empty()) return std::nullopt;
  const TokenId id = slots_[slot_of(token)];
  return id < 0 ? std::nullopt : std::optional<TokenId>(id);
}

std::string_view Vocab::text(TokenId id) const {
  if (!contains(id)) return {};
  return std::string_view(bytes_).substr(entries_[id].offset, entries_[id].length);
}

size_t Vocab::slot_of(std::string_view token) const {
  const size_t mask = slots_.size() - 1;
  size_t slot = hash_bytes(token) & mask;
  while (slots_[slot] >= 0 && text(slots_[slot]) != token) slot = (slot + 1) & mask;
  return slot;
}

void Vocab::grow() {
  const std::vector<TokenId> old = std::move(slots_);
  slots_.assign(old.empty() ? 1024 : old.size() * 2, -1);
  for (const TokenId id : old) {
    if (id >= 0) slots_[slot_of(text(id))] = id;
  }
}

}  // namespace llmb
