#include "grammar/answer_forms.h"

#include "base/utf8.h"
#include "grammar/regex_expr.h"

namespace llmb::grammar {

namespace {

constexpr size_t kMaxChoiceBytes = size_t{4} << 20, kMaxPatternBytes = size_t{64} << 10;

}  // namespace

Result<Rules> choice_rules(const std::vector<std::string>& choices) {
  size_t num_bytes = 0;
  for (const std::string& choice : choices) {
    if (choice.empty()) return invalid_argument("a choice is empty");
    num_bytes += choice.size();
  }
  if (num_bytes > kMaxChoiceBytes) return resource_exhausted("the choices have more than 4 MiB");
  return within_budget([&] {
    Rules rules;
    rules.bodies = {rules.arena.one_of({choices.begin(), choices.end()})};
    return rules;
  });
}

Result<Rules> regex_rules(std::string_view pattern) {
  if (pattern.size() > kMaxPatternBytes) return resource_exhausted("the regular expression has more than 64 KiB");
  if (!is_valid_utf8(pattern)) return invalid_argument("regular expression: it is not UTF-8");
  return within_budget([&]() -> Result<Rules> {
    Rules rules;
    ExprArena* arena = &rules.arena;
    const auto spelling = [arena](const CharSet& set) { return utf8_char(set, arena); };
    LLMB_ASSIGN_OR_RETURN(const ExprId e, regex_expr(pattern, RegexScope::kWhole, spelling, arena));
    rules.bodies = {e};
    return rules;
  });
}

}  // namespace llmb::grammar
