// Makes rules of schemas: one rule for each conjunction of terms that some value must satisfy.
#pragma once

#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "grammar/grammar_constraint.h"
#include "grammar/json_spelling.h"
#include "grammar/schema_branch.h"

namespace llmb::grammar {

// A value of the goal between two texts.
struct FramedGoal {
  std::string_view before;
  Goal goal;
  std::string_view after;
};

class SchemaRules {
 public:
  explicit SchemaRules(const SchemaDocument& document)
      : document_(document), spelling_(&rules_.arena, document.quote) {}

  // `work` was done before. Throws SchemaError and OverBudget.
  Rules compile(const Goal& goal, int64_t work);
  // One of the framed values; has_several: one or more, with `between` in the middle. Throws the same.
  Rules compile(const std::vector<FramedGoal>& goals, std::string_view between, bool has_several, int64_t work);

 private:
  struct Member {
    std::string name;
    Goal goal;
    bool is_required = false;
  };
  struct Members {
    std::vector<Member> named;
    ExprId others = kNothing;  // a pair of another name and its value
    int64_t num_required = 0;
  };

  RuleId rule_of(Goal goal);
  ExprId value_of(Goal goal) { return rules_.arena.call(rule_of(std::move(goal))); }
  ExprId shared(ExprId body);  // a call of a rule with this body
  ExprId body_of(const Branch& branch);

  std::vector<Branch> branches_of(const Goal& goal);
  void expand(Branch branch, std::vector<Term> pending, std::vector<Choice> choices, std::set<Term> seen,
              std::vector<Branch>* out);
  bool excludes(const std::vector<Term>& terms, const Term& other);
  bool is_surely_empty(const Branch& branch, int depth);

  ExprId number_of(const Branch& branch);
  ExprId string_content_of(const Branch& branch);
  ExprId string_of(const Branch& branch);
  ExprId array_of(const Branch& branch);
  ExprId list_of(const Branch& branch);
  ExprId list_with_contains(const Branch& branch);
  Goal items_goal(const Branch& branch, size_t index) const;
  size_t prefix_size(const Branch& branch) const;

  ExprId object_of(const Branch& branch);
  Members members_of(const Branch& branch);
  Goal goal_of_name(const Branch& branch, const std::string& name);
  ExprId name_language(const Branch& branch);
  ExprId pattern(const std::string& pattern, const std::string& pointer);
  void add_others(const Branch& branch, const std::vector<std::string>& taken, Members* members);
  ExprId pair(ExprId quoted_name, const Goal& goal);
  ExprId member_list(const Branch& branch, const Members& members);
  ExprId apart(ExprId list);
  ExprId others_from(const Branch& branch, const Members& members, int64_t count, int64_t last);
  ExprId comma() { return rules_.arena.concat(rules_.arena.byte(','), spelling_.space()); }
  ExprId enclosed(char open, ExprId inside, char close);

  const SchemaDocument& document_;
  Rules rules_;
  JsonSpelling spelling_;
  std::map<Goal, RuleId> rule_of_goal_;
  std::map<ExprId, RuleId> rule_of_body_;
  std::map<std::string, ExprId> patterns_;
  int32_t num_branches_ = 0;
  int32_t depth_ = 0;
};

// The same goal with its terms sorted, each once.
Goal normalised(Goal goal);

}  // namespace llmb::grammar
