// JSON text to template values and back (json.loads and json.dumps of Python).
#pragma once

#include <string>
#include <string_view>

#include "jinja/value.h"

namespace llmb::jinja {

// Objects keep the order of their keys; of a doubled key the last value counts. Throws kValue with `what` in the
// message for text that is not JSON, nested too deeply or holding an integer past 64 bits.
Value parse_json(Heap& heap, std::string_view text, const char* what);

struct JsonStyle {
  bool ensure_ascii = false;
  bool indented = false;
  std::string indent;  // of one level
  std::string item_separator = ", ";
  std::string key_separator = ": ";
  bool sort_keys = false;
};

Value write_json(Heap& heap, const Value& v, const JsonStyle& style);

}  // namespace llmb::jinja
