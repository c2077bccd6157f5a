// The forms that an answer may be asked to have, as rules. All texts are UTF-8. Errors say where in the text, and are
// unsupported for what cannot be enforced exactly.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "grammar/grammar_constraint.h"

namespace llmb::grammar {

// One of the texts. REQUIRES: there are some.
Result<Rules> choice_rules(const std::vector<std::string>& choices);

// A text that all of the pattern matches (grammar/regex_expr.h).
Result<Rules> regex_rules(std::string_view pattern);

}  // namespace llmb::grammar
