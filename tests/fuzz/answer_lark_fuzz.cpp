// Any bytes as a grammar in Lark's manner: refused with a reason, or a form whose every unfinished answer can go on.
#include "grammar/lark.h"
#include "tests/fuzz/form_checks.h"
#include "tests/fuzz/fuzz_target.h"

LLMB_FUZZ_TARGET(answer_lark) {
  (void)llmb::grammar::is_lark(input);
  check_form(llmb::grammar::read_lark(input));
}
