// Constraints of tokens rather than texts: vLLM's allowed_token_ids and bad_words.
#pragma once

#include <memory>
#include <vector>

#include "core/request.h"
#include "core/token_constraint.h"
#include "tokenizer/tokenizer.h"

namespace llmb {

// The tokens that each bad word consists of, as vLLM finds them: of the word, and of the word behind a space where that
// has another first token and as many.
std::vector<std::vector<TokenId>> bad_sequences(const std::vector<std::string>& bad_words, const Tokenizer& tokenizer);

// Allows a token that `form` allows (null: any text), that is among `allowed` (empty: all), and that does not end a
// bad sequence whose other tokens stand in front of it in the answer. The constraint outlives its states.
std::shared_ptr<const TokenConstraint> with_token_rules(std::shared_ptr<const TokenConstraint> form,
                                                        std::vector<TokenId> allowed,
                                                        std::vector<std::vector<TokenId>> bad, int32_t vocab_size);

}  // namespace llmb
