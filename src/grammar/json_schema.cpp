#include "grammar/json_schema.h"

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

}  // namespace

Result<Rules> json_schema_rules(std::string_view schema) {
  if (schema.size() > kMaxSchemaBytes) return resource_exhausted("schema: it has more than 4 MiB");
  if (!is_valid_utf8(schema)) return invalid_argument("schema: it is not UTF-8");
  SchemaDocument document;
  try {
    document.root = Json::parse(schema);
  } catch (const Json::exception& error) {
    return invalid_argument(std::string("schema: it is not JSON: ") + error.what());
  }
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
