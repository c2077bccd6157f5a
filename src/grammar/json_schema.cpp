#include "grammar/json_schema.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/utf8.h"
#include "grammar/schema_rules.h"

namespace llmb::grammar {

namespace {

constexpr size_t kMaxSchemaBytes = size_t{4} << 20;

Result<Rules> compile(const SchemaDocument& document, const Goal& goal) {
  try {
    return SchemaRules(document).compile(goal);
  } catch (const SchemaError& error) {
    return error.status;
  }
}

// Depth-first through all schemas of which the schema is made.
Status check_strict(const Json& schema, const std::string& pointer, int depth) {
  constexpr int kMaxDepth = 256;
  if (depth > kMaxDepth) return resource_exhausted("schema: it is deeper than " + std::to_string(kMaxDepth) + " levels");
  if (!schema.is_object()) return {};
  if (const auto properties = schema.find("properties"); properties != schema.end() && properties->is_object()) {
    const auto closed = schema.find("additionalProperties");
    if (closed == schema.end() || *closed != Json(false))
      return invalid_argument("schema: \"additionalProperties\" at #" + pointer + ": with strict it must be false");
    const auto required = schema.find("required");
    for (const auto& [name, member] : properties->items())
      if (required == schema.end() || std::find(required->begin(), required->end(), Json(name)) == required->end())
        return invalid_argument("schema: \"required\" at #" + pointer + ": with strict it must name all properties; \"" +
                                name + "\" is missing");
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

Result<Rules> json_schema_rules(std::string_view schema, bool is_strict) {
  if (schema.size() > kMaxSchemaBytes) return resource_exhausted("schema: it has more than 4 MiB");
  if (!is_valid_utf8(schema)) return invalid_argument("schema: it is not UTF-8");
  SchemaDocument document;
  try {
    document.root = Json::parse(schema);
  } catch (const Json::exception& error) {
    return invalid_argument(std::string("schema: it is not JSON: ") + error.what());
  }
  if (is_strict) LLMB_RETURN_IF_ERROR(check_strict(document.root, "", 0));
  if (document.root.is_object() && document.root.contains("$schema") && document.root["$schema"].is_string()) {
    const std::string draft = document.root["$schema"].get<std::string>();
    document.ref_hides_siblings = draft.find("draft-07") != std::string::npos ||
                                  draft.find("draft-06") != std::string::npos ||
                                  draft.find("draft-04") != std::string::npos;
    if (draft.find("json-schema.org/") == std::string::npos)
      return unsupported("schema: \"$schema\" at #/$schema: \"" + draft + "\" is not known");
  }
  return compile(document, {{Term::kSchema, &document.root, ""}});
}

Result<Rules> json_object_rules() {
  SchemaDocument document;
  document.root = {{"type", "object"}};
  return compile(document, {{Term::kSchema, &document.root, ""}});
}

}  // namespace llmb::grammar
