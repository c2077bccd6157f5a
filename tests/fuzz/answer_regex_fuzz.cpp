// Any bytes as a regular expression: refused with a reason, or a form whose every unfinished answer can go on.
#include "grammar/answer_forms.h"
#include "tests/fuzz/form_checks.h"
#include "tests/fuzz/fuzz_target.h"

LLMB_FUZZ_TARGET(answer_regex) { check_form(llmb::grammar::regex_rules(input)); }
