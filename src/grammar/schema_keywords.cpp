// The keywords of a JSON Schema: each adds to the bounds that hold in any case, or adds a choice.
#include <map>
#include <set>

#include "grammar/schema_formats.h"
#include "grammar/schema_keywords.h"

namespace llmb::grammar {

namespace {

uint32_t types_of_name(const std::string& name) {
  static const std::map<std::string, uint32_t> kNames = {{"null", kNullType},     {"boolean", kTrueType | kFalseType},
                                                         {"integer", kWholeType}, {"number", kNumberTypes},
                                                         {"string", kStringType}, {"array", kArrayType},
                                                         {"object", kObjectType}};
  const auto at = kNames.find(name);
  return at == kNames.end() ? 0 : at->second;
}

// Say nothing about values.
bool is_annotation(const std::string& keyword) {
  static const std::set<std::string> kAnnotations = {"$schema",
                                                     "$id",
                                                     "$anchor",
                                                     "$defs",
                                                     "definitions",
                                                     "$comment",
                                                     "title",
                                                     "then",
                                                     "else",
                                                     "examples",
                                                     "default",
                                                     "description",
                                                     "deprecated",
                                                     "readOnly",
                                                     "writeOnly",
                                                     "minContains",
                                                     "maxContains",
                                                     "contentEncoding",
                                                     "contentMediaType",
                                                     "contentSchema",
                                                     "$vocabulary",
                                                     "additionalItems",
                                                     "$dynamicAnchor"};
  return kAnnotations.contains(keyword);
}

// A constant array or object, member by member.
Alternative whole_constant(const Term& term) {
  Alternative whole;
  const Json& value = *term.json;
  const auto part = [&](const Json& json, const std::string& name) {
    return Term{Term::kConst, &json, join_pointer(term.pointer, name)};
  };
  if (value.is_object()) {
    whole.bounds.types = kObjectType;
    ObjectSpec spec;
    for (const auto& [name, inner] : value.items()) {
      spec.properties.emplace_back(name, part(inner, name));
      whole.bounds.required.push_back(name);
    }
    spec.additional = Term{Term::kNever, nullptr, term.pointer};
    whole.bounds.objects = {std::move(spec)};
  } else {
    whole.bounds.types = kArrayType;
    ArraySpec spec;
    for (size_t i = 0; i < value.size(); ++i) spec.prefix.push_back(part(value[i], std::to_string(i)));
    whole.bounds.min_items = whole.bounds.max_items = static_cast<int64_t>(value.size());
    whole.bounds.arrays = {std::move(spec)};
  }
  return whole;
}

}  // namespace

uint32_t KeywordReader::read_types(const Json& value) const {
  uint32_t types = 0;
  for (const Json& name : value.is_array() ? value : Json::array({value})) {
    const uint32_t type = name.is_string() ? types_of_name(name.get<std::string>()) : 0;
    if (type == 0) malformed("type", "null, boolean, integer, number, string, array or object");
    types |= type;
  }
  return types;
}

Choice constants_choice(const std::vector<Term>& constants, const JsonSpelling& spelling, ExprArena* arena) {
  Choice choice;
  Alternative plain;
  plain.bounds.types = 0;
  std::vector<std::string> contents;
  std::vector<ExprId> numbers;
  for (const Term& constant : constants) {
    const Json& value = *constant.json;
    if (value.is_null()) plain.bounds.types |= kNullType;
    if (value.is_boolean()) plain.bounds.types |= value.get<bool>() ? kTrueType : kFalseType;
    if (value.is_string()) contents.push_back(spelling.string_content(value.get_ref<const std::string&>()));
    if (value.is_number()) {
      const Decimal decimal = Decimal::of(value);
      plain.bounds.types |= decimal.fraction.empty() ? kWholeType : kFractionType;
      numbers.push_back(arena->literal(decimal.text()));
    }
    if (value.is_structured()) {
      arena->spend(32 + 8 * static_cast<int64_t>(value.size()));
      choice.push_back(whole_constant(constant));
    }
  }
  if (!contents.empty()) {
    plain.bounds.types |= kStringType;
    plain.bounds.strings = {arena->one_of({contents.begin(), contents.end()})};
  }
  if (!numbers.empty()) plain.bounds.numbers = {arena->either(std::move(numbers))};
  if (plain.bounds.types != 0) choice.push_back(std::move(plain));
  return choice;
}

// Draft 4's "exclusiveMinimum": true stands beside "minimum", which is read with it.
bool KeywordReader::is_flag_of_draft_4(const std::string& keyword, const Json& value) const {
  if (draft_ > 4 || !keyword.starts_with("exclusive")) return false;
  if (!value.is_boolean()) malformed(keyword, "true or false in draft 4");
  return true;
}

// REQUIRES: minimum, maximum, exclusiveMinimum or exclusiveMaximum
bool KeywordReader::is_exclusive(const std::string& keyword) const {
  if (keyword.starts_with("exclusive")) return true;
  const auto flag = schema_.find(keyword == "minimum" ? "exclusiveMinimum" : "exclusiveMaximum");
  return draft_ <= 4 && flag != schema_.end() && *flag == Json(true);
}

void KeywordReader::read_keyword(const std::string& keyword, const Json& value) {
  document_.check_known(keyword, pointer_);
  if (is_flag_of_draft_4(keyword, value)) return;
  const auto bound = [&](bool is_least, bool is_strict) {
    const Decimal limit = number(keyword, value);
    bound_number(is_least ? spelling_.at_least(limit, is_strict) : spelling_.at_most(limit, is_strict));
  };
  if (keyword == "type") bounds_.types &= read_types(value);
  else if (keyword == "enum") choices_.push_back(constants_choice(list(keyword, value), spelling_, &arena_));
  else if (keyword == "const") choices_.push_back(constants_choice({term(value, keyword)}, spelling_, &arena_));
  else if (keyword == "minimum" || keyword == "exclusiveMinimum") bound(true, is_exclusive(keyword));
  else if (keyword == "maximum" || keyword == "exclusiveMaximum") bound(false, is_exclusive(keyword));
  else if (keyword == "multipleOf") bound_number(multiple(keyword, value));
  else if (keyword == "minLength") bounds_.min_length = count(keyword, value);
  else if (keyword == "maxLength") bounds_.max_length = count(keyword, value);
  else if (keyword == "pattern") bound_string(regex(keyword, text(keyword, value), RegexScope::kAnywhere));
  else if (keyword == "format") {
    std::string pattern;
    const FormatKind kind = find_format(text(keyword, value), &pattern);
    if (kind == FormatKind::kRefused) refuse(pointer_, keyword, "\"" + text(keyword, value) + "\" cannot be enforced");
    if (kind == FormatKind::kEnforced) bound_string(regex(keyword, pattern, RegexScope::kWhole));
  } else {
    read_applicator(keyword, value);
  }
}

void KeywordReader::read_applicator(const std::string& keyword, const Json& value) {
  if (keyword == "$ref") {
    terms_.push_back(document_.resolve(text(keyword, value), pointer_, &arena_));
  } else if (keyword == "allOf") {
    for (const Term& each : list(keyword, value)) terms_.push_back(each);
  } else if (keyword == "anyOf") {
    Choice choice;
    for (const Term& each : list(keyword, value)) choice.push_back({{}, {each}, {}});
    choices_.push_back(std::move(choice));
  } else if (keyword == "oneOf") {
    read_one_of(list(keyword, value));
  } else if (keyword == "not") {
    terms_.push_back(term(value, keyword, Term::kNotSchema));
  } else if (keyword == "if") {
    if (!schema_.contains("then") && !schema_.contains("else")) return;
    Choice choice = {{{}, {term(value, "if")}, {}}, {{}, {term(value, "if", Term::kNotSchema)}, {}}};
    if (schema_.contains("then")) choice[0].terms.push_back(term(schema_["then"], "then"));
    if (schema_.contains("else")) choice[1].terms.push_back(term(schema_["else"], "else"));
    choices_.push_back(std::move(choice));
  } else {
    read_object_keyword(keyword, value);
  }
}

void KeywordReader::read_one_of(const std::vector<Term>& terms) {
  Choice choice;
  for (size_t i = 0; i < terms.size(); ++i) {
    Alternative only{{}, {terms[i]}, {}};
    for (size_t j = 0; j < terms.size(); ++j)
      if (j != i) only.excluded.push_back(terms[j]);
    choice.push_back(std::move(only));
  }
  choices_.push_back(std::move(choice));
}

void KeywordReader::read_object_keyword(const std::string& keyword, const Json& value) {
  if (keyword == "properties" || keyword == "patternProperties" || keyword == "additionalProperties") {
    const std::string first = schema_.contains("properties")          ? "properties"
                              : schema_.contains("patternProperties") ? "patternProperties"
                                                                      : keyword;
    if (keyword != first) return;  // they are read together
    ObjectSpec& spec = new_object();
    if (schema_.contains("properties"))
      for (const auto& [name, part] : object("properties", schema_["properties"]).items())
        spec.properties.emplace_back(name, member(part, "properties", name));
    if (schema_.contains("patternProperties"))
      for (const auto& [pattern, part] : object("patternProperties", schema_["patternProperties"]).items())
        spec.patterns.emplace_back(pattern, member(part, "patternProperties", pattern));
    if (schema_.contains("additionalProperties"))
      spec.additional = term(schema_["additionalProperties"], "additionalProperties");
  } else if (keyword == "required") {
    for (const Json& name : array(keyword, value)) bounds_.required.push_back(text(keyword, name));
  } else if (keyword == "propertyNames") {
    bounds_.names.push_back(term(value, keyword));
  } else if (keyword == "minProperties") {
    bounds_.min_properties = count(keyword, value);
    bounds_.min_properties_pointer = pointer_;
  } else if (keyword == "maxProperties") {
    bounds_.max_properties = count(keyword, value);
  } else if (keyword == "dependentRequired" || keyword == "dependentSchemas" || keyword == "dependencies") {
    read_dependents(keyword, value);
  } else {
    read_array_keyword(keyword, value);
  }
}

void KeywordReader::read_dependents(const std::string& keyword, const Json& value) {
  for (const auto& [name, part] : object(keyword, value).items()) {
    Choice choice(2);
    choice[0].bounds.forbidden = {name};
    choice[1].bounds.required = {name};
    choice.push_back({});
    choice[2].bounds.types = kAllTypes & ~kObjectType;
    choice[1].bounds.types = choice[0].bounds.types = kObjectType;
    if (part.is_array()) {
      for (const Json& other : part) choice[1].bounds.required.push_back(text(keyword, other));
    } else {
      choice[1].terms.push_back(member(part, keyword, name));
    }
    choices_.push_back(std::move(choice));
  }
}

void KeywordReader::read_array_keyword(const std::string& keyword, const Json& value) {
  if (keyword == "items" || keyword == "prefixItems") {
    if (keyword == "items" || !schema_.contains("items")) read_items();
  } else if (keyword == "minItems") {
    bounds_.min_items = count(keyword, value);
  } else if (keyword == "maxItems") {
    bounds_.max_items = count(keyword, value);
  } else if (keyword == "uniqueItems") {
    if (value == true) bounds_.unique_pointer = pointer_ + "/";
  } else if (keyword == "contains") {
    read_contains(value);
  } else if (keyword == "unevaluatedProperties" || keyword == "unevaluatedItems" || keyword == "$dynamicRef" ||
             keyword == "$recursiveRef") {
    if (!(keyword[0] == 'u' && value == true)) refuse(pointer_, keyword, "cannot be enforced");
  } else if (!is_annotation(keyword)) {
    return;  // a keyword of nobody's: an annotation
  }
}

void KeywordReader::read_items() {
  ArraySpec spec;
  const auto at = schema_.find("items");
  if (schema_.contains("prefixItems")) spec.prefix = list("prefixItems", schema_["prefixItems"]);
  if (at != schema_.end() && at->is_array()) {  // draft 7
    spec.prefix = list("items", *at);
    if (schema_.contains("additionalItems")) spec.items = term(schema_["additionalItems"], "additionalItems");
  } else if (at != schema_.end()) {
    spec.items = term(*at, "items");
  }
  bounds_.arrays.push_back(std::move(spec));
}

void KeywordReader::read_contains(const Json& value) {
  ContainsSpec spec{term(value, "contains"), 1, kNoBound, pointer_};
  if (schema_.contains("minContains")) spec.min = count("minContains", schema_["minContains"]);
  if (schema_.contains("maxContains")) spec.max = count("maxContains", schema_["maxContains"]);
  if (spec.min > 0 || spec.max != kNoBound) bounds_.contains.push_back(std::move(spec));
}

std::vector<Choice> choices_of(const Term& term, const SchemaDocument& document, ExprArena* arena) {
  const std::vector<Choice> nothing(1), anything;
  if (term.kind == Term::kNever) return nothing;
  if (term.kind == Term::kConst) return {constants_choice({term}, JsonSpelling(arena, document.quote), arena)};
  if (term.json->is_boolean()) return term.json->get<bool>() == (term.kind == Term::kSchema) ? anything : nothing;
  if (!term.json->is_object())
    throw SchemaError{invalid_argument("schema: #" + term.pointer + " must be an object, true or false")};
  KeywordReader reader(term, document, arena);
  if (term.kind == Term::kNotSchema) return {reader.read_negated()};
  return reader.read();
}

}  // namespace llmb::grammar
