// A vocabulary as a trie of bytes. Immutable once made, and thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/types.h"
#include "grammar/shared_tokens.h"

namespace llmb::grammar {

// Nodes in depth-first order, so that a node's subtree is the nodes [node, end). Node 0 is the root.
struct TrieNode {
  int32_t end = 0;
  int32_t depth = 0;         // bytes
  int32_t tokens_begin = 0;  // of the tokens that are spelled by the way to it
  uint8_t byte = 0;
};

class Vocabulary {
 public:
  // bytes_of(token): what the token stands for; "": it is never part of a text (special tokens). `end_tokens` end an
  // answer.
  Vocabulary(int32_t vocab_size, const std::function<std::string(TokenId)>& bytes_of, std::vector<TokenId> end_tokens);

  int32_t size() const { return static_cast<int32_t>(texts_.size()); }
  int32_t num_words() const { return (size() + 31) / 32; }  // of a mask
  const std::string& text(TokenId token) const { return texts_[token]; }
  const std::vector<TokenId>& end_tokens() const { return end_tokens_; }
  bool is_end_token(TokenId token) const;

  const std::vector<TrieNode>& nodes() const { return nodes_; }
  // Tokens of the node are tokens()[node.tokens_begin, the next node's tokens_begin).
  const std::vector<TokenId>& tokens() const { return tokens_; }
  int32_t tokens_end(int32_t node) const {
    return node + 1 < static_cast<int32_t>(nodes_.size()) ? nodes_[node + 1].tokens_begin
                                                          : static_cast<int32_t>(tokens_.size());
  }
  bool has_children(int32_t node) const { return nodes_[node].end > node + 1; }
  int32_t deepest(int32_t node) const { return deepest_[node]; }  // depth below the node, or its own
  int32_t max_depth() const { return max_depth_; }
  // The only part that changes.
  SharedTokens& shared_tokens() const { return *shared_tokens_; }

 private:
  std::vector<std::string> texts_;
  std::vector<TokenId> end_tokens_;
  std::vector<TrieNode> nodes_;
  std::vector<TokenId> tokens_;
  std::vector<int32_t> deepest_;  // [nodes]
  int32_t max_depth_ = 0;
  const std::unique_ptr<SharedTokens> shared_tokens_ = std::make_unique<SharedTokens>();
};

}  // namespace llmb::grammar
