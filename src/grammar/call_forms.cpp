#include "grammar/call_forms.h"

#include "grammar/json_schema.h"
#include "grammar/schema_rules.h"

namespace llmb::grammar {

namespace {

// Members of a schema whose members are schemas, and those that hold values rather than schemas.
bool is_map_of_schemas(const std::string& key) {
  return key == "properties" || key == "patternProperties" || key == "$defs" || key == "definitions" ||
         key == "dependentSchemas" || key == "dependencies";
}
bool holds_values(const std::string& key) {
  return key == "const" || key == "enum" || key == "default" || key == "examples";
}

// References within a schema, made those of a document that has it at `place`.
void move_references(Json* schema, const std::string& place) {
  if (schema->is_array())
    for (Json& item : *schema) move_references(&item, place);
  if (!schema->is_object()) return;
  for (auto& [key, value] : schema->items()) {
    if (key == "$ref" && value.is_string()) {
      const std::string ref = value.get<std::string>();
      if (ref == "#" || ref.starts_with("#/")) value = "#" + place + ref.substr(1);
    } else if (is_map_of_schemas(key) && value.is_object()) {
      for (auto& [name, member] : value.items()) move_references(&member, place);
    } else if (!holds_values(key)) {
      move_references(&value, place);
    }
  }
}

// The first schema that is at fault by itself.
Status first_fault(const std::vector<CallShape>& calls) {
  for (size_t i = 0; i < calls.size(); ++i) {
    const Result<Rules> rules = json_schema_rules(calls[i].schema, calls[i].is_strict);
    if (!rules.ok()) return rules.status().with_context("parameters of function " + std::to_string(i));
  }
  return {};
}

}  // namespace

Result<Rules> call_rules(const std::vector<CallShape>& calls, std::string_view between, bool has_several,
                         std::string_view quote) {
  if (calls.empty()) return invalid_argument("there is no function to call");
  LLMB_RETURN_IF_ERROR(first_fault(calls));
  constexpr size_t kBytesPerUnit = 3;  // of work: reading a text
  int64_t work = 0;
  for (const CallShape& call : calls) work += static_cast<int64_t>(call.schema.size() / kBytesPerUnit);
  SchemaDocument document;
  document.quote = quote;
  document.root = {{"$defs", Json::object()}, {"type", "object"}};
  Json& schemas = document.root["$defs"];
  for (size_t i = 0; i < calls.size(); ++i) {
    const std::string name = std::to_string(i);
    Json& schema = schemas[name] = Json::parse(calls[i].schema);
    LLMB_ASSIGN_OR_RETURN(const int32_t draft, draft_of(schema));
    document.drafts.emplace_back("/$defs/" + name, draft);
    move_references(&schema, "/$defs/" + name);
  }
  std::vector<FramedGoal> goals;
  const Json is_object = {{"type", "object"}};
  for (size_t i = 0; i < calls.size(); ++i) {
    const std::string name = std::to_string(i);
    const Goal goal = {{Term::kSchema, &schemas[name], "/$defs/" + name}, {Term::kSchema, &is_object, ""}};
    goals.push_back({calls[i].before, goal, calls[i].after});
  }
  try {
    return within_budget([&] { return SchemaRules(document).compile(goals, between, has_several, work); });
  } catch (const SchemaError& error) {
    return error.status;
  }
}

}  // namespace llmb::grammar
