// Methods and properties of the built-in types, as the immutable sandbox shows them to templates.
#pragma once

#include <string_view>

#include "jinja/value.h"

namespace llmb::jinja {

struct MethodEntry {
  const char* name;
  NativeFunction call;
};

const MethodEntry* find_method(const Value& v, std::string_view name);
const MethodEntry* find_string_method(std::string_view name);

// Whether `name` is a method of v's type that would change v (list.append, dict.update, …).
bool changes_its_object(const Value& v, std::string_view name);

// Attributes that are not methods: loop.index, range.start, …
bool find_property(Interpreter& interpreter, const Value& v, std::string_view name, Value* out);

}  // namespace llmb::jinja
