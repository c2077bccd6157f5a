// The attribute argument of filters: sort(attribute="a.b"), map(attribute=0), …
#pragma once

#include <string_view>
#include <vector>

#include "jinja/value.h"

namespace llmb::jinja {

// "a.b.0", a number, or none for the element itself.
class AttributePath {
 public:
  AttributePath(Interpreter& interpreter, const Value* attribute);
  void set_default(Value v) { otherwise_ = std::move(v); }  // in place of what is undefined
  void fold_case() { fold_case_ = true; }                   // strings come out in lower case
  void clear() { parts_.clear(); }
  Value of(Interpreter& interpreter, Value item) const;

 private:
  std::vector<Value> parts_;
  Value otherwise_;
  bool fold_case_ = false;
};

}  // namespace llmb::jinja
