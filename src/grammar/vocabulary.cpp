#include "grammar/vocabulary.h"

#include <algorithm>
#include <numeric>
#include <string_view>

namespace llmb::grammar {

int32_t byte_group(uint8_t byte) {
  constexpr std::string_view kMarks = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~ \n\t";
  if (const size_t mark = kMarks.find(static_cast<char>(byte)); mark != std::string_view::npos)
    return 16 + static_cast<int32_t>(mark);
  const auto between = [byte](char first, char last) {
    return byte >= static_cast<uint8_t>(first) && byte <= static_cast<uint8_t>(last);
  };
  if (between('a', 'f')) return 0;
  if (between('g', 'z')) return 1;
  if (between('A', 'F')) return 2;
  if (between('G', 'Z')) return 3;
  if (between('0', '9')) return 4;
  if (byte < 0x80) return 5;
  return byte < 0xC0 ? 6 : 7;
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
  deepest_.resize(nodes_.size());
  groups_below_.resize(nodes_.size());
  for (size_t node = nodes_.size(); node-- > 0;) {
    deepest_[node] = nodes_[node].depth;
    for (auto child = static_cast<int32_t>(node) + 1; child < nodes_[node].end; child = nodes_[child].end) {
      deepest_[node] = std::max(deepest_[node], deepest_[child]);
      groups_below_[node] |= groups_below_[child] | ByteGroups{1} << byte_group(nodes_[child].byte);
    }
  }
}

bool Vocabulary::is_end_token(TokenId token) const {
  return std::find(end_tokens_.begin(), end_tokens_.end(), token) != end_tokens_.end();
}

}  // namespace llmb::grammar
