// Calls of tools that an answer must be, as rules.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "grammar/grammar_constraint.h"

namespace llmb::grammar {

// `before`, a JSON object that satisfies the schema (json_schema.h), `after`. Both texts may hold any bytes.
struct CallShape {
  std::string_view before, schema, after;
  bool is_strict = false;
};

// One of the calls, or with has_several one or more of them with `between` in the middle. quote: of the notation that
// arguments are written in (json_spelling.h). The same errors as json_schema_rules(), behind the number of the call that
// is at fault.
Result<Rules> call_rules(const std::vector<CallShape>& calls, std::string_view between, bool has_several,
                         std::string_view quote = "");

}  // namespace llmb::grammar
