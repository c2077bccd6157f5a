// Random JSON Schemas with their languages as plain search sees them.
#pragma once

#include <map>
#include <string>

#include "tests/support/naive_language.h"
#include "tests/support/test_rng.h"

namespace llmb::test {

struct RandomSchema {
  std::string schema;
  Naive naive;
  std::map<std::string, Naive> rules;
};

RandomSchema random_schema(TestRng& rng);

// The schema of an object, as arguments of calls are in Gemma's notation (grammar/json_spelling.h).
RandomSchema random_arguments(TestRng& rng, const std::string& quote);

}  // namespace llmb::test
