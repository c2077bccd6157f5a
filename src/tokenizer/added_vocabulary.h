// Tokens that are found in the text as they are, before anything splits it: special tokens and other added tokens.
// Immutable once built; const methods are thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/status.h"
#include "core/types.h"
#include "tokenizer/normalizer.h"
#include "tokenizer/tokenizer_file.h"

namespace llmb {

// A stretch of text: an added token, or (token < 0) text to be tokenised.
struct TextSegment {
  size_t begin;
  size_t end;
  TokenId token;
};

// Finds the leftmost of several strings, the longest where several begin there.
class StringMatcher {
 public:
  void add(std::string_view text, TokenId id);  // not empty; the last of equal strings stays
  bool empty() const { return nodes_.size() == 1; }
  // The match that begins first at or after `from`; false where there is none.
  bool find(std::string_view text, size_t from, TextSegment* match) const;

 private:
  struct Node {
    TokenId id = -1;
    std::vector<std::pair<uint8_t, uint32_t>> children;  // sorted by byte
  };
  std::vector<Node> nodes_ = std::vector<Node>(1);
  bool starts_[256] = {};  // bytes that begin a string
};

class AddedVocabulary {
 public:
  // Adds a token as Hugging Face does: with the id of the vocabulary's entry where there is one, else the next free id,
  // which has to be the declared one; a token that is there already takes the new flags.
  Status add(const AddedToken& token, const Vocab& vocab);

  // Builds the search structures. REQUIRES: no add() afterwards.
  void finish(const Normalizer* normalizer);

  // The tokens that are looked for before (normalized == false) or after the normalizer ran.
  void split(std::string_view text, bool normalized, std::vector<TextSegment>* segments) const;
  bool has_normalized() const { return !after_.empty(); }

  const AddedToken* find(TokenId id) const;  // nullptr where it is not an added token
  std::optional<TokenId> find_id(std::string_view content) const;
  TokenId end_id() const { return end_id_; }  // highest id + 1, 0 where empty

 private:
  bool adjust(std::string_view text, size_t done, TextSegment* match) const;

  std::map<TokenId, AddedToken> by_id_;
  std::unordered_map<std::string, TokenId> by_content_;
  TokenId end_id_ = 0;
  StringMatcher before_, after_;
};

}  // namespace llmb
