// Formats of strings that schemas may ask for.
#pragma once

#include <string>

namespace llmb::grammar {

enum class FormatKind {
  kEnforced,  // by a pattern
  kRefused,   // JSON Schema says what it means, and no pattern here does
  kNone,      // not one of JSON Schema's: it says nothing about values
};

// Sets *pattern, which all of the string matches, for formats that are enforced.
FormatKind find_format(const std::string& name, std::string* pattern);

}  // namespace llmb::grammar
