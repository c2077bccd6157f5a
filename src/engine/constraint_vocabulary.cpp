#include "engine/constraint_vocabulary.h"

#include "core/request.h"
#include "grammar/json_schema.h"

namespace llmb {

std::shared_ptr<const grammar::Vocabulary> constraint_vocabulary(const Tokenizer& tokenizer, int32_t vocab_size,
                                                                 std::vector<TokenId> eos_token_ids) {
  const auto bytes_of = [&tokenizer](TokenId token) {
    if (token >= tokenizer.vocab_size()) return std::string();
    return tokenizer.is_special(token) ? kSpecialMark + tokenizer.token_piece(token) : tokenizer.token_bytes(token);
  };
  // Some configurations name tokens that the model does not have.
  std::erase_if(eos_token_ids, [vocab_size](TokenId token) { return token < 0 || token >= vocab_size; });
  auto vocabulary = std::make_shared<const grammar::Vocabulary>(vocab_size, bytes_of, std::move(eos_token_ids));
  grammar::look_up_strings(vocabulary);
  return vocabulary;
}

}  // namespace llmb
