// A schema does not hold where one of its keywords fails. A keyword for which the failing values cannot be described
// is refused.
#include <set>

#include "grammar/schema_formats.h"
#include "grammar/schema_keywords.h"

namespace llmb::grammar {

Branch KeywordReader::negated_constants(const std::string& keyword, const std::vector<Term>& constants) {
  Branch other;
  std::vector<std::string> contents;
  for (const Term& constant : constants) {
    const Json& value = *constant.json;
    if (value.is_structured()) refuse(pointer_, keyword, "\"not\" of an array or object cannot be enforced");
    if (value.is_null()) other.types &= ~kNullType;
    if (value.is_boolean()) other.types &= ~(value.get<bool>() ? kTrueType : kFalseType);
    if (value.is_string()) contents.push_back(spelling_.string_content(value.get_ref<const std::string&>()));
    if (value.is_number())
      other.numbers.push_back(
          arena_.both(spelling_.number(), arena_.complement(spelling_.equal_to(Decimal::of(value)))));
  }
  if (!contents.empty()) other.strings = {not_string(arena_.one_of({contents.begin(), contents.end()}))};
  return other;
}

// Bounds of one type, whose failures are of this type.
bool KeywordReader::negate_bound(const std::string& keyword, const Json& value) {
  Branch out;
  const auto bound = [&](bool is_least, bool is_strict) {
    const Decimal limit = number(keyword, value);
    out.types = kNumberTypes;
    out.numbers = {is_least ? spelling_.at_least(limit, is_strict) : spelling_.at_most(limit, is_strict)};
  };
  const auto counts = [&](uint32_t type, bool is_min, int64_t* min, int64_t* max) {
    const int64_t limit = count(keyword, value);
    out.types = is_min && limit == 0 ? 0 : type;
    *(is_min ? max : min) = is_min ? limit - 1 : limit + 1;
  };
  if (keyword == "minimum" || keyword == "exclusiveMinimum") bound(false, !is_exclusive(keyword));
  else if (keyword == "maximum" || keyword == "exclusiveMaximum") bound(true, !is_exclusive(keyword));
  else if (keyword == "minLength" || keyword == "maxLength")
    counts(kStringType, keyword == "minLength", &out.min_length, &out.max_length);
  else if (keyword == "minItems" || keyword == "maxItems")
    counts(kArrayType, keyword == "minItems", &out.min_items, &out.max_items);
  else if (keyword == "minProperties" || keyword == "maxProperties") {
    counts(kObjectType, keyword == "minProperties", &out.min_properties, &out.max_properties);
    out.min_properties_pointer = pointer_;
  } else if (keyword == "multipleOf") {
    out.types = kNumberTypes;
    out.numbers = {arena_.both(spelling_.number(), arena_.complement(multiple(keyword, value)))};
  } else if (keyword == "pattern") {
    out.types = kStringType;
    out.strings = {not_string(regex(keyword, text(keyword, value), RegexScope::kAnywhere))};
  } else if (keyword == "format") {
    std::string pattern;
    const FormatKind kind = find_format(text(keyword, value), &pattern);
    if (kind == FormatKind::kRefused) refuse(pointer_, keyword, "under \"not\" it cannot be enforced");
    out.types = kind == FormatKind::kNone ? 0 : uint32_t{kStringType};
    if (out.types != 0) out.strings = {not_string(regex(keyword, pattern, RegexScope::kWhole))};
  } else if (keyword == "type") {
    out.types = kAllTypes & ~read_types(value);
  } else {
    return false;
  }
  fail_with(std::move(out));
  return true;
}

void KeywordReader::negate_keyword(const std::string& keyword, const Json& value) {
  document_.check_known(keyword, pointer_);
  if (is_flag_of_draft_4(keyword, value) || negate_bound(keyword, value)) return;
  if (keyword == "const" || keyword == "enum") {
    fail_with(negated_constants(keyword, keyword == "enum" ? list(keyword, value) : std::vector{term(value, keyword)}));
  } else if (keyword == "not") {
    fail_with({}, {term(value, keyword)});
  } else if (keyword == "$ref") {
    Term target = document_.resolve(text(keyword, value), pointer_, &arena_);
    target.kind = Term::kNotSchema;
    fail_with({}, {target});
  } else if (keyword == "allOf") {
    for (const Term& each : list(keyword, value, Term::kNotSchema)) fail_with({}, {each});
  } else if (keyword == "anyOf") {
    fail_with({}, list(keyword, value, Term::kNotSchema));
  } else if (keyword == "required") {
    for (const Json& name : array(keyword, value)) {
      Branch absent;
      absent.types = kObjectType, absent.forbidden = {text(keyword, name)};
      fail_with(std::move(absent));
    }
  } else if (keyword == "properties") {
    for (const auto& [name, part] : object(keyword, value).items()) {
      Branch present;
      present.types = kObjectType, present.required = {name};
      present.objects = {{{{name, member(part, keyword, name, Term::kNotSchema)}}, {}, std::nullopt}};
      fail_with(std::move(present));
    }
  } else if (keyword == "items" && !value.is_array() && !schema_.contains("prefixItems")) {
    Branch some;
    some.types = kArrayType, some.contains = {{term(value, keyword, Term::kNotSchema), 1, kNoBound, pointer_}};
    fail_with(std::move(some));
  } else if (keyword == "contains" && !schema_.contains("minContains") && !schema_.contains("maxContains")) {
    Branch none;
    none.types = kArrayType, none.arrays = {{{}, term(value, keyword, Term::kNotSchema)}};
    fail_with(std::move(none));
  } else if (keyword == "if") {
    if (schema_.contains("then")) fail_with({}, {term(value, "if"), term(schema_["then"], "then", Term::kNotSchema)});
    if (schema_.contains("else"))
      fail_with({}, {term(value, "if", Term::kNotSchema), term(schema_["else"], "else", Term::kNotSchema)});
  } else {
    static const std::set<std::string> kAssertions = {"oneOf",
                                                      "items",
                                                      "prefixItems",
                                                      "contains",
                                                      "uniqueItems",
                                                      "patternProperties",
                                                      "additionalProperties",
                                                      "propertyNames",
                                                      "dependentRequired",
                                                      "dependentSchemas",
                                                      "dependencies",
                                                      "unevaluatedProperties",
                                                      "unevaluatedItems",
                                                      "$dynamicRef",
                                                      "$recursiveRef"};
    if (kAssertions.contains(keyword))
      refuse(pointer_, keyword, "under \"not\" or an overlapping \"oneOf\" it cannot be enforced");
  }
}

}  // namespace llmb::grammar
