// The groups of characters that may follow an expression in any number and order, so that a subtree of a vocabulary
// that holds no others is allowed as a whole.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include "grammar/expr.h"
#include "grammar/vocabulary.h"

namespace llmb::grammar {

// Not thread-safe. The arena is settled and outlives it; expressions have no calls.
class KeptGroups {
 public:
  explicit KeptGroups(ExprArena* arena);

  // Every text of the groups' characters leads from the expression to itself.
  bool stays(ExprId expr, CharGroups groups);
  // True only where every text of the groups' characters leads to some expression but kNothing.
  bool lives(ExprId expr, CharGroups groups);

  size_t num_bytes() const { return num_bytes_ + index_.size() * sizeof(int32_t); }
  // The arena has forgotten its expressions.
  void forget();

 private:
  struct Lead {
    ExprId to = kNothing;
    CharGroups groups = 0;  // of which some character leads there
  };
  struct Known {
    std::vector<Lead> leads;
    CharGroups staying = 0, living = 0;
    bool has_wide = false;                          // leads of wide characters, too
    bool knows_living = false, knows_wide = false;  // which groups live, of wide ones
  };

  Known& known(ExprId expr, bool with_wide);
  void find_leads(ExprId expr, int first_byte, int last_byte, Known* known);
  void add_leads(ExprId from, Utf8Rest rest, CharGroups group, std::vector<Lead>* leads);
  void add_living(ExprId expr, CharGroups groups, Known* known);
  bool is_closed(ExprId expr, CharGroups groups);

  ExprArena& arena_;
  int32_t class_of_[256];       // of bytes
  std::vector<int32_t> index_;  // [expr]  into known_, or -1
  std::deque<Known> known_;
  size_t num_bytes_ = 0;
};

}  // namespace llmb::grammar
