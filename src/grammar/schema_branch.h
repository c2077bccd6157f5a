// A JSON Schema taken apart: conjunctions of terms become branches, which hold for each type of value what bounds it.
#pragma once

#include <algorithm>
#include <compare>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "grammar/json_spelling.h"

namespace llmb::grammar {

// Thrown inside, a Status outside: what cannot be enforced, with keyword and JSON pointer.
struct SchemaError {
  Status status;
};

// Something that a value must be: valid for a schema or not, or equal to a constant. The JSON outlives it.
struct Term {
  enum Kind { kSchema, kNotSchema, kConst, kNever } kind = kSchema;
  const Json* json = nullptr;
  std::string pointer;  // to the schema or the constant, for messages

  bool operator==(const Term& other) const { return kind == other.kind && json == other.json; }
  auto operator<=>(const Term& other) const {
    return kind != other.kind ? kind <=> other.kind : std::compare_three_way()(json, other.json);
  }
};

// All of them hold; none: any value. Sorted, each once.
using Goal = std::vector<Term>;

enum TypeBit : uint32_t {
  kNullType = 1,
  kTrueType = 2,
  kFalseType = 4,
  kWholeType = 8,      // numbers without a fraction
  kFractionType = 16,  // the other numbers
  kStringType = 32,
  kArrayType = 64,
  kObjectType = 128,
  kNumberTypes = kWholeType | kFractionType,
  kAllTypes = 255,
};

inline constexpr int64_t kNoBound = std::numeric_limits<int64_t>::max();

struct ObjectSpec {
  std::vector<std::pair<std::string, Term>> properties;
  std::vector<std::pair<std::string, Term>> patterns;
  std::optional<Term> additional;  // of names that are in neither
};

struct ArraySpec {
  std::vector<Term> prefix;
  std::optional<Term> items;  // behind the prefix
};

struct ContainsSpec {
  Term term;
  int64_t min = 1, max = kNoBound;
  std::string pointer;
};

// Bounds on values; those of a type matter where the value is of this type.
struct Branch {
  uint32_t types = kAllTypes;
  std::vector<ExprId> numbers;  // all of them
  std::vector<ExprId> strings;  // all of them, as contents in the one spelling
  int64_t min_length = 0, max_length = kNoBound;
  std::vector<ArraySpec> arrays;
  std::vector<ContainsSpec> contains;
  int64_t min_items = 0, max_items = kNoBound;
  std::string unique_pointer;  // of uniqueItems; "": not asked for
  std::vector<ObjectSpec> objects;
  std::vector<Term> names;  // of properties
  std::vector<std::string> required, forbidden;
  int64_t min_properties = 0, max_properties = kNoBound;
  std::string min_properties_pointer;

  void merge(const Branch& other);
  size_t size() const;  // about what a copy costs
};

// Terms and bounds that hold at once.
struct Alternative {
  Branch bounds;
  std::vector<Term> terms;
  std::vector<Term> excluded;  // schemas that must not hold
};
// One of them holds; none: nothing can.
using Choice = std::vector<Alternative>;

// The whole schema that terms are parts of.
struct SchemaDocument {
  Json root;
  std::string quote = {};  // of the notation that values are written in, as JsonSpelling's
  int32_t draft = 2020;  // 4, 6, 7, 2019 or 2020, as "$schema" names it
  // The drafts of parts that were documents of their own, by where they are now.
  std::vector<std::pair<std::string, int32_t>> drafts;

  int32_t draft_at(const std::string& pointer) const;
  // Throws SchemaError where the draft at hand does not know the keyword: it ignores what later ones enforce.
  void check_known(const std::string& keyword, const std::string& pointer) const;
  // The schema that a $ref names. Throws SchemaError. The arena counts the work.
  Term resolve(const std::string& ref, const std::string& pointer, ExprArena* arena) const;

 private:
  void check_base(const std::string& pointer) const;
};

std::string join_pointer(const std::string& pointer, const std::string& member);
[[noreturn]] void refuse(const std::string& pointer, const std::string& keyword, const std::string& why);

// The meaning of a term, as choices that all hold. Throws SchemaError.
std::vector<Choice> choices_of(const Term& term, const SchemaDocument& document, ExprArena* arena);

}  // namespace llmb::grammar
