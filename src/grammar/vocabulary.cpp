#include "grammar/vocabulary.h"

#include <algorithm>
#include <numeric>
#include <string_view>

namespace llmb::grammar {

int32_t char_group(uint8_t first_byte) {
  constexpr std::string_view kMarks = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~ \n\t";
  static_assert(16 + kMarks.size() <= kFirstWideGroup);
  if (const size_t mark = kMarks.find(static_cast<char>(first_byte)); mark != std::string_view::npos)
    return 16 + static_cast<int32_t>(mark);
  const auto between = [first_byte](char first, char last) {
    return first_byte >= static_cast<uint8_t>(first) && first_byte <= static_cast<uint8_t>(last);
  };
  if (between('a', 'f')) return 0;
  if (between('g', 'z')) return 1;
  if (between('A', 'F')) return 2;
  if (between('G', 'Z')) return 3;
  if (between('0', '9')) return 4;
  if (first_byte < 0x80) return 5;
  if (first_byte < 0xC2 || first_byte > 0xF4) return kNoCharGroup;
  // The first bytes of Unicode's other spaces stand alone: patterns name these.
  constexpr uint8_t kLast[kNumWideGroups] = {0xC2, 0xDF, 0xE0, 0xE1, 0xE2, 0xE3, 0xEE, 0xEF, 0xF4};
  return kFirstWideGroup + static_cast<int32_t>(std::lower_bound(kLast, kLast + kNumWideGroups, first_byte) - kLast);
}

Utf8Rest rest_behind(uint8_t byte) {
  if (byte < 0xC2 || byte > 0xF4) return {};
  if (byte < 0xE0) return {0x80, 0xBF, 1};
  const uint8_t first = byte == 0xE0 ? 0xA0 : byte == 0xF0 ? 0x90 : 0x80;
  const uint8_t last = byte == 0xED ? 0x9F : byte == 0xF4 ? 0x8F : 0xBF;
  return {first, last, byte < 0xF0 ? 2 : 3};
}

Vocabulary::Vocabulary(int32_t vocab_size, const std::function<std::string(TokenId)>& bytes_of,
                       std::vector<TokenId> end_tokens, size_t max_walk_bytes)
    : texts_(static_cast<size_t>(vocab_size)),
      end_tokens_(std::move(end_tokens)),
      walk_memory_(std::make_unique<WalkMemory>(max_walk_bytes)) {
  for (TokenId token = 0; token < vocab_size; ++token)
    if (!is_end_token(token)) texts_[token] = bytes_of(token);
  std::vector<TokenId> order(static_cast<size_t>(vocab_size));
  std::iota(order.begin(), order.end(), 0);
  std::erase_if(order, [this](TokenId token) { return texts_[token].empty(); });
  std::stable_sort(order.begin(), order.end(), [this](TokenId a, TokenId b) { return texts_[a] < texts_[b]; });

  nodes_.push_back({});
  std::vector<int32_t> path = {0};  // nodes that the last text went through
  const std::string* last = nullptr;
  for (const TokenId token : order) {
    const std::string& text = texts_[token];
    size_t common = 0;
    while (last != nullptr && common < last->size() && common < text.size() && text[common] == (*last)[common])
      ++common;
    for (; path.size() > common + 1; path.pop_back()) nodes_[path.back()].end = static_cast<int32_t>(nodes_.size());
    for (size_t i = common; i < text.size(); ++i) {
      path.push_back(static_cast<int32_t>(nodes_.size()));
      nodes_.push_back(
          {0, static_cast<int32_t>(i) + 1, static_cast<int32_t>(tokens_.size()), static_cast<uint8_t>(text[i])});
    }
    tokens_.push_back(token);
    max_depth_ = std::max(max_depth_, static_cast<int32_t>(text.size()));
    last = &text;
  }
  for (const int32_t node : path) nodes_[node].end = static_cast<int32_t>(nodes_.size());
  up_to_.assign(kMaxShortBytes + 1, Mask(static_cast<size_t>(num_words()), 0));
  for (const TokenId token : tokens_)
    if (const size_t size = texts_[token].size(); size <= kMaxShortBytes) up_to_[size][token / 32] |= 1u << token % 32;
  for (size_t size = 1; size < up_to_.size(); ++size)
    for (size_t i = 0; i < up_to_[size].size(); ++i) up_to_[size][i] |= up_to_[size - 1][i];
  find_groups();
}

void Vocabulary::find_groups() {
  deepest_.resize(nodes_.size());
  groups_below_.resize(nodes_.size());
  ends_character_.resize(nodes_.size());
  for (size_t i = nodes_.size(); i-- > 0;) {
    const auto node = static_cast<int32_t>(i);
    deepest_[node] = nodes_[node].depth;
    ends_character_[node] = ends_character_[node] || nodes_[node].byte < 0x80;
    groups_below_[node] = groups_inside(node, {});
    for (int32_t child = node + 1; child < nodes_[node].end; child = nodes_[child].end)
      deepest_[node] = std::max(deepest_[node], deepest_[child]);
  }
}

// The groups of the characters below the node, behind the rest of one. REQUIRES: they are known of the nodes below it
CharGroups Vocabulary::groups_inside(int32_t node, Utf8Rest rest) {
  CharGroups groups = 0;
  for (int32_t child = node + 1; child < nodes_[node].end; child = nodes_[child].end) {
    const uint8_t byte = nodes_[child].byte;
    Utf8Rest behind;
    if (rest.num_bytes == 0) {
      groups |= CharGroups{1} << char_group(byte);
      behind = rest_behind(byte);
    } else if (byte >= rest.first && byte <= rest.last) {
      behind.num_bytes = rest.num_bytes - 1;
      if (behind.num_bytes == 0) ends_character_[child] = true;
    } else {
      groups |= CharGroups{1} << kNoCharGroup;
      continue;
    }
    groups |= behind.num_bytes == 0 ? groups_below_[child] : groups_inside(child, behind);
  }
  return groups;
}

bool Vocabulary::is_end_token(TokenId token) const {
  return std::find(end_tokens_.begin(), end_tokens_.end(), token) != end_tokens_.end();
}

}  // namespace llmb::grammar
