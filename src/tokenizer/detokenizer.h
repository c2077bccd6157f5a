// Incremental decoding of one sequence: text as soon as it is final, never half a character.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "core/types.h"
#include "tokenizer/tokenizer.h"

namespace llmb {

// One per sequence; not thread-safe; the tokenizer must outlive it.
//
// `context` is what the ids follow: a prompt. Many decoders drop the first space of a text, so a completion decoded by
// itself would lose its own.
// Invariants:
//  1. Without context, the concatenation of all push() results and finish() equals Tokenizer::decode() of all the ids.
//  2. With one, it is the rest of decode(context + ids) after the longest beginning that this shares with
//     decode(context). So a character that begins in the context and ends in the ids appears whole.
class Detokenizer {
 public:
  Detokenizer(const Tokenizer& tokenizer, bool skip_special_tokens, std::span<const TokenId> context = {});
  ~Detokenizer();
  Detokenizer(Detokenizer&&) noexcept;
  Detokenizer& operator=(Detokenizer&&) noexcept;

  std::string push(TokenId id);  // the text that became final with this token
  std::string finish();          // what was held back; the detokenizer is then as new, and without context

  bool at_start() const;             // nothing that shows has come, in the context either
  bool continues_character() const;  // the text given so far begins with a character that began in the context

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace llmb
