// Any bytes as a grammar: refused with a reason, or a form whose every unfinished answer can go on.
#include "grammar/gbnf.h"
#include "tests/fuzz/form_checks.h"
#include "tests/fuzz/fuzz_target.h"

LLMB_FUZZ_TARGET(answer_gbnf) { check_form(llmb::grammar::read_gbnf(input)); }
