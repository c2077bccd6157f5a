// How few tokens a text can have, known without encoding it.
#pragma once

#include <cstddef>
#include <string_view>

#include "tokenizer/added_vocabulary.h"
#include "tokenizer/tokenizer_file.h"
#include "tokenizer/vocab.h"

namespace llmb {

// Default: nothing is known, at_least() is 0.
class TokenBound {
 public:
  // Known where every byte of a text ends in some token: the model has a token for each byte, and no step before it drops
  // text or makes it much shorter. Of `file` the settings are read.
  static TokenBound make(const TokenizerFile& file, const Vocab& vocab, const AddedVocabulary& added);

  // No encoding of `text` has fewer tokens. Never more than there are.
  size_t at_least(std::string_view text) const;

 private:
  size_t max_bytes_ = 0;  // of a text, that one token may stand for; 0: not known
  bool skips_spaces_ = false;  // added tokens take the white space around them along
};

}  // namespace llmb
