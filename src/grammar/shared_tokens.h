// The tokens that an expression allows, and what grammars over one vocabulary share of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/types.h"

namespace llmb::grammar {

using Mask = std::vector<uint32_t>;  // [num_words]

// Tokens, as bits or one by one where they are few; and the nodes of the vocabulary behind whose bytes the expression
// may end, where tokens go on.
struct ExprTokens {
  Mask bits;
  std::vector<TokenId> few;
  std::vector<int32_t> ends;
  size_t num_bytes() const { return bits.size() * 4 + few.size() * 4 + ends.size() * 4 + 64; }
};

// By what is written of an expression (ExprArena::written), so that the text of a JSON string, say, is looked up in the
// vocabulary once for all schemas. Thread-safe. Bounded: where it is full nothing more is kept.
class SharedTokens {
 public:
  std::shared_ptr<const ExprTokens> find(const std::string& written) const;
  void add(const std::string& written, std::shared_ptr<const ExprTokens> tokens);
  size_t size() const;

 private:
  mutable std::mutex mutex_;
  std::unordered_map<std::string, std::shared_ptr<const ExprTokens>> tokens_;
  size_t num_bytes_ = 0;
};

}  // namespace llmb::grammar
