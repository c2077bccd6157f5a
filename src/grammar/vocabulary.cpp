#include "grammar/vocabulary.h"

#include <algorithm>
#include <numeric>

namespace llmb::grammar {

Vocabulary::Vocabulary(int32_t vocab_size, const std::function<std::string(TokenId)>& bytes_of,
                       std::vector<TokenId> end_tokens)
    : texts_(static_cast<size_t>(vocab_size)), end_tokens_(std::move(end_tokens)) {
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
  deepest_.resize(nodes_.size());
  for (size_t node = nodes_.size(); node-- > 0;) {
    deepest_[node] = nodes_[node].depth;
    for (auto child = static_cast<int32_t>(node) + 1; child < nodes_[node].end; child = nodes_[child].end)
      deepest_[node] = std::max(deepest_[node], deepest_[child]);
  }
}

bool Vocabulary::is_end_token(TokenId token) const {
  return std::find(end_tokens_.begin(), end_tokens_.end(), token) != end_tokens_.end();
}

}  // namespace llmb::grammar
