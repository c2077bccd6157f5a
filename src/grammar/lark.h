// Grammars in the manner of Lark's EBNF: rules and terminals, name: "text" | /pattern/ | other ( … )* [ … ] x~2..5
#pragma once

#include <string_view>

#include "base/status.h"
#include "grammar/grammar_constraint.h"

namespace llmb::grammar {

// The text begins as such a grammar does, and not as GBNF.
bool is_lark(std::string_view text);

// Answers are the strings of the rule `start`. Terminals are expressions like any other: no lexer prefers the longest
// one. `%ignore` allows its terminals before the first terminal of a rule and behind each. `%import common.X` knows the
// usual ones. Priorities, aliases and the marks ? and ! in front of rules say nothing about texts. Refused are
// templates, %declare, %extend, %override, other imports, and flags of patterns but i of strings. Errors name the line.
Result<Rules> read_lark(std::string_view text);

}  // namespace llmb::grammar
