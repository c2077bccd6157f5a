// Python's two ways to format: "..." % values and "...".format(values).
#pragma once

#include "jinja/value.h"

namespace llmb::jinja {

// pattern % values; a tuple gives several values, a dict named ones.
Value format_percent(Heap& heap, const Value& pattern, const Value& values);

// pattern.format(*positional, **keyword), with field names looked up under the sandbox.
Value format_braces(Interpreter& interpreter, const Value& pattern, const Arguments& arguments);

}  // namespace llmb::jinja
