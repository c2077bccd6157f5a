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
  bool stays(ExprId expr, CharGroups groups) {
    const Verdicts* v = find(expr);
    if (v != nullptr && (groups & v->not_staying) != 0) return false;
    return (v != nullptr && (groups & ~v->staying) == 0) || find_staying(expr, groups);
  }
  // True only where every text of the groups' characters leads to some expression but kNothing.
  bool lives(ExprId expr, CharGroups groups) {
    const Verdicts* v = find(expr);
    if (v != nullptr && (groups & v->not_living) != 0) return false;
    return (v != nullptr && (groups & ~v->living) == 0) || find_living(expr, groups);
  }
  // Something was found out about the expression.
  bool knows(ExprId expr) const { return find(expr) != nullptr; }

  size_t num_bytes() const { return num_bytes_ + index_.size() * sizeof(int32_t); }
  // The arena has forgotten its expressions.
  void forget();

 private:
  struct Lead {
    ExprId to = kNothing;
    CharGroups groups = 0;  // of which some character leads there
  };
  // A group that is in neither of a pair is not decided yet.
  struct Verdicts {
    CharGroups staying = 0, living = 0;
    CharGroups not_staying = kNoChar, not_living = kNoChar;
  };
  struct Known {
    std::vector<Lead> leads;
    bool has_wide = false;                          // leads of wide characters, too
    bool knows_living = false, knows_wide = false;  // which groups live, of wide ones
  };

  static constexpr CharGroups kNoChar = CharGroups{1} << kNoCharGroup;

  const Verdicts* find(ExprId expr) const {
    const int32_t at = static_cast<size_t>(expr) < index_.size() ? index_[expr] : -1;
    return at < 0 ? nullptr : &verdicts_[at];
  }
  bool find_staying(ExprId expr, CharGroups groups);
  bool find_living(ExprId expr, CharGroups groups);
  Known& known(ExprId expr, bool with_wide);
  // Where all that completes a character leads.
  struct Ends {
    ExprId from;
    Utf8Rest rest;
    std::vector<ExprId> to;
  };

  static void add_lead(ExprId to, CharGroups groups, std::vector<Lead>* leads);
  void find_leads(ExprId expr);
  void find_wide_leads(ExprId expr);
  void note_leads(ExprId expr, CharGroups groups);
  const std::vector<ExprId>& ends_of(ExprId from, Utf8Rest rest, std::deque<Ends>* known);
  void add_living(ExprId expr, CharGroups groups);
  bool is_closed(ExprId expr, CharGroups groups);

  ExprArena& arena_;
  struct ClassGroups {
    int32_t byte_class = 0;
    CharGroups groups = 0;  // of its characters of one byte
  };

  int32_t class_of_[256];  // of bytes
  std::vector<ClassGroups> class_groups_;
  std::vector<uint8_t> runs_;   // where another class begins, of the bytes that go on a character
  std::vector<int32_t> index_;  // [expr]  into known_ and verdicts_, or -1
  std::deque<Known> known_;
  std::vector<Verdicts> verdicts_;
  size_t num_bytes_ = 0;
};

}  // namespace llmb::grammar
