// JSON Schemas with instances and verdicts, as the JSON Schema Test Suite writes them.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/status.h"

namespace llmb::test {

// All spellings of an instance that its objects' orders make, as answers spell JSON; at most 5,000 of them.
std::vector<std::string> spellings(const nlohmann::ordered_json& instance);

// Whether answers to the schema may be one of the texts; or why the schema is refused.
class SchemaJudge {
 public:
  explicit SchemaJudge(const std::string& schema);
  ~SchemaJudge();
  const Status& status() const { return status_; }
  bool accepts(const std::string& text);
  bool accepts(const nlohmann::ordered_json& instance);

 private:
  struct State;
  Status status_;
  std::unique_ptr<State> state_;
};

struct SchemaOutcome {
  int num_enforced = 0, num_refused = 0;  // cases
  std::vector<std::string> wrong;         // what a case says and what was found
  std::vector<std::string> refusals;      // of schemas
};

// cases: [{"description", "schema", "tests": [{"description", "data", "valid"}]}]
void check_schema_cases(const nlohmann::ordered_json& cases, const std::string& name, SchemaOutcome* outcome);

}  // namespace llmb::test
