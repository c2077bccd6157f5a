// Grammars in the form of llama.cpp's GBNF: name ::= "literal" | [a-z] other-rule* ( … )+ x{2,5} . # comment
#pragma once

#include <cstddef>
#include <string_view>

#include "base/status.h"
#include "grammar/grammar_constraint.h"

namespace llmb::grammar {

inline constexpr size_t kMaxGrammarBytes = size_t{256} << 10;

// Answers are the strings of the rule `root`. A rule may be recursive in any way; what is not is folded into those that
// use it. Errors name the line.
Result<Rules> read_gbnf(std::string_view text);

}  // namespace llmb::grammar
