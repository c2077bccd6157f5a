// Schemas, patterns and grammars that are made to take much time or memory.
#pragma once

#include <string>
#include <vector>

#include "core/request.h"

namespace llmb::test {

struct HostileForm {
  std::string name;
  AnswerForm form;
};

std::vector<HostileForm> hostile_forms();

}  // namespace llmb::test
