// A grammar over a vocabulary: the TokenConstraint of requests.
#pragma once

#include <memory>
#include <vector>

#include "base/status.h"
#include "core/token_constraint.h"
#include "grammar/expr.h"
#include "grammar/vocabulary.h"

namespace llmb::grammar {

// Rules as expressions. Answers are the strings of rule 0.
struct Rules {
  ExprArena arena;
  std::vector<ExprId> bodies;  // [rule]
};

// Calls make(), which returns Rules or Result<Rules>; over_budget() where it takes too much.
Result<Rules> within_budget(const auto& make) {
  try {
    return make();
  } catch (const OverBudget&) {
    return over_budget();
  }
}

// invalid_argument where no string matches; resource_exhausted as ExprArena::settle().
Result<std::shared_ptr<const TokenConstraint>> make_constraint(Rules rules,
                                                               std::shared_ptr<const Vocabulary> vocabulary);

}  // namespace llmb::grammar
