// Iteration over template values, and Python's lazy iterators.
#pragma once

#include "jinja/value.h"

namespace llmb::jinja {

Heap& heap_of(Interpreter& interpreter);
bool is_iterable(const Value& v);

// iter(v). Throws kType where v cannot be iterated. An iterator is returned as it is.
Value make_iterator(Interpreter& interpreter, const Value& v);

// The next element: false at the end. Nested iterators count as nested evaluation.
bool advance(Interpreter& interpreter, const Value& iterator, Value* out);

// Calls visit(element) until it returns false or the end.
template <typename Visit>
void for_each(Interpreter& interpreter, const Value& v, const Visit& visit) {
  const Value iterator = make_iterator(interpreter, v);
  Value element;
  while (advance(interpreter, iterator, &element)) {
    heap_of(interpreter).spend(1);
    if (!visit(element)) return;
  }
}

// A new list of v's elements.
Value to_list(Interpreter& interpreter, const Value& v);

// reversed(v): throws kType where v is not a sequence.
Value make_reversed(Interpreter& interpreter, const Value& v);

}  // namespace llmb::jinja
