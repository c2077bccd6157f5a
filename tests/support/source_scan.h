// Reads C++ sources of this tree as text, as far as rules of the tree need it. No preprocessor runs: both branches of an
// #if are read.
#pragma once

#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace llmb::test {

// The source without comments; string and character literals become "" and ''. Line breaks stay where they are.
std::string without_comments(std::string_view source);

// The headers that the source includes by quotes, as they are written.
std::vector<std::string> quoted_includes(std::string_view source);

// All identifiers outside comments and literals.
std::set<std::string> identifiers(std::string_view source);

// The macros, types, members, enumerators, functions and variables that a header declares. Parameters and what stands
// in function bodies are not among them; a name too many is possible, a missing one is not.
std::set<std::string> declared_names(std::string_view header);

struct FunctionExtent {
  int line;       // of its first token, from 1
  int num_lines;  // up to its closing brace
};

// Every function with a body, those of classes included.
std::vector<FunctionExtent> function_extents(std::string_view source);

}  // namespace llmb::test
