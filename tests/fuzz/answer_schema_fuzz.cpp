// Any bytes as a JSON Schema: refused with a reason, or a form whose every unfinished answer can go on.
#include "grammar/json_schema.h"
#include "tests/fuzz/form_checks.h"
#include "tests/fuzz/fuzz_target.h"

LLMB_FUZZ_TARGET(answer_schema) {
  const bool is_strict = input.starts_with('!');
  if (is_strict) input.remove_prefix(1);
  check_form(llmb::grammar::json_schema_rules(input, is_strict));
}
