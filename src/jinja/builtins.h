// The built-in filters, tests and global functions, by name.
#pragma once

#include <string_view>

#include "jinja/value.h"

namespace llmb::jinja {

// Called with the value on the left of `|` or `is` as self. nullptr: there is none of this name.
NativeFunction find_filter(std::string_view name);
NativeFunction find_test(std::string_view name);

// A global (range, namespace, …) as a value; missing where there is none.
Value find_global(Heap& heap, std::string_view name);

// Filters by theme; find_filter looks through all.
NativeFunction find_text_filter(std::string_view name);
NativeFunction find_sequence_filter(std::string_view name);
NativeFunction find_lazy_filter(std::string_view name);

}  // namespace llmb::jinja
