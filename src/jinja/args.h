// The arguments of a call to a built-in, matched to its parameters as Python does.
#pragma once

#include <initializer_list>
#include <vector>

#include "jinja/ops.h"
#include "jinja/value.h"

namespace llmb::jinja {

// Views into `arguments`, which must outlive it. Throws kType for too many, unknown, doubled or missing ones.
class BoundArguments {
 public:
  // parameters: names in order, of which the first num_required must be given.
  BoundArguments(const char* function, const Arguments& arguments, std::initializer_list<const char*> parameters,
                 size_t num_required = 0);

  const Value* get(size_t i) const { return values_[i]; }  // nullptr: not given
  bool given(size_t i) const { return values_[i] != nullptr; }
  bool given_not_none(size_t i) const { return given(i) && !values_[i]->is_none(); }
  const Value& at(size_t i) const { return *values_[i]; }  // a required one
  int64_t integer(size_t i, int64_t otherwise) const;
  bool flag(size_t i, bool otherwise) const { return given(i) ? truthy(*values_[i]) : otherwise; }
  std::string_view text(size_t i) const;  // throws kType where it is not a string

 private:
  const char* function_;
  std::vector<const Value*> values_;
};

// Charges bytes to a heap while it lives, for text that a helper builds outside it.
class ScopedCharge {
 public:
  ScopedCharge(Heap& heap, size_t bytes) : heap_(heap), bytes_(static_cast<int64_t>(bytes)) { heap_.charge(bytes_); }
  ~ScopedCharge() { heap_.discharge(bytes_); }
  ScopedCharge(const ScopedCharge&) = delete;
  ScopedCharge& operator=(const ScopedCharge&) = delete;

 private:
  Heap& heap_;
  int64_t bytes_;
};

}  // namespace llmb::jinja
