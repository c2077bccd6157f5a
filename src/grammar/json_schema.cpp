#include "grammar/json_schema.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/check.h"
#include "base/utf8.h"
#include "grammar/schema_rules.h"

namespace llmb::grammar {

namespace {

constexpr size_t kMaxSchemaBytes = size_t{4} << 20;

Result<Rules> compile(const SchemaDocument& document, int64_t work) {
  try {
    return within_budget([&] { return SchemaRules(document).compile({{Term::kSchema, &document.root, ""}}, work); });
  } catch (const SchemaError& error) {
    return error.status;
  }
}

// The work of reading the text: an object's members are compared with each new one.
Result<int64_t> reading_work(std::string_view text) {
  constexpr size_t kMaxDepth = 1000, kBytesPerUnit = 3;
  constexpr int64_t kMembersPerUnit = 16, kOpening = 16, kArray = -1;
  std::vector<int64_t> num_members;  // of the objects that are open
  auto work = static_cast<int64_t>(text.size() / kBytesPerUnit);
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '"') in_string = !in_string;
    else if (in_string) i += c == '\\';
    else if (c == '{' || c == '[') num_members.push_back(c == '{' ? 0 : kArray), work += kOpening;
    else if ((c == '}' || c == ']') && !num_members.empty()) num_members.pop_back();
    else if (c == ',' && !num_members.empty() && num_members.back() != kArray)
      work += ++num_members.back() / kMembersPerUnit;
    if (num_members.size() > kMaxDepth)
      return resource_exhausted("schema: its JSON is deeper than " + std::to_string(kMaxDepth) + " levels");
  }
  if (work > kMaxCompileWork) return over_budget().with_context("schema");
  return work;
}

// Depth-first through all schemas of which the schema is made.
Status check_strict(const Json& schema, const std::string& pointer, int depth) {
  constexpr int kMaxDepth = 256;
  if (depth > kMaxDepth)
    return resource_exhausted("schema: it is deeper than " + std::to_string(kMaxDepth) + " levels");
  if (!schema.is_object()) return {};
  if (const auto properties = schema.find("properties"); properties != schema.end() && properties->is_object()) {
    const auto closed = schema.find("additionalProperties");
    if (closed == schema.end() || *closed != Json(false))
      return invalid_argument("schema: \"additionalProperties\" at #" + pointer + ": with strict it must be false");
    const auto required = schema.find("required");
    for (const auto& [name, member] : properties->items())
      if (required == schema.end() || std::find(required->begin(), required->end(), Json(name)) == required->end())
        return invalid_argument("schema: \"required\" at #" + pointer +
                                ": with strict it must name all properties; \"" + name + "\" is missing");
  }
  for (const char* name : {"properties", "$defs", "definitions", "anyOf", "oneOf", "allOf", "prefixItems"}) {
    const auto members = schema.find(name);
    if (members == schema.end() || !members->is_structured()) continue;
    for (const auto& [key, member] : members->items())
      LLMB_RETURN_IF_ERROR(check_strict(member, join_pointer(join_pointer(pointer, name), key), depth + 1));
  }
  const auto items = schema.find("items");
  return items == schema.end() ? Status() : check_strict(*items, join_pointer(pointer, "items"), depth + 1);
}

}  // namespace

Result<int32_t> draft_of(const Json& schema) {
  constexpr int32_t kLatest = 2020;
  constexpr std::pair<std::string_view, int32_t> kDrafts[] = {{"/draft-04/", 4},         {"/draft-06/", 6},
                                                              {"/draft-07/", 7},         {"/draft/2019-09/", 2019},
                                                              {"/draft/2020-12/", 2020}, {".org/schema", kLatest}};
  const auto at = schema.is_object() ? schema.find("$schema") : schema.end();
  if (!schema.is_object() || at == schema.end() || !at->is_string()) return kLatest;
  const auto& name = at->get_ref<const std::string&>();
  for (const auto& [part, draft] : kDrafts)
    if (name.find("json-schema.org") != name.npos && name.find(part) != name.npos) return draft;
  return unsupported("schema: \"$schema\" at #/$schema: \"" + name +
                     "\" is not known; drafts 4, 6, 7, 2019-09 and 2020-12 are");
}

Result<Rules> json_schema_rules(std::string_view schema, bool is_strict) {
  if (schema.size() > kMaxSchemaBytes) return resource_exhausted("schema: it has more than 4 MiB");
  if (!is_valid_utf8(schema)) return invalid_argument("schema: it is not UTF-8");
  LLMB_ASSIGN_OR_RETURN(const int64_t work, reading_work(schema));
  SchemaDocument document;
  try {
    document.root = Json::parse(schema);
  } catch (const Json::exception& error) {
    return invalid_argument(std::string("schema: it is not JSON: ") + error.what());
  }
  if (is_strict) LLMB_RETURN_IF_ERROR(check_strict(document.root, "", 0));
  LLMB_ASSIGN_OR_RETURN(document.draft, draft_of(document.root));
  return compile(document, work);
}

void look_up_strings(const std::shared_ptr<const Vocabulary>& vocabulary) {
  for (const bool is_name : {false, true}) {
    Rules rules;
    JsonSpelling spelling(&rules.arena);
    const ExprId text = is_name ? spelling.string_chars() : rules.arena.star(spelling.any_string_char());
    rules.bodies = {rules.arena.concat(text, rules.arena.byte('"'))};
    const auto constraint = make_constraint(std::move(rules), vocabulary);
    LLMB_CHECK(constraint.ok());
    (*constraint)->start()->allowed();
  }
}

Result<Rules> json_object_rules() {
  SchemaDocument document;
  document.root = {{"type", "object"}};
  return compile(document, 0);
}

}  // namespace llmb::grammar
