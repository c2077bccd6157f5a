// Regular expressions as people write them for answers and in JSON Schemas (ECMA 262), as expressions over bytes.
#pragma once

#include <functional>
#include <string_view>

#include "base/status.h"
#include "grammar/char_set.h"
#include "grammar/expr.h"

namespace llmb::grammar {

// How one character of a set is spelled in an answer: plain, or as in a JSON string.
using CharSpelling = std::function<ExprId(const CharSet&)>;

enum class RegexScope { kWhole, kAnywhere };  // the pattern matches all of a text, or some of it

// The texts that `pattern` (valid UTF-8) matches. \d and \w are ASCII; `.` is any character but \n, \r, U+2028 and
// U+2029; laziness makes no difference. Refused with the place: look-around, back-references, word boundaries, \p,
// flags.
Result<ExprId> regex_expr(std::string_view pattern, RegexScope scope, const CharSpelling& spelling, ExprArena* arena);

}  // namespace llmb::grammar
