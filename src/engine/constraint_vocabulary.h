// A tokenizer's tokens as constraints of answers see them.
#pragma once

#include <memory>
#include <vector>

#include "grammar/vocabulary.h"
#include "tokenizer/tokenizer.h"

namespace llmb {

// vocab_size: of the model, which may have more tokens than the tokenizer. Special tokens are
// their text behind a kSpecialMark, a byte that no text has.
std::shared_ptr<const grammar::Vocabulary> constraint_vocabulary(const Tokenizer& tokenizer, int32_t vocab_size,
                                                                 std::vector<TokenId> eos_token_ids);

}  // namespace llmb
