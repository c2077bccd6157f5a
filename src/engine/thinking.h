// Bounds what an answer thinks before it answers: at most so many tokens, then the end tag; and a form begins behind it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/token_constraint.h"
#include "grammar/vocabulary.h"
#include "tokenizer/tokenizer.h"

namespace llmb {

struct ThinkingRules {
  std::string begin, end;        // texts of the tags
  std::vector<TokenId> opening;  // that an answer with a form may begin with instead, in place of `begin`
  std::vector<TokenId> closing;  // what is put where the budget is used up
  std::vector<TokenId> heading;  // what is put behind an end before a form begins
  bool starts_inside = false;    // the prompt ends in reasoning
  bool must_open = false;        // an answer with a form begins with `opening`
  bool may_return = false;       // reasoning may begin again; the budget is of all of it
  std::optional<int32_t> budget;  // tokens between the tags, at most
};

// `form` (null: any text) applies behind the reasoning, whose tokens it does not see. Tags are found in the text,
// however it is cut into tokens. With a form no answer ends within the reasoning, and no token is allowed that ends the
// reasoning and goes on behind it. REQUIRES: the vocabulary is that of the form (engine/constraint_vocabulary.h).
std::shared_ptr<const TokenConstraint> with_thinking(std::shared_ptr<const TokenConstraint> form, ThinkingRules rules,
                                                     std::shared_ptr<const grammar::Vocabulary> vocabulary);

}  // namespace llmb
