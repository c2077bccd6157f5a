// Incremental decoding of one sequence: text as soon as it is final, never half a character.
#pragma once

#include <memory>
#include <string>

#include "core/types.h"
#include "tokenizer/tokenizer.h"

namespace llmb {

// One per sequence; not thread-safe; the tokenizer must outlive it.
// Invariant: the concatenation of all push() results and finish() equals Tokenizer::decode() of all the ids.
class Detokenizer {
 public:
  Detokenizer(const Tokenizer& tokenizer, bool skip_special_tokens);
  ~Detokenizer();
  Detokenizer(Detokenizer&&) noexcept;
  Detokenizer& operator=(Detokenizer&&) noexcept;

  std::string push(TokenId id);  // the text that became final with this token
  std::string finish();          // what was held back; the detokenizer is then as new

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace llmb
