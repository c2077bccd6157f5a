// The built-in filters, tests, global functions and methods: tables of names, code and parameters.
#pragma once

#include <array>
#include <string_view>

#include "jinja/ops.h"
#include "jinja/value.h"

namespace llmb::jinja {

class Call;

inline constexpr size_t kMaxParameters = 4;

struct Builtin {
  const char* name;
  Value (*code)(Call& call);
  // Names in order, separated by spaces; those with '!' must be given. nullptr: the code reads call.all itself.
  const char* parameters;
};

// Binds the arguments as Python does, and calls. Throws kType for too many, unknown, doubled or missing ones.
Value invoke(const Builtin& builtin, Interpreter& interpreter, const Value& self, Arguments& arguments);

// nullptr: there is none of this name.
const Builtin* find_filter(std::string_view name);
const Builtin* find_test(std::string_view name);
const Builtin* find_global(std::string_view name);
const Builtin* find_method(const Value& v, std::string_view name);

// Filters by theme; find_filter looks through all.
const Builtin* find_text_filter(std::string_view name);
const Builtin* find_sequence_filter(std::string_view name);

// Attributes that are not methods: loop.index, cycler.current, …
bool find_property(Interpreter& interpreter, const Value& v, std::string_view name, Value* out);

// A call as the code of a built-in sees it.
class Call {
 public:
  Call(const Builtin& builtin, Interpreter& interpreter, const Value& self, Arguments& arguments);

  Interpreter& in;
  Heap& heap;
  const Value& self;  // the value on the left of `|`, `is` or the method's dot
  Arguments& all;

  const Value* get(size_t i) const { return values_[i]; }  // nullptr: not given
  bool given(size_t i) const { return values_[i] != nullptr; }
  bool given_not_none(size_t i) const { return given(i) && !values_[i]->is_none(); }
  const Value& at(size_t i) const { return *values_[i]; }  // one that must be given
  int64_t integer(size_t i, int64_t otherwise = 0) const;
  bool flag(size_t i) const { return given(i) && truthy(*values_[i]); }
  std::string_view text(size_t i) const;  // throws kType where it is not a string
  std::string_view text(size_t i, std::string_view otherwise) const { return given(i) ? text(i) : otherwise; }

 private:
  const char* name_;
  std::array<const Value*, kMaxParameters> values_{};
};

template <size_t N>
const Builtin* find_in(const Builtin (&table)[N], std::string_view name) {
  for (const Builtin& b : table)
    if (name == b.name) return &b;
  return nullptr;
}

}  // namespace llmb::jinja
