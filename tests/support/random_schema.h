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

}  // namespace llmb::test
