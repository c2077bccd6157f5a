// Reads the keywords of one schema object, as they stand or negated. For schema_branch.h's choices_of().
#pragma once

#include <cmath>
#include <string>
#include <vector>

#include "grammar/regex_expr.h"
#include "grammar/schema_branch.h"

namespace llmb::grammar {

// One schema object and one direction.
class KeywordReader {
 public:
  KeywordReader(const Term& term, const SchemaDocument& document, ExprArena* arena)
      : schema_(*term.json),
        pointer_(term.pointer),
        document_(document),
        draft_(document.draft_at(term.pointer)),
        arena_(*arena),
        spelling_(arena, document.quote) {}

  // Choices that all hold.
  std::vector<Choice> read() {
    check_whole();
    arena_.spend(4 * static_cast<int64_t>(schema_.size()));
    if (schema_.contains("$ref") && ref_hides_siblings()) {
      read_keyword("$ref", schema_["$ref"]);
    } else {
      for (const auto& [keyword, value] : schema_.items()) read_keyword(keyword, value);
    }
    choices_.push_back({{bounds_, terms_, {}}});
    return std::move(choices_);
  }

  // The choice between the ways to fail.
  Choice read_negated() {
    check_whole();
    arena_.spend(4 * static_cast<int64_t>(schema_.size()));
    for (const auto& [keyword, value] : schema_.items()) {
      if (schema_.contains("$ref") && ref_hides_siblings() && keyword != "$ref") continue;
      negate_keyword(keyword, value);
    }
    return std::move(failures_);
  }

 private:
  bool ref_hides_siblings() const { return draft_ <= 7; }
  void check_whole() {
    if (schema_.contains("$id") && &schema_ != &document_.root)
      refuse(pointer_, "$id", "only the whole schema may have one");
  }

  Term term(const Json& json, const std::string& keyword, Term::Kind kind = Term::kSchema) const {
    return {kind, &json, join_pointer(pointer_, keyword)};
  }
  Term member(const Json& json, const std::string& keyword, const std::string& name,
              Term::Kind kind = Term::kSchema) const {
    return {kind, &json, join_pointer(join_pointer(pointer_, keyword), name)};
  }
  [[noreturn]] void malformed(const std::string& keyword, const std::string& wanted) const {
    throw SchemaError{
        invalid_argument("schema: \"" + keyword + "\" at #" + join_pointer(pointer_, keyword) + " must be " + wanted)};
  }

  int64_t count(const std::string& keyword, const Json& value) const {
    const double number = value.is_number() ? value.get<double>() : -1;
    if (number < 0 || number != std::floor(number)) malformed(keyword, "a whole number, at least 0");
    if (number > 1e6) refuse(pointer_, keyword, "counts above a million cannot be enforced");
    return static_cast<int64_t>(number);
  }
  Decimal number(const std::string& keyword, const Json& value) const {
    if (!value.is_number()) malformed(keyword, "a number");
    return Decimal::of(value);
  }
  std::string text(const std::string& keyword, const Json& value) const {
    if (!value.is_string()) malformed(keyword, "a string");
    return value.get<std::string>();
  }
  const Json& object(const std::string& keyword, const Json& value) const {
    if (!value.is_object()) malformed(keyword, "an object");
    arena_.spend(4 * static_cast<int64_t>(value.size()));
    return value;
  }
  const Json& array(const std::string& keyword, const Json& value) const {
    if (!value.is_array()) malformed(keyword, "an array");
    arena_.spend(static_cast<int64_t>(value.size()));
    return value;
  }
  std::vector<Term> list(const std::string& keyword, const Json& value, Term::Kind kind = Term::kSchema) const {
    std::vector<Term> terms;
    const size_t size = array(keyword, value).size();
    arena_.spend(4 * static_cast<int64_t>(size));
    for (size_t i = 0; i < size; ++i) terms.push_back(member(value[i], keyword, std::to_string(i), kind));
    return terms;
  }

  ExprId regex(const std::string& keyword, const std::string& pattern, RegexScope scope) {
    const auto e = regex_expr(
        pattern, scope, [this](const CharSet& set) { return spelling_.string_char(set); }, &arena_);
    if (!e.ok()) refuse(pointer_, keyword, e.status().message());
    return *e;
  }
  ExprId not_string(ExprId e) { return arena_.both(spelling_.string_chars(), arena_.complement(e)); }
  ExprId multiple(const std::string& keyword, const Json& value) {
    const Decimal divisor = number(keyword, value);
    if (divisor.is_negative || divisor.is_zero()) malformed(keyword, "above 0");
    const auto e = spelling_.multiple_of(divisor);
    if (!e.ok()) refuse(pointer_, keyword, e.status().message());
    return *e;
  }

  void bound_number(ExprId e) { bounds_.numbers.push_back(e); }
  void bound_string(ExprId e) { bounds_.strings.push_back(e); }
  ObjectSpec& new_object() { return bounds_.objects.emplace_back(); }

  void read_keyword(const std::string& keyword, const Json& value);
  void read_applicator(const std::string& keyword, const Json& value);
  void read_object_keyword(const std::string& keyword, const Json& value);
  void read_array_keyword(const std::string& keyword, const Json& value);
  void read_items();
  void read_contains(const Json& value);
  void read_one_of(const std::vector<Term>& terms);
  void read_dependents(const std::string& keyword, const Json& value);
  uint32_t read_types(const Json& value) const;
  bool is_flag_of_draft_4(const std::string& keyword, const Json& value) const;
  bool is_exclusive(const std::string& keyword) const;
  void negate_keyword(const std::string& keyword, const Json& value);
  bool negate_bound(const std::string& keyword, const Json& value);
  Branch negated_constants(const std::string& keyword, const std::vector<Term>& constants);
  void fail_with(Branch bounds, std::vector<Term> terms = {}) {
    failures_.push_back({std::move(bounds), std::move(terms), {}});
  }

  const Json& schema_;
  const std::string& pointer_;
  const SchemaDocument& document_;
  const int32_t draft_;
  ExprArena& arena_;
  JsonSpelling spelling_;
  Branch bounds_;            // in any case
  std::vector<Term> terms_;  // likewise
  std::vector<Choice> choices_;
  Choice failures_;
};

// One of the constants. Those without members are bounds of one alternative; each of the others is one of its own.
Choice constants_choice(const std::vector<Term>& constants, const JsonSpelling& spelling, ExprArena* arena);

}  // namespace llmb::grammar
